"""Products of matrices on GPUs: one algorithm a file, those that compete in `matmul`."""

from __future__ import annotations

from weft.ops.gpu.matmul import matmul

__all__ = ["matmul"]
