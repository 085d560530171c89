"""How GPUs run the ops: one module a family, each beside the templates it launches in `weft/shaders`."""

from __future__ import annotations

from weft.ops.gpu import (
    attention,
    concat,
    conv,
    elementwise,
    families,
    gather,
    integers,
    logic,
    matmul,
    move,
    norm,
    pad,
    pool,
    rearrange,
    reduce,
    resize,
    softmax,
)

__all__ = [
    "attention",
    "concat",
    "conv",
    "elementwise",
    "families",
    "gather",
    "integers",
    "logic",
    "matmul",
    "move",
    "norm",
    "pad",
    "pool",
    "rearrange",
    "reduce",
    "resize",
    "softmax",
]
