"""Convolution on Hopper's warpgroup matrix instructions: fp16 products summed in fp32, steps of 64 along K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod

import numpy as np

from weft.core.graph.layout import PACK, Array
from weft.core.graph.tensor import TensorSpec
from weft.kernels.cost_model import Effort
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.launch import PIECE
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.self_test_cases import SelfTestCase
from weft.kernels.special import register_kernels, register_special
from weft.ops.gpu.conv.cases import conv_case
from weft.ops.gpu.conv.gemm.ranking import ImplicitGemm
from weft.ops.gpu.conv.gemm.split_k import PARTS, InParts, Sums, TileWork, promising, tile_and_parts
from weft.ops.gpu.conv.matrix.warpgroups import (
    FAILED,
    NO_WARPGROUPS,
    RASTER,
    REGISTERS,
    RESERVED,
    ROWS,
    SHARED,
    STEP,
    Warpgroups,
    within_limit,
)
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem

WIDTHS = (256, 128, 64, 32)
"""Columns of a tile besides those that divide the channels evenly."""
UNIT = 16
"""Tiles have a multiple of so many columns."""
FEWEST_STAGES, MOST_STAGES = 3, 8
"""Stages: two are read or about to be, the others are under way."""
SLICES, SLICED = (2,), (64, 32, 16)
"""Sets of warpgroups that may share the steps, and columns that they then have, besides even parts."""
PROMISING = 3
"""Tiles that are offered for each number of parts of K."""


@dataclass(frozen=True)
class WgmmaFigures(AlgorithmFigures, section="conv_wgmma"):
    """How tiles compare, in units of their own, and what the best one costs."""

    short_steps: int
    """With at most so many steps, a tile should share its unit with two others."""
    store_columns: int
    """Columns that storing a row of sums takes longer than its own columns."""
    product: float
    """Time of a product."""
    read: float
    """Time of an operand that it reads."""
    store: float
    """Time of a sum that it stores."""
    alone: float
    """Factor for a work-group that has a unit to itself, so that nobody multiplies while it stores."""
    first_waits: Sequence[float]
    """With few steps, the share of its time that a work-group waits for the first one, by how many share its unit."""
    cost: float
    """Its share of the portable kernel's time."""
    little_cost: float
    """The same where there is little work, so that units wait."""


@dataclass(frozen=True)
class WgmmaTile(Warpgroups):
    """How a work-group divides its work: `wm` x `wz` warpgroups, each with 64 pixels and `cols` columns.

    `wz` of them take turns in K and are summed at the end; each set of `wm` has `stages` buffers of steps. `teams` of
    `wm` warpgroups have a tile each, as so many groups would that share a multiprocessor; the rest is said of one team.
    """

    wm: int
    cols: int
    stages: int
    wz: int = 1
    teams: int = 1

    def __repr__(self) -> str:
        """Return what tuning tables call it, which does not tell of a single team."""
        shown = (f"{f.name}={getattr(self, f.name)}" for f in fields(self) if f.name != "teams" or self.teams > 1)
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def registers(self) -> int:
        """Return the registers of an item, about: its sums, and 72 for operands and addresses."""
        return self.cols // 2 + 72

    def slots(self, steps: int) -> int:
        """Return the buffers of a set that are used: with few steps, each step gets its own."""
        rounds = -(-steps // self.wz)
        return min(self.stages, max(rounds, 1)) if rounds <= self.stages - 2 else self.stages

    def shared_bytes(self, steps: int) -> int:
        """Return the bytes of work-group memory."""
        return 2 * STEP * self.wz * self.slots(steps) * (self.rows + self.cols)

    def at_a_time(self, caps: DeviceCaps, steps: int) -> int:
        """Return the tiles in work on a multiprocessor: those of a group, or of the groups that fit."""
        if self.teams > 1 or self.is_alone(caps, steps):
            return self.teams
        return max(min(SHARED // (self.shared_bytes(steps) + RESERVED), REGISTERS // self.all_registers), 1)

    def is_alone(self, caps: DeviceCaps, steps: int) -> bool:
        """Tell whether a group has a multiprocessor to itself, because of its memory."""
        return 0 < caps.shared_alone <= self.shared_bytes(steps)

    @property
    def all_registers(self) -> int:
        """Return the registers of a team."""
        return self.registers * self.items


def _cases() -> Sequence[SelfTestCase]:
    """Return convolutions with tiles for most units: few channels and many, with and without taps, uneven edges.

    The third has more tiles than there are units, for teams. The fourth and fifth have so few pixels that sets of
    warpgroups share the steps; the fifth has so many that groups do, too. The last two are of volumes, in pieces of
    four channels and of eight.
    """
    shapes = (
        ((2, 3, 129, 110), (40, 3, 7, 7), 2),
        ((1, 16, 96, 81), (72, 16, 1, 1), 1),
        ((2, 40, 68, 67), (24, 40, 3, 3), 1),
        ((1, 264, 65, 67), (96, 264, 3, 3), 1),
        ((1, 72, 10, 9), (520, 72, 3, 3), 1),
        ((1, 520, 9, 9), (136, 520, 3, 3), 1),
        ((1, 17, 7, 40, 41), (72, 17, 3, 3, 3), 1),
        ((2, 24, 5, 30, 31), (72, 24, 3, 3, 3), 1),
    )
    return [conv_case(x, w, stride) for x, w, stride in shapes]


SPECIAL = register_special(
    "conv_wgmma",
    "convolutions by warpgroups",
    claimed=lambda caps: caps.has_warpgroups and caps.multiplies(HALVES),
    cases=_cases,
    template="conv_wgmma",
    seconds=2.2,
)
SMALL = register_kernels(within_limit(SPECIAL))


def steps_along(taps: int, channels: int) -> int:
    """Return the steps along K: taps times input channels in whole blocks."""
    return -(-taps * -(-channels // PACK) * PACK // STEP)


def steps_of(problem: ConvProblem) -> int:
    """Return the steps along K of a problem."""
    return steps_along(problem.taps, problem.channels_in)


def tiles(caps: DeviceCaps, pixels: int, channels: int, steps: int, parts: int = 1) -> tuple[WgmmaTile, ...]:
    """Return the tiles for a problem, the fastest by a model first.

    Their columns are a round number or an even part of the channels, and one to three groups fit a multiprocessor;
    where the device keeps them apart, they are teams of one group. If there are fewer groups than multiprocessors, sets
    of warpgroups may share the steps of a tile. Each tile has `parts` work-groups of so many steps.
    """
    least = -(-channels // WIDTHS[0])
    even = [-(-channels // (UNIT * tiled)) * UNIT for tiled in (least, least + 1)]
    shared = _most_shared(caps)
    widest = ((shared - RESERVED) // (2 * STEP * FEWEST_STAGES) - ROWS) // UNIT * UNIT
    widths = [w for w in dict.fromkeys((*even, *WIDTHS, min(widest, WIDTHS[0]))) if w < channels + UNIT]
    found: dict[WgmmaTile, None] = {}
    for cols in sorted(widths or [UNIT], reverse=True):
        for wm in (2, 1):
            for groups in (1, 2, 3):
                stages = _stages(wm, cols, steps, shared // groups)
                if stages >= FEWEST_STAGES:
                    found[_apart(caps, pixels, channels, steps, parts, WgmmaTile(wm, cols, stages), groups)] = None
    for cols in dict.fromkeys(
        (*(w for w in widths if w <= SLICED[0]), *(w for w in SLICED if w < channels + UNIT))
    ):
        if -(-pixels // ROWS) * -(-channels // cols) * parts <= caps.compute_units:
            for wz in SLICES:
                stages = _stages(1, cols, -(-steps // wz), shared // wz)
                if stages >= FEWEST_STAGES and steps >= FEWEST_STAGES * wz:
                    found[WgmmaTile(1, cols, stages, wz)] = None
    return tuple(sorted(found, key=partial(_cost, caps, pixels, channels, steps, parts)))


def _apart(
    caps: DeviceCaps, pixels: int, channels: int, steps: int, parts: int, tile: WgmmaTile, groups: int
) -> WgmmaTile:
    """Return a tile of which `groups` fit a multiprocessor: in teams, if it would run alone beside many more."""
    teams = min(groups, REGISTERS // tile.all_registers)
    few = -(-pixels // tile.rows) * -(-channels // tile.cols) <= caps.compute_units
    return tile if few or parts > 1 or teams < 2 or not tile.is_alone(caps, steps) else replace(tile, teams=teams)


def _most_shared(caps: DeviceCaps) -> int:
    """Return the bytes of work-group memory that a group may take, including the reserved ones.

    A driver that reports 48 KiB lets a kernel use all of a multiprocessor, unless the self-test found otherwise.
    """
    return caps.local_memory + RESERVED if SPECIAL.name in caps.without else SHARED


def _stages(wm: int, cols: int, steps: int, shared: int) -> int:
    """Return how many stages fit, but no more than are useful."""
    return min((shared - RESERVED) // (2 * STEP * (ROWS * wm + cols)), MOST_STAGES, max(steps + 2, FEWEST_STAGES))


def _cost(caps: DeviceCaps, pixels: int, channels: int, steps: int, parts: int, tile: WgmmaTile) -> float:
    """Return the time of a tile by a model: waves over all multiprocessors, plus the stores of each work-item.

    A tile that loads less for each product comes closer to the full rate. Of groups that share a multiprocessor, one
    stores its sums while another multiplies. Sets that share steps work side by side; their sums are added at the end.
    """
    known, groups = caps.model.of(WgmmaFigures), -(-pixels // tile.rows) * -(-channels // tile.cols) * parts
    side_by_side = min(tile.at_a_time(caps, steps), -(-groups // caps.compute_units))
    waves = -(-groups // (caps.compute_units * side_by_side))
    loaded = 1 / tile.rows + 1 / tile.cols
    each = tile.rows * tile.cols * (known.product + known.read * loaded) * -(-steps // tile.wz)
    each += tile.rows * (tile.cols + known.store_columns) * (known.store + tile.wz)
    waiting = 1.0 if side_by_side > 1 else known.alone
    waits = known.first_waits
    if steps <= known.short_steps and side_by_side <= len(waits):
        waiting += waits[side_by_side - 1] / -(-steps // tile.wz)
    return waves * side_by_side * each * waiting


def pack_weights(weight: Array, cols: int, each: int) -> Array:
    """Return weights (co, ci, *kernel) as [tile of columns][step][column][64 along K], padded with zeros.

    Columns are ordered so that a work-item gets `each` adjacent channels. The eight pieces of a column are swizzled:
    piece c lies at c xor (column mod 8).
    """
    co, ci, taps = weight.shape[0], weight.shape[1], prod(weight.shape[2:])
    padded, steps, across = -(-ci // PACK) * PACK, steps_along(taps, ci), -(-co // cols)
    full = np.zeros((across * cols, steps * STEP), weight.dtype)
    full[:, : taps * padded].reshape(-1, taps, padded)[:co, :, :ci] = weight.reshape(co, ci, taps).transpose(0, 2, 1)
    step, column, piece = np.ogrid[:steps, :cols, : STEP // PIECE]
    # A work-item has columns 2t and 2t + 1 of every eight.
    c = column % (PACK * each)
    from_column = column - c + each * (c % 8 // 2) + c // 8 * 2 + c % 2
    taken = (from_column * steps + step) * (STEP // PIECE) + (piece ^ (column % 8))
    pieces = full.view(f"V{PIECE * weight.itemsize}").reshape(across, -1)
    packed: Array = pieces.take(taken.reshape(-1), axis=1).reshape(-1).view(weight.dtype)
    return packed


class WgmmaConv(ImplicitGemm[WgmmaTile]):
    """Warpgroups multiply operands in work-group memory."""

    name = "conv_wgmma"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Require the instructions, and pixels that are rows of channels."""
        if not problem.caps.has_warpgroups:
            return NO_WARPGROUPS
        if not (SPECIAL.present(problem.caps) or SMALL.present(problem.caps)):
            return FAILED
        return None if problem.rows else "its pixels do not lie as rows of channels"

    def tiles(self, problem: ConvProblem) -> tuple[WgmmaTile | None, Sequence[WgmmaTile]]:
        every = tiles(problem.caps, problem.pixels, problem.channels_out, steps_of(problem))
        return next(iter(every), None), every

    def work(self, problem: ConvProblem, tile: WgmmaTile) -> TileWork:
        groups, steps = problem.tiles(tile.rows, tile.cols), steps_of(problem)
        read = 2 * STEP * steps * (tile.rows + tile.cols)
        return TileWork(groups, -(-steps // tile.wz), read, problem.pixels * problem.channels_out)

    def in_parts(self, problem: ConvProblem, whole: Sequence[WgmmaTile]) -> Sequence[InParts[WgmmaTile]]:
        """Return tiles in parts: those for a part of the steps may have other stages than those for all."""
        caps, work, found = problem.caps, partial(self.work, problem), list[InParts[WgmmaTile]]()
        for parts in PARTS:
            steps = -(-steps_of(problem) // parts)
            made = tiles(caps, problem.pixels, problem.channels_out, steps, parts)
            found += [InParts(t, parts) for t in made if parts in work(t).possible_parts(caps)][:PROMISING]
        return promising(caps, found, whole, work)

    def cost(self, problem: ConvProblem, first: WgmmaTile | InParts[WgmmaTile]) -> float:
        """Return a low cost if a fourth of the units have work."""
        tile, parts = tile_and_parts(first)
        known, wanted = problem.caps.model.of(WgmmaFigures), problem.caps.compute_units // 4
        filling = self.work(problem, tile).groups * tile.wz * parts >= wanted
        return known.cost if filling else known.little_cost

    def effort(self, problem: ConvProblem, tile: WgmmaTile | InParts[WgmmaTile]) -> Effort:
        p, (chosen, parts) = problem, tile_and_parts(tile)
        work, steps = self.work(p, chosen), -(-steps_of(p) // parts)
        return Effort(
            on_matrix_units=True,
            groups=work.groups * parts,
            items=chosen.items,
            registers=chosen.registers,
            shared=chosen.shared_bytes(steps),
            rows=chosen.rows,
            columns=chosen.cols,
            rounds=-(-work.rounds // parts),
            depth=STEP,
            slices=chosen.wz,
            read=p.staged(chosen.rows, chosen.cols, p.depth),
            moved=p.moved,
            parts=parts,
            results=work.stored,
            together=chosen.teams if chosen.teams > 1 or chosen.is_alone(p.caps, steps) else 0,
        )

    def reads_in_place(self, plan: ConvPlan) -> bool:
        """Tell whether it reads slices of volumes where they are: as rows, of whole pieces if it reads such."""
        p, stack = plan.problem, plan.stack
        rows = None if stack is None or p.pointwise else plan.k.rows(stack.volumes)
        if stack is None or rows is None:
            return False
        return not p.read_pieces or all(n % PIECE == 0 for n in (stack.blocks * PACK, *rows))

    def multiply(self, plan: ConvPlan, tile: WgmmaTile, sums: Sums) -> None:
        k, p = plan.k, plan.problem
        steps, rows = steps_of(p), k.rows(plan.x)
        assert rows is not None, "`why_not` asks for it"
        slots = tile.slots(sums.ints["EACH"] * tile.wz if sums.parts > 1 else steps)
        each = PIECE if tile.cols % (PACK * PIECE) == 0 and plan.lies_in_pieces(sums.target) else PACK
        pack = plan.packing(pack_weights, tile.cols, each)
        spec = TensorSpec((-(-p.channels_out // tile.cols) * tile.cols * steps * STEP,), p.weights)
        packed = k.constant(f"wgmma.{tile.cols}.{each}", pack, spec=spec)
        tiles_m, tiles_n = -(-p.pixels // tile.rows), -(-p.channels_out // tile.cols)
        # Teams go on to further tiles, each at its own pace: one that has stored its sums waits for no other.
        most = k.caps.compute_units if tile.teams > 1 else k.caps.max_grid[0]
        piece = PIECE if p.read_pieces else PACK
        x, ints, variant = plan.x, dict[str, int](), dict[str, int]()
        if plan.stack is not None:
            x, variant["volume"] = plan.stack.volumes, True
            ints = {**plan.stack.constants(), "SLICE_PIECES": plan.stack.blocks * PACK // piece}
        k.launch(
            "conv_wgmma", reads={"x": x, "w": packed, **sums.bias}, writes={"y": sums.target},
            ints={
                **p.constants, "PIECES": -(-p.channels_in // piece), "STEPS": steps, "PIXELS": p.pixels,
                "COUNT": p.blocks, "TILES_M": tiles_m, "TILES_N": tiles_n, "X_ROW": rows[0] // PACK,
                **ints, **sums.ints,
            },
            variant={
                "wm": tile.wm, "wz": tile.wz, "cols": tile.cols, "stages": tile.stages, "slots": slots,
                "raster": RASTER, "pointwise": p.pointwise, "wide": p.read_pieces, "each": each, "teams": tile.teams,
                **variant, **sums.variant,
            },
            grid=(min(tiles_m * tiles_n, most), 1, sums.parts), local=(tile.items * tile.teams, 1, 1),
            epilogue=sums.epilogue,
        )
