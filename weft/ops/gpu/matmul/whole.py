"""Products of integers: one item computes one number."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.kernels.self_test_cases import indices, one_node
from weft.kernels.special import register_family
from weft.ops.gpu.matmul.problem import ProductPlan
from weft.ops.matmul import Gemm, MatMul

WHOLE = frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})
"""The types of integers that ONNX multiplies matrices of."""


def launch_whole(plan: ProductPlan) -> None:
    """Launch a product of integers, which has no factors."""
    p = plan.problem
    reads, ints = plan.addend()
    total = prod(p.batch) * p.m * p.n
    grid, local = plan.k.for_items(total)
    plan.k.launch(
        "matmul_whole", reads={"a": plan.a, "b": plan.b, **reads}, writes={"y": plan.y},
        ints={"M": p.m, "N": p.n, "K": p.k, "TOTAL": total, **p.steps(p.b_steps), **ints},
        variant={"rank": len(p.batch), "wide": plan.y.dtype.itemsize == 8}, grid=grid, local=local,
        epilogue=False,
    )


register_family(
    "matmul_whole", "products of integers",
    cases=lambda: (
        one_node(MatMul(), *(np.asarray(indices(s, 1 << 40), np.int64) for s in ((2, 3, 40), (40, 5)))),
        one_node(Gemm(transB=1), *(np.asarray(indices(s, 1 << 20), np.int32) for s in ((3, 9), (5, 9), (5,)))),
    ),
)
