"""Attention on GPUs: one algorithm a file; `attention` lists which compete."""

from __future__ import annotations

from weft.ops.gpu.attention import attention

__all__ = ["attention"]
