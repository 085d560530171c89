"""Convolutions on GPUs: one algorithm a file, those that compete in `algorithms`."""

from __future__ import annotations

from weft.ops.gpu.conv import conv, mapped, pair, pooled, transposed

__all__ = ["conv", "mapped", "pair", "pooled", "transposed"]
