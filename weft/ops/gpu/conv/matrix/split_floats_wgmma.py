"""Convolution in fp32 on Hopper's warpgroup matrix instructions: `split_floats.py`, but split in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array
from weft.core.graph.tensor import TensorSpec
from weft.kernels.chooser import Algorithm, Candidate, candidates_of
from weft.kernels.cost_model import Effort
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.launch import PIECE
from weft.kernels.special import register_kernels, register_special
from weft.ops.gpu.conv.matrix import split_floats
from weft.ops.gpu.conv.matrix.halves import (
    ACTIVATION_BITS,
    LANES,
    LOW_BITS,
    SIDE,
    by_taps,
    split_weights,
    truncation,
)
from weft.ops.gpu.conv.matrix.split_floats import SplitFigures, is_much, scales_back
from weft.ops.gpu.conv.matrix.warpgroups import (
    FAILED,
    NO_WARPGROUPS,
    RASTER,
    REGISTERS,
    RESERVED,
    SHARED,
    STEP,
    Warpgroups,
    within_limit,
)
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem

NAME = "conv_split_wgmma"
LARGE = 3
"""The first of the cases of `split_floats` that has enough work for warpgroups."""


@dataclass(frozen=True)
class SplitWgmmaFigures(AlgorithmFigures, section="conv_split_wgmma"):
    """How tiles compare, in units of their own, and what the best one costs."""

    step_columns: int
    """Columns that a step takes longer than its own columns."""
    store_columns: int
    """Columns that storing a row of sums takes longer than its own columns."""
    store: float
    """Time of a sum that it stores."""
    three_planes: float
    """Factor for weights in three planes."""
    alone: float
    """Factor for a warpgroup that has a unit to itself."""
    cost: float
    """Its share of the portable kernel's time."""


SPECIAL = register_special(
    NAME,
    "convolutions of split fp32 by warpgroups",
    claimed=lambda caps: split_floats.SPECIAL.present(caps) and caps.has_warpgroups,
    cases=lambda: split_floats.cases()[LARGE:],
    template="conv_split_wgmma",
)
SMALL = register_kernels(within_limit(SPECIAL))


@dataclass(frozen=True)
class SplitWgmmaTile(Warpgroups):
    """How a work-group divides its work: `wm` x `wz` warpgroups, each with 64 pixels and `cols` columns.

    `wz` of them take turns in K and are summed at the end. `stages` buffers hold what each round reads of the
    weights: `planes` are 2, hi and lo, or 3 with hi / 2^11 besides, by which a step's products all go into one sum.
    """

    wm: int
    wz: int
    cols: int
    stages: int
    planes: int

    def registers(self, pointwise: bool) -> int:
        """Return the registers of an item, about: its sums, operands and addresses."""
        return min(self.cols + (80 if pointwise else 120), 255)

    def shared_bytes(self) -> int:
        """Return the bytes of work-group memory."""
        return 2 * STEP * self.cols * self.planes * self.wz * self.stages

    def at_a_time(self, pointwise: bool) -> int:
        """Return the work-groups that fit a multiprocessor's memory and registers."""
        registers = self.registers(pointwise) * self.items
        return max(min(SHARED // (self.shared_bytes() + RESERVED), REGISTERS // registers), 1)


TILES = (
    SplitWgmmaTile(2, 1, 128, 3, 2),
    SplitWgmmaTile(1, 1, 128, 3, 2),
    SplitWgmmaTile(2, 1, 128, 3, 3),
    SplitWgmmaTile(1, 2, 128, 3, 2),
    SplitWgmmaTile(2, 1, 96, 3, 2),
    SplitWgmmaTile(2, 1, 64, 4, 2),
    SplitWgmmaTile(2, 1, 64, 4, 3),
    SplitWgmmaTile(1, 1, 64, 4, 2),
    SplitWgmmaTile(1, 1, 64, 3, 3),
    SplitWgmmaTile(1, 2, 64, 3, 2),
    SplitWgmmaTile(1, 1, 32, 4, 2),
    SplitWgmmaTile(1, 2, 32, 4, 2),
)


def tiles(caps: DeviceCaps, channels: int, depth: int) -> list[SplitWgmmaTile]:
    """Return the tiles that fit the device, so many output channels, and so many elements along K."""
    steps, most = -(-depth // STEP), caps.local_memory if NAME in caps.without else SHARED
    return [
        t
        for t in TILES
        if t.items <= caps.max_local_items
        and t.shared_bytes() <= most
        and t.cols < 2 * max(channels, 17)
        and steps >= 2 * t.wz - 1
    ]


def choose_tile(caps: DeviceCaps, pixels: int, channels: int, depth: int, pointwise: bool) -> SplitWgmmaTile:
    """Return the fastest tile by the model."""
    return min(tiles(caps, channels, depth), key=partial(_time, caps, pixels, channels, depth, pointwise))


def _time(caps: DeviceCaps, pixels: int, channels: int, depth: int, pointwise: bool, tile: SplitWgmmaTile) -> float:
    """Return the time of a tile by the model: waves over all multiprocessors, each of its steps and its stores."""
    known, steps = caps.model.of(SplitWgmmaFigures), -(-depth // STEP)
    groups = -(-pixels // tile.rows) * -(-channels // tile.cols)
    side_by_side = min(tile.at_a_time(pointwise), -(-groups // caps.compute_units))
    waves = -(-groups // (caps.compute_units * side_by_side))
    warpgroups = tile.wm * tile.wz * side_by_side
    step = float(tile.cols + known.step_columns)
    step *= known.three_planes if tile.planes == 3 else 1.0
    step *= known.alone if warpgroups == 1 else 1.0
    stored = known.store * tile.wz * (tile.cols + known.store_columns)
    return waves * warpgroups * (step * -(-steps // tile.wz) + stored)


def pack_planes(weight: Array, cols: int, planes: int, turns: int) -> Array:
    """Return split weights as [tile of columns][step][plane][column][64 along K], steps a multiple of `turns`.

    Columns, and each sixteen elements along K, are ordered so that a work-item gets four adjacent channels. The eight
    pieces of a column are swizzled: piece c lies at c xor (column mod 8).
    """
    rows = by_taps(weight)
    co, depth = rows.shape
    high, low = split_weights(rows, truncation(STEP, depth), LOW_BITS if planes == 2 else 0)
    steps, across = -(-depth // (STEP * turns)) * turns, -(-co // cols)
    full = np.zeros((planes, across * cols, steps * STEP), np.float16)
    full[0, :co, :depth], full[1, :co, :depth] = high, low
    if planes == 3:
        full[2] = np.ldexp(full[0], -LOW_BITS)
    full = full.reshape(planes, -1, SIDE, steps * STEP // SIDE, SIDE)[:, :, LANES][..., LANES]
    pieces = full.reshape(planes, across, cols, steps, STEP // PIECE, PIECE).transpose(1, 3, 0, 2, 4, 5)
    column, piece = np.arange(cols)[:, None], np.arange(STEP // PIECE)[None]
    return np.ascontiguousarray(pieces[:, :, :, column, piece ^ (column % 8)]).reshape(-1)


class SplitWgmmaConv(Algorithm[ConvProblem, ConvPlan, SplitWgmmaTile]):
    """Warpgroups multiply activations that they hold in registers."""

    name = NAME

    def why_not(self, problem: ConvProblem) -> str | None:
        """Require the instructions."""
        if not problem.caps.has_warpgroups:
            return NO_WARPGROUPS
        if not split_floats.SPECIAL.present(problem.caps):
            return "the precision or the device does not let matrix units multiply fp32 as sums of halves"
        if not (SPECIAL.present(problem.caps) or SMALL.present(problem.caps)):
            return FAILED
        return None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tiles; they cost little if there is much work, and half of the units have some."""
        p, caps = problem, problem.caps
        time = partial(_time, caps, p.pixels, p.channels_out, p.depth, p.pointwise)
        legal = tiles(caps, p.channels_out, p.depth)
        best = choose_tile(caps, p.pixels, p.channels_out, p.depth, p.pointwise)
        filling = p.tiles(best.rows, best.cols) >= caps.compute_units // 2 and is_much(p)
        cost = caps.model.of(SplitWgmmaFigures).cost if filling else caps.model.of(SplitFigures).little_cost
        return candidates_of([best, *legal], time, cost)

    def effort(self, problem: ConvProblem, tile: SplitWgmmaTile) -> Effort:
        p = problem
        return Effort(
            on_matrix_units=True, groups=p.tiles(tile.rows, tile.cols), items=tile.items,
            registers=tile.registers(p.pointwise), shared=tile.shared_bytes(), rows=tile.rows,
            columns=tile.cols, rounds=-(-p.depth // (STEP * tile.wz)), depth=STEP, slices=tile.wz,
            read=p.staged(tile.rows, tile.cols, p.depth), moved=p.moved,
        )

    def launch(self, plan: ConvPlan, tile: SplitWgmmaTile) -> None:
        """Launch the implicit GEMM: pixels times output channels, over taps and input channels."""
        k, p = plan.k, plan.problem
        pack = plan.packing(pack_planes, tile.cols, tile.planes, tile.wz)
        depth, columns = p.taps * -(-p.channels_in // PACK) * PACK, -(-p.channels_out // tile.cols) * tile.cols
        size = tile.planes * columns * -(-depth // (STEP * tile.wz)) * tile.wz * STEP
        key = f"split_wgmma.{tile.cols}.{tile.planes}.{tile.wz}"
        packed = k.constant(key, pack, spec=TensorSpec((size,), DType.FLOAT16))
        tiles_m, tiles_n = -(-p.pixels // tile.rows), -(-p.channels_out // tile.cols)
        k.launch(
            "conv_split_wgmma", reads={"x": plan.x, "w": packed, "s": scales_back(plan), **plan.bias_vector()},
            writes={"y": plan.y},
            ints={
                **p.constants, "C4": p.blocks_in, "ROUNDS": -(-p.depth // (STEP * tile.wz)),
                "PIXELS": p.pixels, "COUNT": p.blocks, "TILES_M": tiles_m, "TILES_N": tiles_n,
            },
            variant={
                "wm": tile.wm, "wz": tile.wz, "cols": tile.cols, "stages": tile.stages, "planes": tile.planes,
                "raster": RASTER, "pointwise": p.pointwise,
                "scale": str(2.0**-ACTIVATION_BITS), "low": str(2.0**-LOW_BITS),
            },
            grid=(min(tiles_m * tiles_n, k.caps.max_grid[0]), 1, 1), local=(tile.items, 1, 1),
        )
