"""Convolution on Hopper's warpgroup matrix instructions: fp16 products summed in fp32, steps of 64 along K."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from weft.core.graph.layout import PACK, Array
from weft.kernels.algorithms import Algorithm, Candidate, candidates_of
from weft.kernels.launch import PIECE, WARPGROUP_MEMORY, DeviceCaps
from weft.kernels.special import Case, SpecialKernel, register_special
from weft.ops.gpu.conv.cases import conv_case
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem
from weft.ops.gpu.conv.sum_parts import (
    PARTS,
    InParts,
    Sums,
    Work,
    better,
    by_turns,
    promising,
    tile_and_parts,
    time_of,
)

GROUP = 128
"""Items of a warpgroup."""
ROWS = 64
"""Rows of sums of a warpgroup."""
STEP = 64
"""Elements along K of a step: 128 bytes, the widest that is swizzled."""
RASTER = 8
"""Tiles of rows that go through the columns together, so that what they read stays in the cache."""
SHARED = WARPGROUP_MEMORY
"""Bytes of work-group memory of a multiprocessor; it keeps a KiB for each group."""
RESERVED = 1 << 10
WIDTHS = (256, 128, 64, 32)
"""Columns of a tile besides those that divide the channels evenly."""
UNIT = 16
"""Tiles have a multiple of so many columns."""
FEWEST, MOST = 3, 8
"""Stages: two are read or about to be, the others are under way."""
SHORT = 6
"""Steps up to which a tile should share its multiprocessor with two others (of 48 problems tuned on an H200)."""
SLICES, SLICED = (2,), (64, 32, 16)
"""Sets of warpgroups that may share the steps, and columns that they then have, besides even parts."""
PROMISING = 3
"""Tiles that are offered for each number of parts of K."""


COST, ILL_FILLED = 0.3, 0.6
"""The usual share of the portable kernel's time, and that where most units wait."""


@dataclass(frozen=True)
class WgmmaTile:
    """How a work-group divides its work: `wm` x `wz` warpgroups, each with 64 pixels and `cols` columns.

    `wz` of them take turns in K and are summed at the end; each set of `wm` has `stages` buffers of steps.
    """

    wm: int
    cols: int
    stages: int
    wz: int = 1

    @property
    def rows(self) -> int:
        """Return the pixels of a group."""
        return ROWS * self.wm

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return GROUP * self.wm * self.wz

    def slots(self, steps: int) -> int:
        """Return the buffers of a set that are used: none twice where all steps are under way from the start."""
        rounds = -(-steps // self.wz)
        return min(self.stages, max(rounds, 1)) if rounds <= self.stages - 2 else self.stages

    def shared_bytes(self, steps: int) -> int:
        """Return the bytes of work-group memory."""
        return 2 * STEP * self.wz * self.slots(steps) * (self.rows + self.cols)

    def at_a_time(self, steps: int) -> int:
        """Return the groups that a multiprocessor holds, by its memory and its registers."""
        registers = (self.cols // 2 + 72) * self.items
        return max(min(SHARED // (self.shared_bytes(steps) + RESERVED), 65536 // registers), 1)


def _cases() -> Sequence[Case]:
    """Return convolutions with tiles for most units: few channels and many, with and without taps, uneven edges.

    The last ones have so few pixels that sets of warpgroups share the steps, and groups too where these are many.
    """
    shapes = (
        ((2, 3, 129, 110), (40, 3, 7, 7), 2),
        ((1, 16, 96, 81), (72, 16, 1, 1), 1),
        ((2, 20, 60, 61), (24, 20, 3, 3), 1),
        ((1, 264, 65, 67), (96, 264, 3, 3), 1),
        ((1, 72, 10, 9), (520, 72, 3, 3), 1),
        ((1, 520, 9, 9), (136, 520, 3, 3), 1),
    )
    return [conv_case(x, w, stride) for x, w, stride in shapes]


def within_limit(kind: SpecialKernel, present: Callable[[DeviceCaps], bool]) -> SpecialKernel:
    """Return the kind that takes another's place where that is wrong: the same in the work-group memory a device names.

    `present` tells whether the hardware is there at all.
    """
    name = f"{kind.name}_small"

    def there(caps: DeviceCaps) -> bool:
        return present(caps) and kind.name in caps.without and name not in caps.without

    there.__module__ = kind.module  # by which the process that tests it finds who registers it
    return replace(
        kind,
        name=name,
        title=f"{kind.title} within the limit of work-group memory",
        present=there,
        disable=lambda caps: replace(caps, without=caps.without | {name}),
    )


def _has_units(caps: DeviceCaps) -> bool:
    return caps.warpgroup_units and caps.matrix_units


SPECIAL = register_special(
    SpecialKernel(
        "conv_wgmma",
        "convolutions by warpgroups",
        present=lambda caps: _has_units(caps) and "conv_wgmma" not in caps.without,
        disable=lambda caps: replace(caps, without=caps.without | {"conv_wgmma"}),
        cases=_cases,
        template="conv_wgmma",
        seconds=1.7,
    )
)
SMALL = register_special(within_limit(SPECIAL, _has_units))


def steps_of(taps: int, channels: int) -> int:
    """Return the steps along K: taps times input channels in whole blocks."""
    return -(-taps * -(-channels // PACK) * PACK // STEP)


def tiles(caps: DeviceCaps, pixels: int, channels: int, steps: int, parts: int = 1) -> tuple[WgmmaTile, ...]:
    """Return the tiles for a problem, those first that take the least by a model.

    They have even parts of the channels or a round number as columns, for one to three groups a unit. Where they
    make fewer groups than there are multiprocessors, sets of warpgroups may share the steps of each. There are
    `parts` groups of so many steps for each tile.
    """
    least = -(-channels // WIDTHS[0])
    even = [-(-channels // (UNIT * tiled)) * UNIT for tiled in (least, least + 1)]
    room = _room(caps)
    widest = ((room - RESERVED) // (2 * STEP * FEWEST) - ROWS) // UNIT * UNIT
    widths = [w for w in dict.fromkeys((*even, *WIDTHS, min(widest, WIDTHS[0]))) if w < channels + UNIT]
    found: dict[WgmmaTile, None] = {}
    for cols in sorted(widths or [UNIT], reverse=True):
        for wm in (2, 1):
            for groups in (1, 2, 3):
                stages = _stages(wm, cols, steps, room // groups)
                if stages >= FEWEST:
                    found[WgmmaTile(wm, cols, stages)] = None
    for cols in dict.fromkeys(
        (*(w for w in widths if w <= SLICED[0]), *(w for w in SLICED if w < channels + UNIT))
    ):
        if -(-pixels // ROWS) * -(-channels // cols) * parts <= caps.compute_units:
            for wz in SLICES:
                stages = _stages(1, cols, -(-steps // wz), room // wz)
                if stages >= FEWEST and steps >= FEWEST * wz:
                    found[WgmmaTile(1, cols, stages, wz)] = None
    return tuple(sorted(found, key=partial(_cost, caps, pixels, channels, steps, parts)))


def work_of(pixels: int, channels: int, steps: int, tile: WgmmaTile) -> Work:
    """Return what a tile leaves to do, for `sum_parts`."""
    groups = -(-pixels // tile.rows) * -(-channels // tile.cols)
    read = 2 * STEP * steps * (tile.rows + tile.cols)
    return Work(groups, -(-steps // tile.wz), read, pixels * channels)


def _room(caps: DeviceCaps) -> int:
    """Return the bytes of work-group memory that a group and what is kept for it may take.

    A driver that says 48 KiB lets a kernel have all that a multiprocessor has, unless the self-test found it does not.
    """
    return caps.local_memory + RESERVED if SPECIAL.name in caps.without else SHARED


def _stages(wm: int, cols: int, steps: int, room: int) -> int:
    """Return how many stages fit, but not more than are of use."""
    return min((room - RESERVED) // (2 * STEP * (ROWS * wm + cols)), MOST, max(steps + 2, FEWEST))


def _cost(caps: DeviceCaps, pixels: int, channels: int, steps: int, parts: int, tile: WgmmaTile) -> float:
    """Return what a tile takes by a model: rounds over all multiprocessors, and what each item stores.

    A tile reaches the more of the full rate the less it loads for each product; and of groups that share a
    multiprocessor one stores its sums while another multiplies. Sets that share steps work side by side, and
    what they have is added at the end.
    """
    groups = -(-pixels // tile.rows) * -(-channels // tile.cols) * parts
    side_by_side = min(tile.at_a_time(steps), -(-groups // caps.compute_units))
    rounds = -(-groups // (caps.compute_units * side_by_side))
    loaded = 1 / tile.rows + 1 / tile.cols
    each = tile.rows * tile.cols * (0.6 + 40 * loaded) * -(-steps // tile.wz)
    each += tile.rows * (tile.cols + 64) * (2 + tile.wz)
    waiting = 1.0 if side_by_side > 1 else 1.1
    if steps <= SHORT:
        # The first step's wait for memory is not small any more, unless other groups multiply meanwhile.
        waiting += {1: 1.0, 2: 0.5}.get(side_by_side, 0.0) / -(-steps // tile.wz)
    return rounds * side_by_side * each * waiting


def pack_weights(weight: Array, cols: int, each: int) -> Array:
    """Return weights (co, ci, *kernel) as [tile of columns][step][column][64 along K], padded with zeros.

    Columns are in the order in which an item gets `each` channels in a row; the eight pieces of a column are
    swizzled: piece c lies at c xor (column mod 8).
    """
    co, ci, taps = weight.shape[0], weight.shape[1], prod(weight.shape[2:])
    padded, steps, across = -(-ci // PACK) * PACK, steps_of(taps, ci), -(-co // cols)
    full = np.zeros((across * cols, steps * STEP), weight.dtype)
    full[:, : taps * padded].reshape(-1, taps, padded)[:co, :, :ci] = weight.reshape(co, ci, taps).transpose(0, 2, 1)
    step, column, piece = np.ogrid[:steps, :cols, : STEP // PIECE]
    # Of every eight columns an item has 2t and 2t + 1.
    c = column % (PACK * each)
    from_column = column - c + each * (c % 8 // 2) + c // 8 * 2 + c % 2
    taken = (from_column * steps + step) * (STEP // PIECE) + (piece ^ (column % 8))
    pieces = full.view(f"V{PIECE * weight.itemsize}").reshape(across, -1)
    packed: Array = pieces.take(taken.reshape(-1), axis=1).reshape(-1).view(weight.dtype)
    return packed


class WgmmaConv(Algorithm[ConvProblem, ConvPlan, "WgmmaTile | InParts[WgmmaTile]"]):
    """Warpgroups multiply what lies in work-group memory."""

    name = "conv_wgmma"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Ask for the instructions, and pixels that lie as rows of channels."""
        if not (SPECIAL.present(problem.caps) or SMALL.present(problem.caps)):
            return "the device has no matrix instructions of warpgroups, or they are wrong"
        return None if problem.rows else "its pixels do not lie as rows of channels"

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tiles for a problem, in parts and whole; with work for a fourth of the units they are fast."""
        caps, pixels, channels = problem.caps, problem.pixels, problem.channels_out
        steps = steps_of(problem.taps, problem.channels_in)
        whole, work = tiles(caps, pixels, channels, steps), partial(work_of, pixels, channels, steps)
        parted = []
        for parts in PARTS:
            made = tiles(caps, pixels, channels, -(-steps // parts), parts)
            parted += [InParts(t, parts) for t in made if parts in work(t).possible_parts(caps)][:PROMISING]
        parted = promising(caps, parted, whole, work)
        best = better(caps, whole[0], parted, work)
        tile, parts = tile_and_parts(best)
        filling = work(tile).groups * tile.wz * parts >= caps.compute_units // 4
        every = [best, *by_turns(parted, whole)]
        return candidates_of(every, partial(time_of, caps, work), COST if filling else ILL_FILLED)

    def launch(self, plan: ConvPlan, tile: WgmmaTile | InParts[WgmmaTile]) -> None:
        """Launch the implicit GEMM: pixels times output channels, over taps and input channels."""
        k, p, (chosen, parts) = plan.k, plan.problem, tile_and_parts(tile)
        steps, rows = steps_of(p.taps, p.channels_in), k.rows(plan.x)
        assert rows is not None, "`why_not` asks for it"
        sums = Sums(plan, parts, -(-steps // chosen.wz))
        slots = chosen.slots(sums.ints["EACH"] * chosen.wz if parts > 1 else steps)
        each = PIECE if chosen.cols % (PACK * PIECE) == 0 and plan.lies_in_pieces(sums.target) else PACK
        packed = k.constant(f"wgmma.{chosen.cols}.{each}", partial(pack_weights, plan.weight, chosen.cols, each))
        tiles_m, tiles_n = -(-p.pixels // chosen.rows), -(-p.channels_out // chosen.cols)
        piece = PIECE if p.read_pieces else PACK
        k.launch(
            "conv_wgmma",
            reads={"x": plan.x, "w": packed, **sums.bias},
            writes={"y": sums.target},
            ints={
                **p.constants, "PIECES": -(-p.channels_in // piece), "STEPS": steps, "PIXELS": p.pixels,
                "COUNT": p.blocks, "TILES_M": tiles_m, "TILES_N": tiles_n, "X_ROW": rows[0] // PACK, **sums.ints,
            },
            variant={
                "wm": chosen.wm, "wz": chosen.wz, "cols": chosen.cols, "stages": chosen.stages, "slots": slots,
                "raster": RASTER, "pointwise": p.pointwise, "wide": p.read_pieces, "each": each, **sums.variant,
            },
            grid=(min(tiles_m * tiles_n, k.caps.max_grid[0]), 1, parts),
            local=(chosen.items, 1, 1),
            epilogue=sums.epilogue,
        )  # fmt: skip
        sums.finish()
