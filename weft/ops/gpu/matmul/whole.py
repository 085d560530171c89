"""Products of integers: one item computes one number."""

from __future__ import annotations

from math import prod

from weft.core.graph.dtypes import DType
from weft.ops.gpu.matmul.problem import ProductPlan

WHOLE = frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})
"""The types of integers that ONNX multiplies matrices of."""


def launch_whole(plan: ProductPlan) -> None:
    """Launch a product of integers, which has no factors."""
    p = plan.problem
    reads, ints = plan.addend()
    total = prod(p.batch) * p.m * p.n
    grid, local = plan.k.for_items(total)
    plan.k.launch(
        "matmul_whole",
        reads={"a": plan.a, "b": plan.b, **reads},
        writes={"y": plan.y},
        ints={"M": p.m, "N": p.n, "K": p.k, "TOTAL": total, **p.steps(p.b_steps), **ints},
        variant={"rank": len(p.batch), "wide": plan.y.dtype.itemsize == 8},
        grid=grid,
        local=local,
        epilogue=False,
    )
