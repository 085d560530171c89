"""Attention on matrix units: fp16 in tiles of 16 queries, products summed in fp32, softmax in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, log, prod
from typing import Any, ClassVar

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Shape, row_major
from weft.kernels.chooser import Algorithm, Candidate
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures, time_by
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.self_test_cases import SelfTestCase, one_node
from weft.kernels.source import SUBGROUP
from weft.kernels.special import register_special
from weft.ops.attention import Attention, Extents
from weft.ops.gpu.attention import tiled
from weft.ops.gpu.attention.problem import AttentionPlan, AttentionProblem
from weft.ops.gpu.move import Strides, launch_move

QUERIES = 16
"""Queries of a tile: the rows of a matrix."""
WIDE = 8
"""Elements that are loaded or stored at once: 16 bytes."""
CHUNK = 32
"""Elements of a head that the items of a subgroup load at once."""


@dataclass(frozen=True)
class MatrixAttentionFigures(AlgorithmFigures, section="attention_matrix"):
    """What estimates of the kernel know of a device besides its rates.

    A square is 16 keys by 32 elements, which a subgroup multiplies by 16 queries.
    """

    start_us: float = field(metadata=time_by("launches"))
    """Microseconds of a launch that has nothing to do."""
    round_us: float = field(metadata=time_by("waits"))
    """What a subgroup waits for in each block of keys: its loads, and the softmax of the scores."""
    square_us: float = field(metadata=time_by("matrix_products"))
    """What it takes for a square."""
    staged_round_us: float = field(metadata=time_by("waits"))
    """What a subgroup waits for in each block of keys that is staged."""
    staged_square_us: float = field(metadata=time_by("shared_vectors"))
    """What it takes for a square of such a block."""
    unit_multiply_us: float = field(metadata=time_by("matrix_products"))
    """What a unit that is full of subgroups takes to multiply a square."""
    unit_load_us: float = field(metadata=time_by("cache_bytes"))
    """What such a unit takes to load a square for a subgroup."""
    unit_fetch_us: float = field(metadata=time_by("cache_bytes"))
    """What it takes to bring a square into its cache, once for a set of subgroups."""
    unit_copy_us: float = field(metadata=time_by("shared_vectors"))
    """What it takes to copy a square to work-group memory, once for a set of subgroups."""
    join_us: float = field(metadata=time_by("shared_vectors"))
    """What it takes to add the sums of another slice, for 32 elements of 16 queries."""


@dataclass(frozen=True)
class AttentionTile:
    """How a work-group divides its work.

    `warps` subgroups have `query_tiles` tiles of 16 queries each; `slices` such sets take turns in the blocks of `keys`
    keys, and their results are joined at the end.
    """

    warps: int
    slices: int
    keys: int
    query_tiles: ClassVar[int] = 1
    staged: ClassVar[bool] = False

    @property
    def queries(self) -> int:
        """Return the queries of a group."""
        return QUERIES * self.query_tiles * self.warps

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return SUBGROUP * self.warps * self.slices

    def shared_bytes(self, each: Extents) -> int:
        """Return the bytes of work-group memory: sums, largest scores and totals of all slices but one."""
        held = self.query_tiles * (QUERIES * chunks(each.width) + 4)
        return (self.slices - 1) * self.warps * SUBGROUP * held * 4 + self.staged_bytes(each)

    def staged_bytes(self, each: Extents) -> int:
        """Return the bytes of work-group memory of two blocks of keys and values, with the pitches of the kernel."""
        depth, width = chunks(each.depth), chunks(each.width)
        vectors = 4 * depth + (4 if depth % 2 == 0 else 0) + 4 * width + 1
        return 2 * self.slices * self.keys * vectors * 16 if self.staged else 0

    def registers(self, each: Extents) -> int:
        """Return the registers of an item, about: queries, keys, values, scores and sums."""
        depth, width = chunks(each.depth), chunks(each.width)
        of_queries = 8 * depth + self.keys // 2 + 16 * width
        held = 16 if self.staged else self.keys // 2 * (depth + width)
        return OTHER_REGISTERS + self.query_tiles * of_queries + held


@dataclass(frozen=True)
class StagedTile(AttentionTile):
    """A tile whose subgroups share keys and values in work-group memory, which asynchronous copies bring."""

    staged: ClassVar[bool] = True


@dataclass(frozen=True)
class TallTile(StagedTile):
    """A staged tile whose subgroups have 32 queries each, and so read what is staged half as often for a query."""

    query_tiles: ClassVar[int] = 2


TILES = (
    AttentionTile(2, 2, 32),
    AttentionTile(1, 4, 32),
    AttentionTile(2, 1, 32),
    AttentionTile(1, 4, 16),
    AttentionTile(1, 8, 32),
    AttentionTile(2, 4, 32),
    AttentionTile(4, 2, 32),
    AttentionTile(4, 1, 32),
    AttentionTile(4, 1, 64),
    AttentionTile(1, 2, 64),
    StagedTile(4, 1, 32),
    StagedTile(4, 1, 64),
    StagedTile(2, 2, 32),
    TallTile(4, 1, 64),
    TallTile(4, 1, 32),
    TallTile(4, 1, 16),
    TallTile(2, 1, 32),
)
"""In no order: each takes its place by its estimate."""
OTHER_REGISTERS = 40
"""Registers of an item for addresses and what it compares."""


def _cases() -> Sequence[SelfTestCase]:
    """Return heads apart and side by side, with and without a mask, few and many keys, sizes that fill no tile."""
    hidden = np.zeros((1, 1, 130, 130), np.float16)
    hidden[..., 100:] = hidden[..., 7, 1:] = -np.inf
    in_halves = partial(one_node, precision=Precision.LOW)
    return [
        in_halves(Attention(scale=0.2), (2, 3, 40, 32), (2, 3, 50, 32), (2, 3, 50, 32)),
        in_halves(Attention(scale=0.1, heads=4, packed=1), (1, 130, 3 * 4 * 64), hidden),
        in_halves(Attention(scale=0.1, heads=2), (1, 300, 2 * 104), (1, 77, 2 * 104), (1, 77, 2 * 104)),
        in_halves(Attention(scale=0.2), (40, 8, 128, 32), (40, 8, 128, 32), (40, 8, 128, 32)),
        in_halves(Attention(scale=0.5, softcap=2.0), (1, 2, 40, 32), (1, 2, 50, 32), (1, 2, 50, 32)),
    ]


SPECIAL = register_special(
    "attention_matrix",
    "attention on matrix units",
    claimed=lambda caps: caps.multiplies(HALVES),
    cases=_cases,
    template="attention_matrix",
    seconds=1.4,
)


def _staged_cases() -> Sequence[SelfTestCase]:
    """Return heads with and without a mask, of one and of two blocks of queries a subgroup, and last blocks in part."""
    hidden = np.zeros((1, 1, 130, 130), np.float16)
    hidden[..., 100:] = hidden[..., 7, 1:] = -np.inf
    in_halves = partial(one_node, precision=Precision.LOW)
    packed = (1, 130, 3 * 4 * 64)
    return [
        in_halves(Attention(scale=0.1, heads=4, packed=1), packed, hidden, prefer="StagedTile(warps=2, slices=2"),
        in_halves(Attention(scale=0.1, heads=4, packed=1), packed, prefer="TallTile(warps=4, slices=1, keys=64)"),
        in_halves(
            Attention(scale=0.2), (2, 3, 40, 32), (2, 3, 150, 32), (2, 3, 150, 32),
            prefer="StagedTile(warps=4, slices=1, keys=64)",
        ),
        in_halves(
            Attention(scale=0.2), (1, 2, 70, 40), (1, 2, 77, 40), (1, 2, 77, 40),
            prefer="TallTile(warps=4, slices=1, keys=16)",
        ),
        in_halves(
            Attention(scale=0.5, softcap=2.0), (1, 2, 70, 32), (1, 2, 150, 32), (1, 2, 150, 32),
            prefer="StagedTile(warps=4, slices=1, keys=32)",
        ),
    ]


def _can_stage(caps: DeviceCaps) -> bool:
    """Tell whether there are asynchronous copies beside matrix units."""
    return SPECIAL.present(caps) and caps.asynchronous_copies


STAGED = register_special(
    "attention_staged",
    "attention on matrix units that stages keys and values",
    claimed=_can_stage,
    cases=_staged_cases,
    template="attention_matrix",
    marker="END_OF_COPIES;",
    seconds=1.4,
)


def chunks(size: int) -> int:
    """Return the chunks of a row."""
    return -(-size // CHUNK)


def legal_tiles(caps: DeviceCaps, each: Extents) -> list[AttentionTile]:
    """Return the tiles that a device takes, and whose operands fit its registers."""
    largest = chunks(max(each.depth, each.width))
    return [
        t
        for t in TILES
        if t.items <= caps.max_local_items
        and t.shared_bytes(each) <= caps.local_memory
        and (t.registers(each) <= tiled.MOST_REGISTERS if t.staged else t.keys * largest <= 128)
        and (not t.staged or STAGED.present(caps))
        and (t.slices == 1 or t.slices <= -(-each.keys // t.keys))
    ]


def microseconds(caps: DeviceCaps, each: Extents, tile: AttentionTile) -> float:
    """Return what a tile is expected to take, without copies to rows.

    What a subgroup does one block of keys after the other takes its time once in each wave of groups that a unit runs
    at once. What the subgroups of a unit share adds up over its groups. `benchmarks/matrix_attention_tiles.py`
    compares this with measured times.
    """
    model, own = caps.model, caps.model.of(MatrixAttentionFigures)
    on_a_unit = -(-prod(each.lead) * -(-each.queries // tile.queries) // caps.likely_units)
    registers = min(tile.registers(each), tiled.MOST_REGISTERS)
    resident = min(model.side_by_side(tile.items, registers, tile.shared_bytes(each)), on_a_unit)
    waves = -(-on_a_unit // max(resident, 1))
    rounds = -(-each.keys // (tile.keys * tile.slices))
    width, squares = chunks(each.width), tile.keys // 16 * (chunks(each.depth) + chunks(each.width))
    multiplied, subgroups = squares * tile.query_tiles, tile.warps * tile.slices
    if tile.staged:
        waiting = rounds * (own.staged_round_us + own.staged_square_us * multiplied)
        of_square = subgroups * tile.query_tiles * own.unit_multiply_us + tile.slices * own.unit_copy_us
    else:
        waiting = rounds * (own.round_us + own.square_us * multiplied)
        of_square = subgroups * (tile.query_tiles * own.unit_multiply_us + own.unit_load_us)
        of_square += tile.slices * own.unit_fetch_us
    waiting += own.join_us * (tile.slices - 1) * width * tile.query_tiles
    shared = on_a_unit * rounds * squares * of_square
    nbytes = prod(each.lead) * (each.queries + each.keys) * (each.depth + each.width) * DType.FLOAT16.itemsize
    moving = nbytes / (model.read_bytes * caps.likely_units)
    return own.start_us + waves * waiting + shared + moving


def copied(problem: AttentionProblem) -> list[str]:
    """Return which of Q, K and V must be copied because the elements of their heads are apart."""
    return [letter for letter in "QKV" if letter in problem.apart]


def _rows(problem: AttentionProblem, letter: str) -> Shape:
    """Return (batch, heads, rows, elements) of Q, K or V."""
    each = problem.each
    batch, heads = each.lead if len(each.lead) == 2 else (each.lead[0], 1)
    if letter == "Q":
        return batch, heads, each.queries, each.depth
    return batch, heads // each.shared, each.keys, each.depth if letter == "K" else each.width


def copying_us(problem: AttentionProblem) -> float:
    """Return the microseconds that copies to rows are expected to take."""
    model, letters = problem.caps.model, copied(problem)
    moved = sum(prod(_rows(problem, letter)) for letter in letters) * 2 * DType.FLOAT16.itemsize
    return len(letters) * model.launch_us + moved / (model.read_bytes * problem.caps.likely_units)


def portable_us(problem: AttentionProblem) -> float:
    """Return the microseconds that the portable kernel is expected to take, which copies nothing."""
    caps, each = problem.caps, problem.each
    return min((tiled.microseconds(caps, each, tile) for tile in tiled.legal_tiles(caps, each)), default=inf)


def _times(problem: AttentionProblem) -> dict[AttentionTile, float]:
    """Return the microseconds that tiles are expected to take, copies included."""
    caps, each, copies = problem.caps, problem.each, copying_us(problem)
    return {tile: copies + microseconds(caps, each, tile) for tile in legal_tiles(caps, each)}


def in_rows(plan: AttentionPlan) -> AttentionPlan:
    """Return the plan behind copies of Q, K and V whose elements are apart, which it launches."""
    places, reads = dict(plan.problem.places), dict(plan.reads)
    for letter in copied(plan.problem):
        shape, name = _rows(plan.problem, letter), f"{letter.lower()}_in"
        batch, head, row, element = (places.pop(f"{letter}{axis}") for axis in "BHSD")
        rows = plan.k.scratch(shape, reads[name].dtype)
        steps = row_major(shape)
        first = Strides((batch, head, row, element), places[f"{letter}0"])
        launch_move(plan.k, reads[name], rows, shape, first, Strides(steps))
        places |= {f"{letter}0": 0, f"{letter}B": steps[0], f"{letter}H": steps[1], f"{letter}S": steps[2]}
        reads[name] = rows
    unusual = {name: value for name, value in plan.unusual.items() if name != "apart"}
    problem = replace(plan.problem, places=tuple(places.items()))
    if problem.apart:
        unusual["apart"] = problem.apart
    return replace(plan, problem=problem, reads=reads, unusual=unusual)


class MatrixAttention(Algorithm[AttentionProblem, AttentionPlan, AttentionTile]):
    """Subgroups multiply tiles of 16 queries."""

    name = "attention_matrix"

    def why_not(self, problem: AttentionProblem) -> str | None:
        """Refuse all but fp16 with rows at multiples of 16 bytes, unless copies to such rows pay."""
        if not SPECIAL.present(problem.caps):
            return "the device has no matrix units, or the kernel is wrong there"
        if not problem.in_fp16:
            return "it is not in fp16"
        if not problem.lies_in(WIDE):
            return "its heads do not lie at multiples of 16 bytes"
        times = _times(problem) if copied(problem) else {}
        if times and min(times.values()) >= portable_us(problem):
            return "copying its heads to rows takes longer than the portable kernel"
        return None

    def candidates(self, problem: AttentionProblem) -> Sequence[Candidate]:
        us = _times(problem)
        return [Candidate(tile, us[tile]) for tile in sorted(us, key=us.__getitem__)]

    def launch(self, plan: AttentionPlan, tile: AttentionTile) -> None:
        """Launch a work-group for each block of a head's queries that a tile has room for, behind copies to rows."""
        plan = in_rows(plan)
        k, p = plan.k, plan.problem
        blocks = -(-p.each.queries // tile.queries)
        groups = prod(p.each.lead) * blocks
        variant: dict[str, Any] = {
            "warps": tile.warps, "slices": tile.slices, "keys": tile.keys, "depth": chunks(p.each.depth),
            "width": chunks(p.each.width), **plan.unusual,
        }
        if tile.staged:
            unscaled = plan.scale > 0 and not plan.softcap and "mask" not in plan.reads
            variant |= {"staged": True, "query_tiles": tile.query_tiles, "unscaled": unscaled}
        k.launch(
            "attention_matrix", reads=plan.reads, writes={"y": plan.y},
            ints={**dict(p.places), "BLOCKS": blocks, "GROUPS": groups}, floats=plan.numbers(log(2)),
            variant=variant, grid=(max(1, min(groups, k.caps.max_grid[0])), 1, 1),
            local=(SUBGROUP, tile.warps, tile.slices),
        )
