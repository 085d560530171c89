"""The ops: one module a family. Importing this package registers all of them, and how GPUs run them."""

from __future__ import annotations

from weft.ops import (
    attention,
    binary,
    concat,
    conv,
    create,
    gather,
    gpu,
    matmul,
    norm,
    pad,
    pool,
    reduce,
    relayout,
    resize,
    shape,
    slicing,
    softmax,
    unary,
)

__all__ = [
    "attention",
    "binary",
    "concat",
    "conv",
    "create",
    "gather",
    "gpu",
    "matmul",
    "norm",
    "pad",
    "pool",
    "reduce",
    "relayout",
    "resize",
    "shape",
    "slicing",
    "softmax",
    "unary",
]
