"""Products of any matrices in tiles of 8 x 8 work-items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.chooser import Algorithm, Candidate, candidates_of, waves
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import KernelFamily, register_family
from weft.ops.gpu.matmul.problem import ProductPlan, ProductProblem
from weft.ops.matmul import Gemm, MatMul

ITEMS = 8
"""Work-items along each side of a tile."""


@dataclass(frozen=True)
class TiledFigures(AlgorithmFigures, section="matmul"):
    """How tiles are chosen."""

    tiles: int
    """A product must have at least so many tiles for each unit."""


@dataclass(frozen=True)
class ProductTile:
    """Rows, and as many columns, that one work-item computes."""

    each: int


TILES = (ProductTile(4), ProductTile(2))
"""From the best reuse to the most parallelism."""


def tiles_of(problem: ProductProblem, tile: ProductTile, columns: int) -> int:
    """Return the number of tiles of the result, or of some columns of it."""
    side = ITEMS * tile.each
    return -(-problem.m // side) * -(-columns // side) * prod(problem.batch)


def choose_tile(problem: ProductProblem, columns: int) -> ProductTile:
    """Return the tile with the most reuse that gives every compute unit enough tiles."""
    caps = problem.caps
    wanted = 0 if caps.software else caps.model.of(TiledFigures).tiles * caps.compute_units
    return next((tile for tile in TILES if tiles_of(problem, tile, columns) >= wanted), TILES[-1])


class TiledProduct(Algorithm[ProductProblem, ProductPlan, ProductTile]):
    """The general kernel; constant weights beyond the range of one argument are passed in pieces."""

    name = "matmul"

    def why_not(self, problem: ProductProblem) -> str | None:
        """Return None: it computes every product."""
        return None

    def candidates(self, problem: ProductProblem) -> Sequence[Candidate]:
        """Return the tiles."""

        def time(tile: ProductTile) -> float:
            caps, groups = problem.caps, tiles_of(problem, tile, problem.n)
            return waves(caps.model, groups, ITEMS * ITEMS, caps.compute_units)

        return candidates_of([choose_tile(problem, problem.n), *TILES], time)

    def launch(self, plan: ProductPlan, tile: ProductTile) -> None:
        """Launch the kernel for each piece of the weights, with a tile for that piece."""
        if not plan.problem.weights:
            _launch(plan, tile, plan.b, plan.problem.b_steps, 0, plan.problem.n)
            return
        matrix = plan.matrix()
        for first, count in plan.pieces():
            spec = TensorSpec((plan.problem.k, count), plan.b.dtype)
            part = plan.k.constant(f"columns.{first}", matrix[first : first + count].T.copy, spec=spec)
            _launch(plan, choose_tile(plan.problem, count), part, (count, 1), first, count)


def _launch(
    plan: ProductPlan, tile: ProductTile, b: Tensor, b_steps: tuple[int, int], first: int, count: int
) -> None:
    k, p = plan.k, plan.problem
    addend, steps = plan.addend()
    side = ITEMS * tile.each
    total = tiles_of(p, tile, count)
    ints = {
        "M": p.m, "N": p.n, "K": p.k, "FIRST": first, "COUNT": count,
        "TILES_M": -(-p.m // side), "TILES_N": -(-count // side), "TILES": total,
        **p.steps(b_steps), **steps,
    }  # fmt: skip
    k.launch(
        "matmul",
        reads={"a": plan.a, "b": b, **addend},
        writes={"y": plan.y},
        ints=ints,
        floats={"ALPHA": plan.alpha, "BETA": plan.beta},
        variant={"batch": len(p.batch), "each": tile.each},
        grid=(max(1, min(total, k.caps.max_grid[0])), 1, 1),
        local=(ITEMS, ITEMS, 1),
    )


register_family(
    KernelFamily(
        "matmul", "products by tiles",
        cases=lambda: (
            one_node(MatMul(), (65, 33), (33, 67)),
            one_node(MatMul(), (2, 1, 5, 7), (3, 7, 4)),
            one_node(Gemm(transA=1, transB=1, alpha=2.0, beta=-1.5), (7, 5), (3, 7), (1, 3)),
        ),
    )
)
