"""Products of matrices on GPUs: one algorithm a file; `matmul` lists which compete."""

from __future__ import annotations

from weft.ops.gpu.matmul import matmul, nbits

__all__ = ["matmul", "nbits"]
