"""The portable GEMM with eight rows of results an item, for products that fill a device with large tiles.

What an item reads from work-group memory and from the cache falls with the rows and columns that it computes, and so
does what a product costs besides its one instruction. The price is registers, and few work-groups. Operands are staged
turned (`gemm.parts.mako`); as in narrow tiles, items had no registers left for two groups on a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from weft.kernels.chooser import NEVER, Candidate
from weft.kernels.cost_model import Effort
from weft.kernels.special import KernelFamily, on_many_units, register_family
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.gpu.conv.gemm import GemmTile, TiledConv, fitting_tiles, steps_of
from weft.ops.gpu.conv.problem import ConvProblem
from weft.ops.gpu.conv.split_k import InParts, TileWork, time_of

WIDE_TILES = (
    GemmTile(8, 2, 16, 16, 1),
    GemmTile(8, 2, 8, 16, 1),
    GemmTile(8, 2, 8, 8, 1),
    GemmTile(8, 2, 4, 16, 1),
    GemmTile(8, 2, 4, 8, 1),
    GemmTile(8, 2, 8, 8, 2),
    GemmTile(8, 2, 4, 8, 2),
)
"""The tiles: lx in fours and ly in eights, because 32 items share so many operands."""
BESIDE = 3
"""Groups that a large GPU has registers for on each unit, of 128 items."""
MARGIN, PARTS_MARGIN = 2.0, 4.0
"""Microseconds by which whole tiles, and tiles in parts, must be faster by the cost model (`WideConv.margin`)."""


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
        return every if _has_registers(problem) else [replace(each, cost=NEVER) for each in every]

    def effort(self, problem: ConvProblem, tile: GemmTile | InParts[GemmTile]) -> Effort | None:
        """Return the work of a tile; None where only tuning may take it."""
        return super().effort(problem, tile) if _has_registers(problem) else None

    def tiles(self, problem: ConvProblem) -> tuple[GemmTile | None, Sequence[GemmTile]]:
        """Return the tile that is best by the model of `TileWork`, and all that fit."""
        fitting = fitting_tiles(problem.caps, steps_of(problem), WIDE_TILES)
        time = partial(time_of, problem.caps, partial(self.work, problem))
        return min(fitting, key=time, default=None), fitting

    def work(self, problem: ConvProblem, tile: GemmTile) -> TileWork:
        """Return the work in tiles of this size, of which a unit has room for several."""
        return replace(super().work(problem, tile), beside=BESIDE)

    def in_parts(self, problem: ConvProblem, whole: Sequence[GemmTile]) -> Sequence[InParts[GemmTile]]:
        """Return all tiles in parts: the cost model ranks them."""
        if not problem.whole:
            return []
        return [InParts(t, p) for t in whole for p in self.work(problem, t).possible_parts(problem.caps)]

    def margin(self, tile: GemmTile | InParts[GemmTile]) -> float:
        """Return what the model does not know: its trials are of convolutions alone.

        In networks steps follow on the results, of which an item has many, and a second launch waits for the first.
        """
        return PARTS_MARGIN if isinstance(tile, InParts) else MARGIN

    def needs_no_tuning(self, tile: InParts[GemmTile]) -> bool:
        """Accept all: each group has work for a round."""
        return True


def _has_registers(problem: ConvProblem) -> bool:
    return problem.caps.compute_units >= problem.caps.model.many_units


register_family(
    KernelFamily(
        "conv_wide", "convolutions in wide tiles",
        cases=lambda: (
            conv_with((2, 17, 9, 7), (70, 17, 2, 3), strides=(2, 3), pads=(0, 1, 1, 2), prefer="GemmTile(pixels=8"),
            conv_with((1, 36, 13, 12), (133, 36, 1, 1), prefer="GemmTile(pixels=8, blocks=2, lx=8, ly=16"),
            conv_with((1, 132, 6, 7), (33, 132, 1, 1), prefer="GemmTile(pixels=8, blocks=2, lx=8, ly=8, lz=2)"),
        ),
        templates=("conv_gemm",), whole=False, fallback="tiled convolutions", forced=on_many_units, seconds=0.65,
    )
)
