"""Convolutions on GPUs: one algorithm a file, those that compete in `algorithms`."""

from __future__ import annotations

from weft.ops.gpu.conv import conv, pair, planar, pooled, prologue, transposed

__all__ = ["conv", "pair", "planar", "pooled", "prologue", "transposed"]
