"""Convolutions whose weights exceed a kernel argument's range: the output channels go piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.kernels.algorithms import Algorithm, Candidate, Chooser, Rivals
from weft.ops.gpu.conv.gemm import TiledConv, bytes_of_block
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem, pieces

OF_A_PIECE = Chooser[ConvProblem, ConvPlan](
    Rivals("conv_gemm", (TiledConv(),), ConvProblem.facts_by_blocks)
)


@dataclass(frozen=True)
class Pieces:
    """How many there are."""

    count: int


class ConvInPieces(Algorithm[ConvProblem, ConvPlan, Pieces]):
    """The portable GEMM, several times; each piece has a tile of its own."""

    name = "conv_gemm in pieces"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Return why one launch does, or several do not help."""
        if not problem.ungrouped or TiledConv.name in problem.caps.without:
            return TiledConv().why_not(problem)
        fits = len(pieces(problem, bytes_of_block(problem))) == 1 or not problem.whole
        return "its weights are one kernel argument" if fits else None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the one there is."""
        return [Candidate(Pieces(len(pieces(problem, bytes_of_block(problem)))), 1.0)]

    def launch(self, plan: ConvPlan, tile: Pieces) -> None:
        """Launch each piece with what is chosen for it."""
        for first, count in pieces(plan.problem, bytes_of_block(plan.problem)):
            OF_A_PIECE.launch(plan.part(first, count))
