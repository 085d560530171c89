"""Passes that find an op which exporters write as many nodes, and replace these by that op."""

from __future__ import annotations

from weft.core.passes.patterns.attention import attend_in_place, fuse_attention, join_projections, share_keys
from weft.core.passes.patterns.compare_select import fuse_compare_select
from weft.core.passes.patterns.gelu import fuse_gelu
from weft.core.passes.patterns.layer_norm import fuse_layer_norm

__all__ = [
    "attend_in_place",
    "fuse_attention",
    "fuse_compare_select",
    "fuse_gelu",
    "fuse_layer_norm",
    "join_projections",
    "share_keys",
]
