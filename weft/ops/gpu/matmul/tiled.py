"""Products of any matrices in tiles, of which several groups of work-items may share the steps along K.

Where few tiles have long sums, K is cut into parts besides: each is a product of its own, as if it were a matrix more
of the batch, and a reduction adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from weft.core.graph.dtypes import DType
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.chooser import Algorithm, Candidate, candidates_of, waves
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures, amount_by, time_by
from weft.kernels.launch import SUM_PARTS
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import in_place_of, on_many_units, register_family
from weft.ops.gpu.matmul.problem import ProductPlan, ProductProblem
from weft.ops.gpu.reduce import RECIPES, launch_recipe
from weft.ops.matmul import Gemm, MatMul
from weft.ops.reduce import ReduceSum

SIDE = 8
"""Work-items along each side of a tile."""
ITEMS = SIDE * SIDE
"""Work-items of a slice."""
DEPTH = 16
"""Elements along K of a step."""
ADDRESSES, MOST_REGISTERS = 40, 255
"""Registers of an item besides its sums and operands, about, and the most that it can have."""
FLOAT_BYTES = 4
ADDER = "reduce"
"""The family of kernels that add parts."""
SLICED = "matmul_slices"
"""The family of tiles with several slices, a name for `DeviceCaps.without`."""


@dataclass(frozen=True)
class TiledFigures(AlgorithmFigures, section="matmul"):
    """What estimates of the kernel know of a device besides its rates."""

    start_us: float = field(metadata=time_by("launches"))
    """Microseconds of a launch that has nothing to do."""
    round_us: float = field(metadata=time_by("waits"))
    """Microseconds by which a step along K takes longer than its products: the loads of the next run meanwhile."""
    finish_us: float = field(metadata=time_by("shared_vectors"))
    """Microseconds of a unit in which the slices of a group add a sum of each item."""
    reads: float = field(metadata=amount_by("shared_vectors"))
    """Numbers that the items of a unit read from work-group memory in a microsecond; adjacent items share some."""
    exposed: float
    """How many times as long as its multiplying alone an item takes, if nothing else runs beside it."""


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Rows, and as many columns, that one work-item computes, and how many slices and parts share K.

    Slices are items of one group that take turns with its steps, parts are groups.
    """

    each: int
    slices: int = 1
    parts: int = 1

    @property
    def side(self) -> int:
        """Return the rows, and the columns, of the tile."""
        return SIDE * self.each

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return ITEMS * self.slices

    def shared_bytes(self, number: int) -> int:
        """Return the bytes of work-group memory, for numbers of so many bytes."""
        step = 2 * DEPTH * (self.side + 1)
        return number * self.slices * (max(step, self.side**2) if self.slices > 1 else step)


UNPARTED = tuple(
    ProductTile(each, slices)
    for each, slices in (
        (8, 1), (8, 2), (4, 1), (4, 2), (4, 4), (2, 1), (2, 2), (2, 4), (1, 1), (1, 4),
    )
)
"""From the best reuse to the most parallelism."""
TILES = (*UNPARTED, *(replace(tile, parts=parts) for tile in UNPARTED if tile.slices == 4 for parts in (4, 8, 16)))
LEAST_DEPTH = 128
"""Least elements along K of a part."""
SOFTWARE_TILES = (ProductTile(4), ProductTile(2))
"""A CPU takes turns with slices, and its compiler is slow; the first is taken untuned."""


def tiles_of(problem: ProductProblem, tile: ProductTile, columns: int) -> int:
    """Return the number of tiles of the result, or of some columns of it."""
    return -(-problem.m // tile.side) * -(-columns // tile.side) * prod(problem.batch)


def legal_tiles(caps: DeviceCaps, depth: int, *, double: bool = False) -> list[ProductTile]:
    """Return the tiles that a device takes for sums of `depth` products."""
    number = 2 * FLOAT_BYTES if double else FLOAT_BYTES
    return [
        t for t in TILES
        if t.items <= caps.max_local_items and t.shared_bytes(number) <= caps.local_memory
        and (t.slices == 1 or SLICED not in caps.without)
        and (t.parts == 1 or (depth % t.parts == 0 and depth >= LEAST_DEPTH * t.parts))
    ]


def may_have_parts(problem: ProductProblem, parts: int) -> bool:
    """Tell whether parts can be added, and whether there is room for their sums; SUM_PARTS is off to save memory."""
    caps = problem.caps
    sums = parts * prod(problem.batch) * problem.m * problem.n * FLOAT_BYTES * (2 if problem.double else 1)
    fits = sums <= caps.max_buffer_range
    return fits and not (problem.weights or problem.adds) and caps.without.isdisjoint({ADDER, SUM_PARTS})


def microseconds(caps: DeviceCaps, tiles: int, depth: int, tile: ProductTile) -> float:
    """Return what so many tiles of a result, with sums of `depth` products, are expected to take on a GPU.

    What an item does one after the other takes its time once in each wave of groups that a unit runs at once. What the
    items of a unit share (work-group memory, multiplying) adds up over its groups. `benchmarks/product_tiles.py`
    compares this with measured times.
    """
    model, own = caps.model, caps.model.of(TiledFigures)
    on_a_unit = -(-tiles * tile.parts // caps.likely_units)
    held = tile.each**2 + 2 * tile.each + 2 * DEPTH * tile.side // ITEMS
    registers = min(held + ADDRESSES, MOST_REGISTERS)
    resident = min(model.side_by_side(tile.items, registers, tile.shared_bytes(FLOAT_BYTES)), on_a_unit)
    products, reads = DEPTH * tile.each**2, 2 * DEPTH * tile.each
    waiting = own.round_us + own.exposed * products / model.item_products
    shared = tile.items * (reads / own.reads + products / model.unit_products)
    rounds, in_turn = -(-depth // (DEPTH * tile.slices * tile.parts)), -(-on_a_unit // max(resident, 1))
    us = own.start_us + rounds * (in_turn * waiting + on_a_unit * shared)
    if tile.slices > 1:
        us += on_a_unit * tile.each**2 * own.finish_us
    if tile.parts > 1:
        us += model.between_launches_us + tile.parts * tiles * tile.side**2 / model.summed
    return us


class TiledProduct(Algorithm[ProductProblem, ProductPlan, ProductTile]):
    """The general kernel; constant weights beyond the range of one argument are passed in pieces."""

    name = "matmul"

    def candidates(self, problem: ProductProblem) -> Sequence[Candidate]:
        """Return the tiles by their estimates; on a CPU by their sizes."""
        caps = problem.caps

        def share(tile: ProductTile) -> float:
            return waves(caps.model, tiles_of(problem, tile, problem.n), ITEMS, caps.compute_units)

        if caps.software:
            return candidates_of(SOFTWARE_TILES, share)
        legal = legal_tiles(caps, problem.k, double=problem.double)
        us = {
            t: microseconds(caps, tiles_of(problem, t, problem.n), problem.k, t)
            for t in legal
            if t.parts == 1 or may_have_parts(problem, t.parts)
        }
        return [Candidate(tile, us[tile]) for tile in sorted(us, key=us.__getitem__)]

    def launch(self, plan: ProductPlan, tile: ProductTile) -> None:
        """Launch the kernel for each piece of the weights, or for all parts and a reduction."""
        if tile.parts > 1:
            launch_parts(
                plan, tile.parts,
                lambda part: _launch(part, tile, part.b, part.problem.b_steps, 0, part.problem.n, epilogue=False),
            )
            return
        if not plan.problem.weights:
            _launch(plan, tile, plan.b, plan.problem.b_steps, 0, plan.problem.n)
            return
        matrix = plan.matrix()
        for first, count in plan.pieces():
            spec = TensorSpec((plan.problem.k, count), plan.b.dtype)
            part = plan.k.constant(f"columns.{first}", matrix[first : first + count].T.copy, spec=spec)
            _launch(plan, tile, part, (count, 1), first, count)


def launch_parts(plan: ProductPlan, parts: int, launch: Callable[[ProductPlan], None]) -> None:
    """Let `launch` compute the parts of a product's sums, without its fused steps, and add them."""
    p = plan.problem
    depth = p.k // parts
    sums = plan.k.scratch((parts, *p.batch, p.m, p.n), DType.FLOAT64 if p.double else DType.FLOAT32)
    parted = replace(
        p,
        k=depth,
        batch=(parts, *p.batch),
        a_batch=(depth * p.a_steps[1], *p.a_batch),
        b_batch=(depth * p.b_steps[0], *p.b_batch),
    )
    launch(replace(plan, problem=parted, y=sums))
    launch_recipe(plan.k, RECIPES[ReduceSum], sums, plan.y, (0,))


def _launch(
    plan: ProductPlan, tile: ProductTile, b: Tensor, b_steps: tuple[int, int], first: int, count: int, *,
    epilogue: bool = True,
) -> None:
    k, p = plan.k, plan.problem
    addend, steps = plan.addend()
    total = tiles_of(p, tile, count)
    ints = {
        "M": p.m, "N": p.n, "K": p.k, "FIRST": first, "COUNT": count,
        "TILES_M": -(-p.m // tile.side), "TILES_N": -(-count // tile.side), "TILES": total,
        **p.steps(b_steps), **steps,
    }
    k.launch(
        "matmul",
        reads={"a": plan.a, "b": b, **addend},
        writes={"y": plan.y},
        ints=ints,
        floats={"ALPHA": plan.alpha, "BETA": plan.beta},
        # A CPU keeps what an item holds across a barrier in memory, and loads from there, too.
        variant={"batch": len(p.batch), "each": tile.each, "slices": tile.slices, "ahead": not k.caps.software},
        grid=(max(1, min(total, k.caps.max_grid[0])), 1, 1),
        local=(SIDE, SIDE * tile.slices, 1),
        epilogue=epilogue,
    )


register_family(
    "matmul", "products by tiles",
    cases=lambda: (
        one_node(MatMul(), (65, 33), (33, 67)),
        one_node(MatMul(), (2, 1, 5, 7), (3, 7, 4)),
        one_node(Gemm(transA=1, transB=1, alpha=2.0, beta=-1.5), (7, 5), (3, 7), (1, 3)),
    ),
    forced=in_place_of(SLICED),
)
register_family(
    SLICED, "products whose sums several items or groups share",
    cases=lambda: (
        one_node(MatMul(), (2, 35, 70), (2, 70, 33), prefer="ProductTile(each=4, slices=2, parts=1)"),
        one_node(
            Gemm(transA=1, transB=1, alpha=2.0, beta=-1.5), (150, 5), (19, 150), (1, 19),
            prefer="ProductTile(each=2, slices=4, parts=1)",
        ),
        one_node(MatMul(), (9, 47), (47, 10), prefer="ProductTile(each=1, slices=4, parts=1)"),
        one_node(MatMul(), (2, 9, 512), (512, 10), prefer="ProductTile(each=1, slices=4, parts=4)"),
    ),
    templates=("matmul",), whole=False, fallback="products by tiles of one slice", forced=on_many_units,
    seconds=0.45,
)
