"""The portable GEMM with eight rows of results an item, for products that fill a device with large tiles.

What an item reads from work-group memory and from the cache falls with the rows and columns that it computes, and so
does what a product costs besides its one instruction. Staged as in narrow tiles, an item would need so many registers
that a unit holds only one group: operands are transposed as they are staged (`gemm.parts.mako`), and an item holds
those of one product at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK
from weft.kernels.chooser import NEVER, Candidate
from weft.kernels.cost_model import Effort
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.self_test_cases import SelfTestCase
from weft.kernels.special import on_many_units, register_family, register_special
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.gpu.conv.gemm.split_k import InParts, TileWork, time_of
from weft.ops.gpu.conv.gemm.tiles import STEP, GemmTile, TiledConv, fitting_tiles, steps_of
from weft.ops.gpu.conv.problem import ConvProblem


@dataclass(frozen=True)
class WideTile(GemmTile):
    """A tile of the GEMM whose operands are transposed: 32 items share four vectors of pixels and eight blocks.

    So `pixels` and lx are multiples of four, and ly of eight.
    """

    transposed: ClassVar[bool] = True

    @property
    def depth(self) -> int:
        """Return the blocks of four input channels that the group stages at a time.

        Few items with many results would fetch so much for STEP that they lack registers.
        """
        return STEP if self.lx * self.ly >= 128 else STEP // 2

    @property
    def registers(self) -> int:
        """Return the registers of an item, about: its sums, and 90 for operands of two steps and addresses."""
        return PACK * self.pixels * self.blocks + 90


WIDE_TILES = (
    WideTile(8, 2, 16, 16, 1),
    WideTile(8, 2, 8, 16, 1),
    WideTile(8, 2, 8, 8, 1),
    WideTile(8, 2, 4, 16, 1),
    WideTile(8, 2, 4, 8, 1),
    WideTile(8, 2, 8, 8, 2),
    WideTile(8, 2, 4, 8, 2),
)


@dataclass(frozen=True)
class WideFigures(AlgorithmFigures, section="conv_wide"):
    """When wide tiles pay."""

    beside: int
    """Groups of a tile that keep a unit busy together."""
    margin_us: float
    """Microseconds by which a whole tile must be faster by the cost model."""
    parts_margin_us: float
    """The same for a tile in parts, of a convolution with taps."""
    pointwise_parts_margin_us: float
    """The same without taps."""


@dataclass(frozen=True)
class WideConv(TiledConv):
    """The portable GEMM in wide tiles."""

    name = "conv_wide"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse what the narrow tiles refuse, and CPUs."""
        if problem.caps.software:
            return "a CPU gains nothing from reuse in registers"
        return super().why_not(problem)

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tiles, whole and in parts; on small GPUs, which may lack registers for 64 sums, for tuning."""
        every = super().candidates(problem)
        return every if problem.caps.has_many_units else [replace(each, cost=NEVER) for each in every]

    def effort(self, problem: ConvProblem, tile: GemmTile | InParts[GemmTile]) -> Effort | None:
        """Return the work of a tile; None where only tuning may take it."""
        return super().effort(problem, tile) if problem.caps.has_many_units else None

    def margin(self, problem: ConvProblem, tile: GemmTile | InParts[GemmTile]) -> float:
        """Return what the model does not know: its trials are of convolutions alone.

        In networks steps follow on the results, of which an item has many, and a second launch waits for the first.
        """
        known = problem.caps.model.of(WideFigures)
        if not isinstance(tile, InParts):
            return known.margin_us
        return known.pointwise_parts_margin_us if problem.pointwise else known.parts_margin_us

    def tiles(self, problem: ConvProblem) -> tuple[GemmTile | None, Sequence[GemmTile]]:
        """Return the tile that is best by the model of `TileWork`, and all that fit."""
        fitting = fitting_tiles(problem.caps, steps_of(problem), WIDE_TILES)
        time = partial(time_of, problem.caps, partial(self.work, problem))
        return min(fitting, key=time, default=None), fitting

    def work(self, problem: ConvProblem, tile: GemmTile) -> TileWork:
        """Return the work in tiles of this size, of which a unit has room for several."""
        return replace(super().work(problem, tile), beside=problem.caps.model.of(WideFigures).beside)

    def staging(self, problem: ConvProblem, tile: GemmTile) -> dict[str, int | bool]:
        """Return how steps come to work-group memory: where there are asynchronous copies, weights come by them.

        They take no registers then, which items with many results lack.
        """
        buffers = tile.buffers(problem.caps)
        copied = COPIED.present(problem.caps) and problem.weights is DType.FLOAT32 and buffers > 1
        return {"buffers": buffers, "copied": copied}

    def in_parts(self, problem: ConvProblem, whole: Sequence[GemmTile]) -> Sequence[InParts[GemmTile]]:
        """Return tiles in parts, the most promising first: as many as there are, since the cost model ranks them."""
        if not self.splits_k or not problem.whole:
            return []
        work = partial(self.work, problem)
        every = [InParts(t, p) for t in whole for p in work(t).possible_parts(problem.caps)]
        return sorted(every, key=partial(time_of, problem.caps, work))


def _cases() -> Sequence[SelfTestCase]:
    """Return convolutions with taps and strides, of results that fill no tile, and of K in slices."""
    return (
        conv_with((2, 17, 9, 7), (70, 17, 2, 3), strides=(2, 3), pads=(0, 1, 1, 2), prefer="WideTile("),
        conv_with((1, 36, 13, 12), (133, 36, 1, 1), prefer="WideTile(pixels=8, blocks=2, lx=8, ly=16"),
        conv_with((1, 132, 6, 7), (33, 132, 1, 1), prefer="WideTile(pixels=8, blocks=2, lx=8, ly=8, lz=2)"),
    )


def _in_parts() -> SelfTestCase:
    """Return a convolution whose K is in parts, of which the last two are empty."""
    return conv_with(
        (1, 132, 6, 7), (33, 132, 1, 1), prefer="InParts(tile=WideTile(pixels=8, blocks=2, lx=4, ly=8, lz=1), parts=8)"
    )


COPIED = register_special(
    "conv_wide_copied",
    "convolutions in wide tiles whose weights are copied asynchronously",
    claimed=lambda caps: caps.asynchronous_copies,
    cases=lambda: (*_cases(), _in_parts()),
    template="conv_gemm",
    marker="END_OF_COPIES;",
    forced=on_many_units,
    seconds=0.65,
)
register_family(
    "conv_wide", "convolutions in wide tiles", cases=_cases,
    templates=("conv_gemm",), whole=False, fallback="tiled convolutions", forced=on_many_units, seconds=0.65,
)
