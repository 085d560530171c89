"""Convolution in fp32 on matrix units: the implicit GEMM on numbers split into two halves each (`halves.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.chooser import Algorithm, Candidate, candidates_of, waves
from weft.kernels.cost_model import Effort
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.matrix_shapes import HALVES
from weft.kernels.self_test_cases import SelfTestCase
from weft.kernels.source import SUBGROUP
from weft.kernels.special import register_special
from weft.ops.gpu.conv.cases import conv_case
from weft.ops.gpu.conv.matrix.halves import (
    ACTIVATION_BITS,
    LANES,
    LOW_BITS,
    SIDE,
    by_taps,
    split_weights,
    truncation,
    undoing,
)
from weft.ops.gpu.conv.matrix.staged import MatrixTile, effort_of, fitting, packed_size, with_most_reuse
from weft.ops.gpu.conv.matrix.warpgroups import STEP
from weft.ops.gpu.conv.problem import COMPUTED, ConvPlan, ConvProblem, vectors_spec
from weft.ops.gpu.conv.winograd import WINS


@dataclass(frozen=True)
class SplitFigures(AlgorithmFigures, section="conv_split"):
    """When fp32 on matrix units pays."""

    least_products: int
    """A convolution needs at least so many products."""
    cost: float
    """Its share of the portable kernel's time."""
    little_cost: float
    """The same where there is little work, so that units wait."""


@dataclass(frozen=True)
class SplitTile(MatrixTile):
    """A tile of `MatrixTile` with hi and lo of everything; 32 * sm * sn divides `rows` * kb and `columns` * kb."""

    def shared_bytes(self) -> int:
        """Return the bytes of work-group memory: staged tiles, and the sums of all slices but one."""
        staged = 8 * self.rows * (self.kb + 2) + 16 * PACK * self.kb * (self.columns // 8 + 1)
        return 2 * self.lz * staged + 4 * (self.lz - 1) * self.rows * self.columns


TILES = (
    SplitTile(2, 4, 4, 2, 1, 4),
    SplitTile(2, 4, 2, 2, 1, 4),
    SplitTile(2, 2, 4, 2),
    SplitTile(2, 2, 2, 2),
    SplitTile(2, 1, 2, 2),
    SplitTile(2, 1, 2, 2, 2),
    SplitTile(1, 1, 2, 2, 2),
    SplitTile(1, 1, 2, 2, 4, 4),
    SplitTile(1, 1, 1, 2, 8, 4),
    SplitTile(1, 1, 1, 1, 8, 4),
)
"""From the best reuse to the most parallelism."""


def cases() -> Sequence[SelfTestCase]:
    """Return uneven convolutions of enough work for matrix units."""
    shapes = (
        ((1, 13, 40, 41), (20, 13, 5, 5)),
        ((1, 24, 33, 32), (64, 24, 3, 3)),
        ((1, 516, 9, 9), (72, 516, 3, 3)),
        ((5, 36, 65, 64), (128, 36, 1, 1)),
        ((1, 16, 65, 65), (72, 16, 3, 3)),
        ((3, 68, 40, 40), (132, 68, 1, 1)),
    )
    return [conv_case(x, w, precision=Precision.NORMAL) for x, w in shapes]


SPECIAL = register_special(
    "conv_split",
    "convolutions of split fp32 on matrix units",
    claimed=lambda caps: caps.multiplies(HALVES) and caps.splits_products,
    withdraw=lambda caps: replace(caps, splits_products=False),
    cases=cases,
    template="conv_split",
    seconds=2.0,
)


def why_not_split(problem: ConvProblem) -> str | None:
    """Return why fp32 products may not be split here, or the packed weights do not fit an argument."""
    if problem.computed:
        return COMPUTED
    if not problem.ungrouped:
        return "it has groups or three dimensions"
    if not problem.split_products:
        return "the precision or the device does not let matrix units multiply fp32 as sums of halves"
    if not problem.in_fp32:
        return "it is not in fp32"
    if not problem.loads_vectors:
        return "its image is not packed, or is pooled as it is loaded"
    depth = problem.taps * (problem.channels_in + PACK) + 4 * STEP
    if not problem.whole or depth * (problem.channels_out + 128) * 6 > problem.caps.max_buffer_range:
        return "its weights exceed what one kernel argument may span"
    return None


def is_much(problem: ConvProblem) -> bool:
    """Tell whether there is enough work for matrix units to pay."""
    products = problem.pixels * problem.channels_out * problem.depth
    return products >= problem.caps.model.of(SplitFigures).least_products and problem.depth >= SIDE


def pack_weights(half: Array, tile: SplitTile) -> Array:
    """Return one half of split weights (rows along K) as [tile of columns][step][4 * kb along K][column], padded."""
    co, depth = half.shape
    step, tiles = PACK * tile.kb, -(-co // tile.columns)
    steps = -(-depth // step)
    full = np.zeros((tiles * tile.columns, steps * step), half.dtype)
    full[:co, :depth] = half
    full = full.reshape(-1, SIDE, steps * step)[:, LANES]
    return full.reshape(tiles, tile.columns, steps, step).transpose(0, 2, 3, 1)


def packed_weights(weight: Array, tile: SplitTile, truncates: bool) -> Array:
    """Return weights with hi and lo of a step side by side, as the logical array whose NC4HW4 form that is.

    `truncates` tells whether the matrix units are known to round toward zero.
    """
    rows = by_taps(weight)
    lost = truncation(PACK * tile.kb, rows.shape[1]) if truncates else None
    both = np.stack([pack_weights(half, tile) for half in split_weights(rows, lost)], axis=2)
    return both.reshape(1, -1, PACK).transpose(0, 2, 1)


def scales_back(plan: ConvPlan) -> Tensor:
    """Return a factor for each output channel that undoes the scaling of the weights."""
    spec = TensorSpec((1, plan.weight.shape[0], 1), DType.FLOAT32)
    undone = plan.packing(lambda weight: undoing(weight).reshape(1, -1, 1))
    return plan.k.constant("split.scale", undone, Layout.NC4HW4, spec)


class SplitConv(Algorithm[ConvProblem, ConvPlan, SplitTile]):
    """Subgroups multiply halves that the work-group stages."""

    name = "conv_split"

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        caps, legal = problem.caps, fitting(TILES, problem)
        best = with_most_reuse(legal, problem)
        if best is None:
            return []

        def time(tile: SplitTile) -> float:
            return waves(caps.model, problem.tiles(tile.rows, tile.columns), tile.items, caps.compute_units)

        known = caps.model.of(SplitFigures)
        # The model of Winograd's method, which competes, is as far off here as there.
        cost = known.cost / WINS if is_much(problem) else known.little_cost
        return candidates_of([best, *legal], time, cost)

    def effort(self, problem: ConvProblem, tile: SplitTile) -> Effort:
        """Return the work of a tile, whose items keep two sums for each result."""
        return effort_of(problem, tile, 1, 2)

    def launch(self, plan: ConvPlan, tile: SplitTile) -> None:
        """Launch the implicit GEMM: pixels times output channels, over taps and input channels."""
        k, p = plan.k, plan.problem
        truncates = plan.problem.caps.has_warpgroups  # others may add in another way
        pack = plan.packing(packed_weights, tile, truncates)
        spec = vectors_spec(2 * packed_size(p, tile), DType.FLOAT16)
        packed = k.constant(f"split.{tile.columns}.{tile.kb}", pack, Layout.NC4HW4, spec)
        tiles, across = -(-p.pixels // tile.rows), -(-p.channels_out // tile.columns)
        k.launch(
            "conv_split", reads={"x": plan.x, "w": packed, "s": scales_back(plan), **plan.bias_vector()},
            writes={"y": plan.y},
            ints={
                **p.constants, "C4": p.blocks_in, "STEPS": -(-p.depth // (PACK * tile.kb)), "PIXELS": p.pixels,
                "COUNT": p.blocks, "TILES": tiles,
            },
            variant={
                "fm": tile.fm, "fn": tile.fn, "sm": tile.sm, "sn": tile.sn, "kb": tile.kb, "sliced": tile.lz > 1,
                "pointwise": p.pointwise, "last": p.rows,
                "scale": str(2.0**-ACTIVATION_BITS), "low": str(2.0**-LOW_BITS),
            },
            kinds={"w": "wide"}, grid=(min(tiles, k.caps.max_grid[0]), across, 1),
            local=(SUBGROUP, tile.sm * tile.sn, tile.lz),
        )
