"""Products of few rows and constant weights: a work-group for each column of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.tensor import TensorSpec
from weft.kernels.chooser import Algorithm, Candidate
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.gate import Gate
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import SelfTestCase, noise, one_node, several_nodes
from weft.kernels.special import register_family
from weft.ops.gpu.matmul.problem import ProductPlan, ProductProblem, why_not_packed
from weft.ops.matmul import Gemm, MatMul

FEW_ROWS = 4


def rows_of(k: KernelBuilder, m: int) -> tuple[dict[str, int | bool], dict[str, int]]:
    """Return a kernel's number of rows as variant and constants.

    Where sizes change, one kernel is for two rows and for all that are more, and reads their number `M`.
    """
    ragged = k.sizes_change and m > 1
    return {"rows": FEW_ROWS if ragged else m, "ragged": ragged}, {"M": m} if ragged else {}


class OneColumn(NamedTuple):
    """A work-group computes one column."""


@dataclass(frozen=True)
class FewRowsFigures(AlgorithmFigures, section="matmul_rows"):
    """How work is divided."""

    column_items: int
    """Work-items that share a column of the result; CPUs switch between items at barriers."""
    at_a_time: int
    """Vectors of weights that an item loads before it uses the first."""


class ProductOfFewRows(Algorithm[ProductProblem, ProductPlan, OneColumn]):
    """Weights are packed as rows of vectors along k, and are read once."""

    name = "matmul_rows"

    def why_not(self, problem: ProductProblem) -> str | None:
        """Refuse many rows, and weights that are not constant."""
        if self.name in problem.caps.without:
            return "its self-test failed on this device"
        if problem.m > FEW_ROWS:
            return f"it is for up to {FEW_ROWS} rows"
        if problem.a_steps != (problem.k, 1):
            return "the first matrix is transposed"
        return why_not_packed(problem)

    def candidates(self, problem: ProductProblem) -> Sequence[Candidate]:
        """Return the only tile."""
        return [Candidate(OneColumn(), 1.0)]

    def launch(self, plan: ProductPlan, tile: OneColumn) -> None:
        """Launch one kernel for each piece of the weights."""
        launch_few_rows(plan, [plan.matrix()])


def launch_few_rows(plan: ProductPlan, matrices: Sequence[Array], gate: Gate | None = None) -> None:
    """Launch products with matrices that have a row for each column of the result: one, or with a gate two.

    With two, what is added has the numbers of the second product behind those of the first.
    """
    k, p = plan.k, plan.problem
    addend, steps = plan.addend()
    rows, many = rows_of(k, p.m)
    figures = k.caps.model.of(FewRowsFigures)
    items = k.tree_items(figures.column_items)
    for first, count in plan.pieces(len(matrices)):
        spec = TensorSpec((len(matrices) * count, p.k, 1), DType.of(matrices[0].dtype))
        weights = k.constant(f"rows.{first}", partial(_rows, matrices, first, count), Layout.NC4HW4, spec)
        k.launch(
            "matmul_rows", reads={"a": plan.a, "w": weights, **addend}, writes={"y": plan.y},
            ints={"K": p.k, "VECTORS": -(-p.k // PACK), "FIRST": first, "COUNT": count, "N": p.n, **steps, **many},
            floats={"ALPHA": plan.alpha, "BETA": plan.beta},
            variant={
                **rows, "quads": p.k % PACK == 0, "tree": not k.caps.software, "gated": gate is not None,
                "at_a_time": figures.at_a_time,
            },
            grid=(min(count, k.caps.max_grid[0]), 1, 1), local=(items, 1, 1), gate=gate,
        )


def _rows(matrices: Sequence[Array], first: int, count: int) -> Array:
    """Return some rows of each matrix, one matrix after the other."""
    some = [matrix[first : first + count] for matrix in matrices]
    return (some[0] if len(some) == 1 else np.concatenate(some)).reshape(len(some) * count, -1, 1)


def _after_three_rows(depth: int) -> SelfTestCase:
    """Return a case of two rows in a kernel that reads how many there are, since there were three before."""
    return several_nodes(
        f"Gemm of (2, {depth}) after (3, {depth})",
        [(Gemm(), ("x", "w", "b"), "y")],
        {"x": noise(2, depth)}, {"w": noise(depth, 37), "b": noise(37)}, before={"x": noise(3, depth)},
    )


register_family(
    "matmul_rows", "products of few rows",
    cases=lambda: (
        one_node(MatMul(), (1, 131), (131, 37), constants=(1,)),
        one_node(Gemm(transB=1), (3, 260), (17, 260), (17,), constants=(1, 2)),
        # Items load several vectors twice, and one more; the last vector is not whole.
        one_node(MatMul(), (2, 2052), (2052, 9), constants=(1,)),
        one_node(MatMul(), (1, 2055), (2055, 9), constants=(1,)),
        _after_three_rows(131), _after_three_rows(1031),
    ),
    fallback="products by tiles",
)
