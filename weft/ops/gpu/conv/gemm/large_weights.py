"""Convolutions whose weights exceed the range of one kernel argument: each launch computes some output channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from weft.kernels.chooser import Algorithm, Candidate, Chooser, Rivals
from weft.ops.gpu.conv.gemm.tiles import TiledConv, bytes_of_block, legal_tiles, steps_of
from weft.ops.gpu.conv.gemm.wide_tiles import WideConv
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem, pieces

OF_A_PIECE = Chooser[ConvProblem, ConvPlan](
    Rivals("conv_gemm", (TiledConv(), WideConv()), ConvProblem.facts_by_blocks, modelled=attrgetter("caps"))
)


@dataclass(frozen=True)
class Pieces:
    """The number of pieces."""

    count: int


class ConvInPieces(Algorithm[ConvProblem, ConvPlan, Pieces]):
    """The portable GEMM once for each piece, each with its own tile."""

    name, prologue = "conv_gemm in pieces", TiledConv.prologue

    def why_not(self, problem: ConvProblem) -> str | None:
        """Return why one launch suffices, or several do not help."""
        if not problem.ungrouped or TiledConv.name in problem.caps.without:
            return TiledConv().why_not(problem)
        fits = len(pieces(problem, bytes_of_block(problem))) == 1 or not problem.whole
        return "its weights are one kernel argument" if fits else None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the only candidate, if the device has room for a tile."""
        if not legal_tiles(problem.caps, steps_of(problem)):
            return []
        return [Candidate(Pieces(len(pieces(problem, bytes_of_block(problem)))), 1.0)]

    def launch(self, plan: ConvPlan, tile: Pieces) -> None:
        """Launch each piece with the tile that is chosen for it."""
        for first, count in pieces(plan.problem, bytes_of_block(plan.problem)):
            OF_A_PIECE.launch(plan.part(first, count))
