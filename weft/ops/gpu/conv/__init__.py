"""Convolutions on GPUs: one algorithm a file; `algorithms` lists which compete."""

from __future__ import annotations

from weft.ops.gpu.conv import conv, pair, planar, pooled, prologue, transposed

__all__ = ["conv", "pair", "planar", "pooled", "prologue", "transposed"]
