"""Split-K: groups that share a tile of the output each sum a part of K, and a second kernel adds what they have.

Where a problem has fewer tiles than a device has compute units, most units would wait while a few read all of K.
The first launch writes sums in fp32 without bias and fused steps, the second one reads them and finishes.

Each kernel offers its tiles whole and in parts (`InParts`) to tuning. Without tuning parts are taken only where by the
model of `Work` they win clearly: long sums with few results, such as 512 channels of 7 x 7 on a large GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weft.core.graph.dtypes import DType
from weft.kernels.launch import SUM_PARTS, DeviceCaps

if TYPE_CHECKING:
    from weft.ops.gpu.conv.problem import ConvPlan

TileT = TypeVar("TileT")
TileT_co = TypeVar("TileT_co", covariant=True)
PARTS = (2, 3, 4, 8)
"""Into how many parts K may be divided."""
LEAST = 2
"""Rounds of steps that a part has at least."""
FILLED = 4
"""Groups of all parts for each compute unit, at most."""
READ, ROUND, LAUNCH = 54e3, 0.4, 5.5
"""Bytes that a unit reads in a microsecond; microseconds of a round of steps that waits for memory, and of a second
launch (H200, `benchmarks/NOTES.md` and its tuned table: rounds take 0.4 to 0.9, nothing in parts less than 10)."""
SUMS = 375e3
"""Sums that all units together write and read again in a microsecond: eight bytes each, at 3 TB/s."""
CLEAR = 0.7
"""Parts are the default where by the model they take less than so much of the time without."""
TRIED = 1.5
"""The share up to which tuning tries them."""
MOST = 12
"""Tiles in parts that a kernel offers to tuning."""


@dataclass(frozen=True)
class InParts(Generic[TileT_co]):
    """A tile that `parts` groups share, each of which has a part of K."""

    tile: TileT_co
    parts: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a tile leaves to do: `groups`, each with so many `rounds` of steps along K that read `read` bytes in all.

    Together they store `stored` numbers.
    """

    groups: int
    rounds: int
    read: int
    stored: int

    def microseconds(self, caps: DeviceCaps, parts: int = 1) -> float:
        """Return the time by a model: a round waits for memory, or for all that groups of one unit read in it.

        A second launch comes on top, and what it has to read.
        """
        side_by_side = -(-self.groups * parts // caps.compute_units)
        each = max(ROUND, side_by_side * self.read / max(self.rounds, 1) / READ)
        return -(-self.rounds // parts) * each + (LAUNCH + parts * self.stored / SUMS if parts > 1 else 0.0)

    def possible_parts(self, caps: DeviceCaps) -> list[int]:
        """Return into how many parts K may be divided: none where the tiles fill the device.

        Nor are there any on a CPU, which has no units to fill.
        """
        if caps.software or SUM_PARTS in caps.without or self.groups >= caps.compute_units:
            return []
        return [p for p in PARTS if self.groups * p <= FILLED * caps.compute_units and self.rounds >= LEAST * p]


def offer_parts(caps: DeviceCaps, tiles: Sequence[TileT], work_of: Callable[[TileT], Work]) -> list[InParts[TileT]]:
    """Return the tiles with their K in parts that may be faster than any whole one, the most promising first."""
    every = [InParts(t, p) for t in tiles for p in work_of(t).possible_parts(caps)]
    return promising(caps, every, tiles, work_of)[:MOST]


def promising(
    caps: DeviceCaps, parted: Sequence[InParts[TileT]], whole: Sequence[TileT], work_of: Callable[[TileT], Work]
) -> list[InParts[TileT]]:
    """Return those in parts that by the model of `Work` take hardly more than any whole tile, the fastest first."""
    least = min((work_of(t).microseconds(caps) for t in whole), default=0.0)
    times = {each: work_of(each.tile).microseconds(caps, each.parts) for each in parted}
    return sorted((each for each in times if times[each] < TRIED * least), key=lambda each: times[each])


def by_turns(parted: Sequence[InParts[TileT]], whole: Sequence[TileT]) -> list[TileT | InParts[TileT]]:
    """Return both as candidates by turns, each in its order, so that tuning for a short time tries the best of both."""
    pairs = zip_longest(parted, whole)
    return [each for pair in pairs for each in pair if each is not None]


def better(
    caps: DeviceCaps, whole: TileT, offered: Sequence[InParts[TileT]], work_of: Callable[[TileT], Work]
) -> TileT | InParts[TileT]:
    """Return the first one offered if by the model of `Work` it clearly takes less than the whole tile, else that.

    A tile that fills the device stays whole: what then takes the time the model does not know.
    """
    work = work_of(whole)
    if offered and work.groups < caps.compute_units:
        best = offered[0]
        if work_of(best.tile).microseconds(caps, best.parts) < CLEAR * work.microseconds(caps):
            return best
    return whole


def tile_and_parts(chosen: TileT | InParts[TileT]) -> tuple[TileT, int]:
    """Return what a kernel is launched with, of a tile that may be in parts."""
    return (chosen.tile, chosen.parts) if isinstance(chosen, InParts) else (chosen, 1)


def time_of(caps: DeviceCaps, work_of: Callable[[Any], Work], each: Any) -> float:
    """Return the time of a tile, whole or in parts, by the model of `Work`."""
    tile, parts = tile_and_parts(each)
    return work_of(tile).microseconds(caps, parts)


class Sums:
    """Where a convolution's kernel stores: to the output, or a part of K each to memory of its own.

    Give the kernel `bias` among what it reads, `target` as "y", `ints`, `variant` and `epilogue`, and a grid with
    `parts` along z; then `finish`. Where there are parts, part z has the rounds from z * EACH on, and image n of it
    is image n + z * (images of the output).
    """

    def __init__(self, plan: ConvPlan, parts: int, rounds: int) -> None:
        self.plan, self.parts = plan, parts
        self.target, self.bias, self.epilogue = plan.y, plan.bias_vector(), parts == 1
        self.ints: dict[str, int] = {}
        self.variant: dict[str, bool] = {}
        if parts > 1:
            images, *rest = plan.y.shape
            self.target = plan.k.scratch((parts * images, *rest), DType.FLOAT32, plan.y.layout)
            self.bias, self.ints, self.variant = {}, {"EACH": -(-rounds // parts)}, {"parted": True}

    def finish(self) -> None:
        """Launch what adds the parts, if there are any."""
        if self.parts == 1:
            return
        k, y = self.plan.k, self.plan.y
        blocks, places = self.plan.problem.blocks, prod(self.plan.problem.window.outputs)
        total = y.shape[0] * blocks * places
        grid, local = k.for_items(total)
        k.launch(
            SUM_PARTS,
            reads={"sums": self.target, **self.plan.bias_vector()},
            writes={"y": y},
            ints={
                "PARTS": self.parts, "IMAGES": y.shape[0], "BLOCKS": blocks, "PLACES": places, "TOTAL": total,
            },
            grid=grid,
            local=local,
        )  # fmt: skip
