"""Products of few rows and matrices that a run computes, on software devices: a work-item for each column."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from weft.kernels.chooser import Algorithm, Candidate
from weft.kernels.self_test_cases import noise, one_node, several_nodes
from weft.kernels.special import register_family
from weft.ops.gpu.matmul.few_rows import FEW_ROWS, rows_of
from weft.ops.gpu.matmul.problem import ProductPlan, ProductProblem
from weft.ops.matmul import Gemm, MatMul


class OneItem(NamedTuple):
    """A work-item computes one column."""


class ThinProduct(Algorithm[ProductProblem, ProductPlan, OneItem]):
    """Nothing is staged: a tile would hold few rows, and a CPU switches between work-items at each barrier."""

    name = "matmul_thin"

    def why_not(self, problem: ProductProblem) -> str | None:
        """Refuse GPUs, many rows, and constant weights, which are packed."""
        if self.name in problem.caps.without:
            return "its self-test failed on this device"
        if not problem.caps.software:
            return "it is for software devices; a GPU stages both matrices in tiles"
        if problem.m > FEW_ROWS:
            return f"it is for up to {FEW_ROWS} rows"
        return "its second matrix is constant" if problem.weights else None

    def candidates(self, problem: ProductProblem) -> Sequence[Candidate]:
        """Return the only tile."""
        return [Candidate(OneItem(), 1.0)]

    def launch(self, plan: ProductPlan, tile: OneItem) -> None:
        """Launch one kernel for all matrices of the batch."""
        k, p = plan.k, plan.problem
        addend, steps = plan.addend()
        columns = p.n * prod(p.batch)
        rows, many = rows_of(k, p.m)
        k.launch(
            self.name, reads={"a": plan.a, "b": plan.b, **addend}, writes={"y": plan.y},
            ints={"COLUMNS": columns, "N": p.n, "K": p.k, **p.steps(p.b_steps), **steps, **many},
            floats={"ALPHA": plan.alpha, "BETA": plan.beta}, variant={"batch": len(p.batch), **rows},
            items=columns,
        )


register_family(
    "matmul_thin", "products of few rows in software",
    cases=lambda: (
        one_node(MatMul(), (2, 1, 3, 7), (3, 7, 70)),
        one_node(Gemm(transA=1, transB=1, alpha=2.0, beta=-1.5), (7, 2), (3, 7), (1, 3)),
        several_nodes(
            "MatMul of (2, 3, 7) with (2, 7, 70) after (1, 2, 5)",
            [(MatMul(), ("x", "z"), "y")],
            {"x": noise(2, 3, 7), "z": noise(2, 7, 70)},
            before={"x": noise(1, 2, 5), "z": noise(1, 5, 64)},
        ),
    ),
    fallback="products by tiles", claimed=lambda caps: caps.software,
)
