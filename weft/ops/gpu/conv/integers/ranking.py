"""What both kernels of integers share: an estimate of the time that a tile takes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from weft.kernels.chooser import Candidate
from weft.kernels.device_model import AlgorithmFigures, amount_by, time_by
from weft.ops.gpu.conv.gemm.ranking import ImplicitGemm
from weft.ops.gpu.conv.gemm.split_k import InParts
from weft.ops.gpu.conv.problem import ConvProblem

TileT = TypeVar("TileT")
MOST_CANDIDATES = 16


@dataclass(frozen=True)
class IntegerFigures(AlgorithmFigures, section="conv_int8"):
    """What estimates know of a device besides its rates."""

    start_us: float = field(metadata=time_by("launches"))
    """Microseconds of a launch of almost no work."""
    round_us: float = field(metadata=time_by("waits"))
    """Microseconds of a step along K in which a group waits for memory."""
    words: float = field(metadata=amount_by("products"))
    """Words of four bytes that a unit multiplies in a microsecond, by instructions of one item."""
    matrix_words: float = field(metadata=amount_by("products"))
    """The same by matrix units."""


class IntegerGemm(ImplicitGemm[TileT]):
    """An implicit GEMM of integers, whose tiles are ranked by microseconds; in software by those of others."""

    on_matrix_units: ClassVar[bool] = False

    @abstractmethod
    def resident(self, problem: ConvProblem, tile: TileT) -> int:
        """Return the groups that a unit holds at a time."""

    @abstractmethod
    def words_of_round(self, tile: TileT) -> int:
        """Return the words that a group multiplies in a round."""

    def microseconds(self, problem: ConvProblem, tile: TileT, parts: int = 1) -> float:
        """Return about how long a tile takes, and if groups share it, the launch that adds the parts up."""
        caps, work = problem.caps, self.work(problem, tile)
        model, known, units = caps.model, caps.model.of(IntegerFigures), caps.likely_units
        rounds, groups = -(-work.rounds // parts), work.groups * parts
        rate = known.matrix_words if self.on_matrix_units else known.words
        each = max(work.read / max(work.rounds, 1) / model.read_bytes, self.words_of_round(tile) / rate)
        waits = -(-groups // (units * self.resident(problem, tile))) * known.round_us
        times = rounds * max(-(-groups // units) * each, waits), problem.moved / (model.read_bytes * units)
        adding = model.between_launches_us + parts * work.stored / model.summed if parts > 1 else 0.0
        return known.start_us + max(times) + adding

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the tiles, whole and in parts, by their times."""
        caps, (_, fitting) = problem.caps, self.tiles(problem)
        if caps.software:
            return super().candidates(problem)
        parted = [InParts(t, p) for t in fitting for p in self.work(problem, t).possible_parts(caps)]
        found = [Candidate(t, self.microseconds(problem, t)) for t in fitting]
        found += [Candidate(each, self.microseconds(problem, each.tile, each.parts)) for each in parted]
        return sorted(found, key=lambda each: each.cost)[:MOST_CANDIDATES]
