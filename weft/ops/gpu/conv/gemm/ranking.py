"""What implicit GEMMs share whose work-groups may split K: how their candidates are ranked, and the second launch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Generic, TypeVar

from weft.kernels.chooser import Algorithm, Candidate, candidates_of
from weft.ops.gpu.conv.gemm.split_k import (
    InParts,
    Sums,
    TileWork,
    better,
    by_turns,
    offer_parts,
    tile_and_parts,
    time_of,
)
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem

TileT = TypeVar("TileT")


class ImplicitGemm(Algorithm[ConvProblem, ConvPlan, "TileT | InParts[TileT]"], Generic[TileT]):
    """Multiplies pixels by output channels, over taps and input channels, a tile of both in each work-group.

    Several work-groups may share a tile, each with a part of K (`split_k.py`).
    """

    @abstractmethod
    def tiles(self, problem: ConvProblem) -> tuple[TileT | None, Sequence[TileT]]:
        """Return the best whole tile by a rule of thumb, None if none fits the device; and all tiles that fit."""

    @abstractmethod
    def work(self, problem: ConvProblem, tile: TileT) -> TileWork:
        """Return the work in tiles of this size."""

    @abstractmethod
    def multiply(self, plan: ConvPlan, tile: TileT, sums: Sums) -> None:
        """Launch the GEMM, which stores to `sums`."""

    def cost(self, problem: ConvProblem, first: TileT | InParts[TileT]) -> float:
        """Return the cost of the first candidate, as a share of what the portable kernel takes."""
        return 1.0

    def in_parts(self, problem: ConvProblem, whole: Sequence[TileT]) -> Sequence[InParts[TileT]]:
        """Return tiles in parts that tuning tries, the most promising first."""
        return offer_parts(problem.caps, whole, partial(self.work, problem))

    def needs_no_tuning(self, tile: InParts[TileT]) -> bool:
        """Tell whether a tile in parts may be the default: the model of its time is trusted."""
        return True

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tiles, whole and in parts: first the best whole one, or one in parts that clearly beats it."""
        caps, work = problem.caps, partial(self.work, problem)
        best, fitting = self.tiles(problem)
        if best is None:
            return []
        parted = self.in_parts(problem, fitting)
        first = better(caps, best, [each for each in parted if self.needs_no_tuning(each)], work)
        every = [first, *by_turns(parted, fitting)]
        return candidates_of(every, partial(time_of, caps, work), self.cost(problem, first))

    def launch(self, plan: ConvPlan, tile: TileT | InParts[TileT]) -> None:
        """Launch the GEMM, and the sum of the parts if there are several."""
        chosen, parts = tile_and_parts(tile)
        sums = Sums(plan, parts, self.work(plan.problem, chosen).rounds)
        self.multiply(plan, chosen, sums)
        sums.finish()
