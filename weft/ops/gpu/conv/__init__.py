"""Convolutions on GPUs: one algorithm a file."""

from __future__ import annotations

from weft.ops.gpu.conv import gemm, pooled, transposed

__all__ = ["gemm", "pooled", "transposed"]
