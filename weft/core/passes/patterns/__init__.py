"""Passes that find an op which exporters write as many nodes, and replace these by that op."""

from __future__ import annotations

from weft.core.passes.patterns.attention import fuse_attention
from weft.core.passes.patterns.compare_select import fuse_compare_select
from weft.core.passes.patterns.gelu import fuse_gelu
from weft.core.passes.patterns.heads import attend_in_place, share_keys
from weft.core.passes.patterns.norms import (
    fuse_channel_norms,
    fuse_group_deviation,
    fuse_group_norm,
    fuse_l2_norm,
    fuse_layer_norm,
    fuse_rms_norm,
    fuse_sum_norm,
)

__all__ = [
    "attend_in_place", "fuse_attention", "fuse_channel_norms", "fuse_compare_select", "fuse_gelu",
    "fuse_group_deviation", "fuse_group_norm", "fuse_l2_norm", "fuse_layer_norm", "fuse_rms_norm",
    "fuse_sum_norm", "share_keys",
]
