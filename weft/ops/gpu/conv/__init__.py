"""Convolutions on GPUs: one algorithm a file; `algorithms` lists which compete."""

from __future__ import annotations

from weft.ops.gpu.conv import conv, planar
from weft.ops.gpu.conv.fused import pair, pooled, prologue
from weft.ops.gpu.conv.transposed import gather

__all__ = ["conv", "gather", "pair", "planar", "pooled", "prologue"]
