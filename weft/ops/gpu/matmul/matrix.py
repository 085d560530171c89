"""Products of two matrices on matrix units: fp16 in tiles of 16 x 16, summed in fp32.

Most of those with constant weights are convolutions, whose kernels have them packed. The others, as those of odd
widths, come here, where a constant matrix is read like a computed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.tensor import TensorSpec
from weft.kernels.chooser import Algorithm, Candidate
from weft.kernels.device_model import AlgorithmFigures, time_by
from weft.kernels.launch import MAX_ELEMENTS
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.self_test_cases import SelfTestCase, one_node
from weft.kernels.source import SUBGROUP
from weft.kernels.special import on_many_units, register_special
from weft.ops.gpu.matmul.problem import ProductPlan, ProductProblem
from weft.ops.gpu.matmul.tiled import LEAST_DEPTH, MOST_REGISTERS, launch_parts, may_have_parts
from weft.ops.matmul import Gemm, MatMul

SIDE = 16
"""Rows and columns of the matrices that a subgroup multiplies."""
DEPTH = 32
"""Elements along K of a step."""
WIDE = 8
"""Elements that are fetched at once where rows lie at multiples of as many: 16 bytes."""
VECTOR_BYTES, FLOAT_BYTES = 16, 4
RESULT_PITCH = 33
"""Numbers from row to row of two matrices of results in work-group memory."""
OTHER_REGISTERS = 40
"""Registers of an item for addresses."""


@dataclass(frozen=True)
class MatrixProductFigures(AlgorithmFigures, section="matmul_matrix"):
    """What estimates of the kernel know of a device besides its rates."""

    start_us: float = field(metadata=time_by("launches"))
    """Microseconds of a launch that has nothing to do."""
    round_us: float = field(metadata=time_by("waits"))
    """What a group waits for in each step along K: its loads, and others at barriers."""
    pair_us: float = field(metadata=time_by("matrix_products"))
    """What an item waits for where it fetches a pair of elements instead of 16 bytes."""
    square_us: float = field(metadata=time_by("shared_vectors"))
    """What a subgroup takes to multiply two matrices."""
    unit_square_us: float = field(metadata=time_by("matrix_products"))
    """What a unit that is full of subgroups takes for that."""
    unit_stage_us: float = field(metadata=time_by("cache_bytes"))
    """What such a unit takes to fetch and stage a thousand elements."""
    unit_store_us: float = field(metadata=time_by("cache_bytes"))
    """What it takes to store a thousand results, four at a time."""
    unit_single_us: float = field(metadata=time_by("cache_bytes"))
    """What it takes to store as many one by one."""
    slice_us: float = field(metadata=time_by("shared_vectors"))
    """What it takes to add a thousand sums of another slice."""


@dataclass(frozen=True, slots=True)
class MatrixProductTile:
    """How a work-group divides its work.

    A subgroup holds `fm` x `fn` matrices of sums; `sm` x `sn` subgroups make the group's tile; `slices` such sets take
    turns with steps along K. `parts` groups share K besides: a second launch adds their sums.
    """

    fm: int
    fn: int
    sm: int
    sn: int
    slices: int = 1
    parts: int = 1

    @property
    def rows(self) -> int:
        """Return the rows of a tile."""
        return SIDE * self.fm * self.sm

    @property
    def columns(self) -> int:
        """Return the columns of a tile."""
        return SIDE * self.fn * self.sn

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return SUBGROUP * self.sm * self.sn * self.slices

    @property
    def registers(self) -> int:
        """Return the registers of an item, about: sums, operands, and what it fetches."""
        fetched = (self.rows + self.columns) * DEPTH // (SUBGROUP * self.sm * self.sn)  # in pairs, at most
        return min(8 * self.fm * self.fn + 4 * (self.fm + self.fn) + fetched + OTHER_REGISTERS, MOST_REGISTERS)

    def shared_bytes(self, fours: bool) -> int:
        """Return the bytes of work-group memory at most: staged operands, sums of all slices but one, and results.

        These go straight to memory where four are stored at a time.
        """
        staged = sum(max(s * (DEPTH // WIDE + 1), DEPTH * (s // WIDE + 1)) for s in (self.rows, self.columns))
        results = 0 if fours else self.sm * self.sn * SIDE * RESULT_PITCH
        numbers = (self.slices - 1) * self.rows * self.columns + results
        return VECTOR_BYTES * self.slices * staged + FLOAT_BYTES * numbers


UNPARTED = (
    MatrixProductTile(2, 4, 4, 2),
    MatrixProductTile(2, 2, 4, 2),
    MatrixProductTile(2, 4, 2, 2),
    MatrixProductTile(2, 2, 2, 2),
    MatrixProductTile(2, 2, 2, 2, 2),
    MatrixProductTile(1, 2, 2, 2),
    MatrixProductTile(2, 1, 2, 2),
    MatrixProductTile(1, 1, 2, 2),
    MatrixProductTile(1, 1, 2, 2, 2),
    MatrixProductTile(1, 1, 2, 2, 4),
    MatrixProductTile(2, 2, 1, 1),
    MatrixProductTile(2, 2, 1, 1, 2),
    MatrixProductTile(2, 2, 1, 1, 4),
    MatrixProductTile(1, 1, 1, 2),
    MatrixProductTile(1, 1, 1, 2, 4),
    MatrixProductTile(1, 1, 1, 1, 8),
)
TILES = (*UNPARTED, *(replace(UNPARTED[k], parts=parts) for k in (3, 9) for parts in (4, 8, 16)))
"""In no order: each takes its place by its estimate."""


def _cases() -> Sequence[SelfTestCase]:
    """Return products in each order of memory, with rows at multiples of 16 bytes and not, in slices and parts.

    The constant matrix of the last one is transposed.
    """
    in_halves = partial(one_node, precision=Precision.LOW)
    scaled = Gemm(transA=1, transB=1, alpha=2.0, beta=-1.5)
    return [
        in_halves(MatMul(), (2, 1, 37, 40), (3, 40, 72), prefer=repr(MatrixProductTile(2, 2, 2, 2))),
        in_halves(MatMul(), (65, 33), (33, 67), prefer=repr(MatrixProductTile(1, 1, 2, 2, 2))),
        in_halves(scaled, (72, 40), (56, 72), (1, 56), prefer=repr(MatrixProductTile(2, 2, 1, 1, 2))),
        in_halves(scaled, (71, 35), (53, 71), (1, 53), prefer=repr(MatrixProductTile(1, 1, 1, 2, 4))),
        in_halves(MatMul(), (2, 20, 512), (512, 24), prefer=repr(MatrixProductTile(1, 1, 2, 2, 4, 4))),
        in_halves(MatMul(), (3, 150, 72), (3, 72, 136), prefer=repr(MatrixProductTile(2, 4, 4, 2))),
        in_halves(MatMul(), (37, 40), (40, 49), constants=(1,), prefer=repr(MatrixProductTile(1, 1, 2, 2))),
    ]


SPECIAL = register_special(
    "matmul_matrix",
    "products of two matrices on matrix units",
    claimed=lambda caps: caps.multiplies(HALVES),
    cases=_cases,
    template="matmul_matrix",
    forced=on_many_units,
    seconds=1.0,
)


@dataclass(frozen=True)
class OperandLayout:
    """How one of the two matrices lies in memory."""

    along: bool
    """Whether elements along K are adjacent; else those along its other side, if any are."""
    wide: bool
    """Whether all its rows in memory are at multiples of 16 bytes, and as long."""

    @classmethod
    def of(cls, problem: ProductProblem, which: int) -> OperandLayout:
        """Return how a (0) or b (1) lies."""
        p = problem
        (side, along_k), size, batch = (
            ((p.a_steps[0], p.a_steps[1]), p.m, p.a_batch),
            ((p.b_steps[1], p.b_steps[0]), p.n, p.b_batch),
        )[which]
        along = along_k == 1 or side != 1
        inner, row, length = (along_k, side, p.k) if along else (side, along_k, size)
        whole = all(value % WIDE == 0 for value in (row, length, p.first[which], *batch))
        return cls(along, inner == 1 and whole and p.plain[which])


def as_read(problem: ProductProblem) -> ProductProblem:
    """Return the problem that the kernel solves: a constant matrix is one as any other.

    It is transposed for that where 16 bytes can be fetched at once only then.
    """
    if not problem.weights:
        return problem
    orders = (problem.b_steps, (1, problem.k), (problem.n, 1))
    ways = [replace(problem, b_steps=steps, weights=False) for steps in orders]
    return next((way for way in ways if OperandLayout.of(way, 1).wide), ways[0])


def legal_tiles(problem: ProductProblem) -> list[MatrixProductTile]:
    """Return the tiles that a device takes."""
    caps, steps = problem.caps, -(-problem.k // DEPTH)
    return [
        t for t in TILES
        if t.items <= caps.max_local_items and t.shared_bytes(problem.fours) <= caps.local_memory
        and (t.slices == 1 or steps >= 2 * t.slices * t.parts)
        and (t.parts == 1 or (_divides(problem, t.parts) and may_have_parts(problem, t.parts)))
    ]


def _divides(problem: ProductProblem, parts: int) -> bool:
    """Tell whether parts are long, and of whole pieces, so that they lie as the matrices do."""
    return problem.k % (parts * WIDE) == 0 and problem.k >= LEAST_DEPTH * parts


def tiles_of(problem: ProductProblem, tile: MatrixProductTile) -> int:
    """Return the number of tiles of the result."""
    return -(-problem.m // tile.rows) * -(-problem.n // tile.columns) * prod(problem.batch)


def rounds_of(depth: int, tile: MatrixProductTile) -> int:
    """Return the steps along K that a group does one after the other."""
    return -(-depth // (DEPTH * tile.slices))


def microseconds(problem: ProductProblem, tile: MatrixProductTile) -> float:
    """Return what a tile is expected to take.

    What a group does one step after the other takes its time once in each wave of groups that a unit runs at once; what
    its groups share adds up. `benchmarks/matrix_product_tiles.py` compares this with measured times.
    """
    caps, p = problem.caps, problem
    model, own = caps.model, caps.model.of(MatrixProductFigures)
    groups = tiles_of(p, tile) * tile.parts
    on_a_unit = -(-groups // caps.likely_units)
    resident = min(model.side_by_side(tile.items, tile.registers, tile.shared_bytes(p.fours)), on_a_unit)
    waves, rounds = -(-on_a_unit // max(resident, 1)), rounds_of(p.k // tile.parts, tile)
    warps = tile.sm * tile.sn
    pairs = sum(
        side * DEPTH // 2 // (SUBGROUP * warps)
        for side, which in ((tile.rows, 0), (tile.columns, 1))
        if not OperandLayout.of(p, which).wide
    )
    squares = tile.fm * tile.fn * DEPTH // SIDE
    waiting = rounds * (own.round_us + pairs * own.pair_us + squares * own.square_us)
    staged, results = (tile.rows + tile.columns) * DEPTH / 1e3, tile.rows * tile.columns / 1e3
    shared = rounds * tile.slices * (squares * warps * own.unit_square_us + staged * own.unit_stage_us)
    stored = own.unit_store_us if p.fours else own.unit_single_us
    shared += results * (stored + (tile.slices - 1) * own.slice_us)
    moved = prod(p.batch) * (p.m * p.k + p.k * p.n + p.m * p.n) * DType.FLOAT16.itemsize
    us = own.start_us + waves * waiting + on_a_unit * shared + moved / (model.read_bytes * caps.likely_units)
    if tile.parts > 1:
        us += model.between_launches_us + tile.parts * prod(p.batch) * p.m * p.n / model.summed
    return us


class MatrixProduct(Algorithm[ProductProblem, ProductPlan, MatrixProductTile]):
    """Subgroups multiply matrices that their group stages in work-group memory, in any order."""

    name = "matmul_matrix"

    def why_not(self, problem: ProductProblem) -> str | None:
        """Refuse other types than fp16, constants beyond the range of an argument, and products of nothing."""
        p = problem
        if not SPECIAL.present(p.caps):
            return "the device has no matrix units, or the kernel is wrong there"
        if p.caps.software:
            return "a CPU gains nothing by it"
        if not p.halves:
            return "it is not in fp16"
        if p.weights and p.n * p.k >= min(p.caps.max_buffer_range // DType.FLOAT16.itemsize, MAX_ELEMENTS):
            return "its constant matrix exceeds a kernel argument"
        return None if p.m * p.n * p.k * prod(p.batch) > 0 else "there is nothing to multiply"

    def candidates(self, problem: ProductProblem) -> Sequence[Candidate]:
        """Return the tiles by their estimates."""
        read = as_read(problem)
        us = {tile: microseconds(read, tile) for tile in legal_tiles(read)}
        return [Candidate(tile, us[tile]) for tile in sorted(us, key=us.__getitem__)]

    def launch(self, plan: ProductPlan, tile: MatrixProductTile) -> None:
        """Launch a work-group for each tile, or for all parts of its sums, and a reduction."""
        plan = _as_read(plan)
        if tile.parts > 1:
            launch_parts(plan, tile.parts, lambda part: _launch(part, tile, epilogue=False))
        else:
            _launch(plan, tile)


def _as_read(plan: ProductPlan) -> ProductPlan:
    """Return a plan with the second matrix as the kernel reads it, which is stored anew only if it is transposed."""
    p, read = plan.problem, as_read(plan.problem)
    if read.b_steps == p.b_steps:
        return replace(plan, problem=read)
    matrix, along = plan.matrix(), read.b_steps == (1, p.k)
    spec = TensorSpec((p.n, p.k) if along else (p.k, p.n), plan.b.dtype)
    b = plan.k.constant("transposed", (matrix if along else matrix.T).copy, spec=spec)
    return replace(plan, problem=read, b=b)


def _launch(plan: ProductPlan, tile: MatrixProductTile, *, epilogue: bool = True) -> None:
    k, p = plan.k, plan.problem
    addend, steps = plan.addend()
    total, (a, b) = tiles_of(p, tile), (OperandLayout.of(p, which) for which in range(2))
    k.launch(
        "matmul_matrix", reads={"a": plan.a, "b": plan.b, **addend}, writes={"y": plan.y},
        ints={
            "M": p.m, "N": p.n, "K": p.k, "ROUNDS": rounds_of(p.k, tile),
            "TILES_M": -(-p.m // tile.rows), "TILES_N": -(-p.n // tile.columns), "TILES": total,
            **p.steps(p.b_steps), **steps,
        },
        floats={"ALPHA": plan.alpha, "BETA": plan.beta},
        variant={
            "batch": len(p.batch), "fm": tile.fm, "fn": tile.fn, "sm": tile.sm, "sn": tile.sn, "lz": tile.slices,
            "depth": DEPTH, "a_along": a.along, "a_wide": a.wide, "b_along": b.along, "b_wide": b.wide,
            "fours": p.fours, "result_pitch": RESULT_PITCH,
        },
        kinds={"y": "fours"} if p.fours else None, grid=(max(1, min(total, k.caps.max_grid[0])), 1, 1),
        local=(SUBGROUP, tile.sm * tile.sn, tile.slices), epilogue=epilogue,
    )
