"""Attention on GPUs: one algorithm a file, those that compete in `attention`."""

from __future__ import annotations

from weft.ops.gpu.attention import attention

__all__ = ["attention"]
