"""Split-K: several work-groups share a tile of the output, each sums a part of K, and a second kernel adds the parts.

If a problem has fewer tiles than the device has compute units, most units would otherwise wait while a few read all of
K. The first launch writes fp32 sums without bias and fused steps; the second adds them and applies both.

Each kernel offers its tiles whole and in parts (`InParts`) to tuning. Without tuning, parts are taken only if they win
clearly by the model of `TileWork`: long sums with few results, such as 512 channels of 7 x 7 on a large GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weft.core.graph.dtypes import DType
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import SUM_PARTS
from weft.kernels.special import on_many_units, register_family
from weft.ops.gpu.conv.cases import conv_with

if TYPE_CHECKING:
    from weft.ops.gpu.conv.problem import ConvPlan

TileT = TypeVar("TileT")
TileT_co = TypeVar("TileT_co", covariant=True)
PARTS = (2, 3, 4, 8)
"""Possible numbers of parts of K."""
LEAST = 2
"""Least rounds of steps of a part."""
FILLED = 4
"""Most work-groups of all parts for each compute unit."""
CLEAR = 0.7
"""Parts are the default where by the model they take less than so much of the time without."""
TRIED = 1.5
"""The share up to which tuning tries them."""
MOST_TILES = 12
"""Tiles in parts that a kernel offers to tuning."""


@dataclass(frozen=True)
class InParts(Generic[TileT_co]):
    """A tile that `parts` work-groups share; each of them sums a part of K."""

    tile: TileT_co
    parts: int


@dataclass(frozen=True, slots=True)
class TileWork:
    """The work of a problem in tiles of one size, for a model of its time.

    It takes `groups` work-groups. Each does `rounds` of steps along K, and reads `read` bytes in all of them. Together
    they store `stored` numbers.
    """

    groups: int
    rounds: int
    read: int
    stored: int
    beside: int = 1
    """Groups that keep a unit busy together; where there are fewer, parts may pay."""

    def microseconds(self, caps: DeviceCaps, parts: int = 1) -> float:
        """Return the time by a model: a round takes the latency of memory, or as long as the unit's groups read.

        With parts, the second launch and its reads come on top.
        """
        model, side_by_side = caps.model, -(-self.groups * parts // caps.compute_units)
        each = max(model.round_us, side_by_side * self.read / max(self.rounds, 1) / model.read_bytes)
        summing = model.launch_us + parts * self.stored / model.summed if parts > 1 else 0.0
        return -(-self.rounds // parts) * each + summing

    def possible_parts(self, caps: DeviceCaps) -> list[int]:
        """Return the possible numbers of parts of K: none if the tiles fill the device, or on a CPU."""
        if caps.software or SUM_PARTS in caps.without or self.groups >= self.beside * caps.compute_units:
            return []
        return [p for p in PARTS if self.groups * p <= FILLED * caps.compute_units and self.rounds >= LEAST * p]


def offer_parts(caps: DeviceCaps, tiles: Sequence[TileT], work_of: Callable[[TileT], TileWork]) -> list[InParts[TileT]]:
    """Return tiles in parts that may be faster than any whole tile, the most promising first."""
    every = [InParts(t, p) for t in tiles for p in work_of(t).possible_parts(caps)]
    return promising(caps, every, tiles, work_of)[:MOST_TILES]


def promising(
    caps: DeviceCaps, parted: Sequence[InParts[TileT]], whole: Sequence[TileT], work_of: Callable[[TileT], TileWork]
) -> list[InParts[TileT]]:
    """Return the tiles in parts that take little more than the best whole tile, by the model; the fastest first."""
    least = min((work_of(t).microseconds(caps) for t in whole), default=0.0)
    times = {each: work_of(each.tile).microseconds(caps, each.parts) for each in parted}
    return sorted((each for each in times if times[each] < TRIED * least), key=lambda each: times[each])


def by_turns(parted: Sequence[InParts[TileT]], whole: Sequence[TileT]) -> list[TileT | InParts[TileT]]:
    """Return both kinds of tiles alternately, each in its order, so that a short tuning tries the best of both."""
    pairs = zip_longest(parted, whole)
    return [each for pair in pairs for each in pair if each is not None]


def better(
    caps: DeviceCaps, whole: TileT, offered: Sequence[InParts[TileT]], work_of: Callable[[TileT], TileWork]
) -> TileT | InParts[TileT]:
    """Return the first of the offered tiles if it clearly beats the whole tile, by the model; else the whole tile.

    A tile that fills the device stays whole: the model does not know what takes the time then.
    """
    work = work_of(whole)
    if offered and work.groups < caps.compute_units:
        best = offered[0]
        if work_of(best.tile).microseconds(caps, best.parts) < CLEAR * work.microseconds(caps):
            return best
    return whole


def tile_and_parts(chosen: TileT | InParts[TileT]) -> tuple[TileT, int]:
    """Return a tile and its number of parts, which is 1 for a whole tile."""
    return (chosen.tile, chosen.parts) if isinstance(chosen, InParts) else (chosen, 1)


def time_of(caps: DeviceCaps, work_of: Callable[[Any], TileWork], each: Any) -> float:
    """Return the time of a tile, whole or in parts, by the model of `TileWork`."""
    tile, parts = tile_and_parts(each)
    return work_of(tile).microseconds(caps, parts)


class Sums:
    """Where a convolution's kernel stores its sums: to the output, or each part of K to scratch memory.

    Launch the kernel with `bias` among its reads, `target` as "y", `ints`, `variant` and `epilogue`, and a grid with
    `parts` along z; then call `finish`. Part z begins at round z * EACH, and stores image n as image
    n + z * (images of the output).
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
        """Launch the kernel that adds the parts, if there are several."""
        if self.parts == 1:
            return
        k, y = self.plan.k, self.plan.y
        blocks, places = self.plan.problem.blocks, prod(self.plan.problem.window.outputs)
        total = y.shape[0] * blocks * places
        k.launch(
            SUM_PARTS, reads={"sums": self.target, **self.plan.bias_vector()}, writes={"y": y},
            ints={
                "PARTS": self.parts, "IMAGES": y.shape[0], "BLOCKS": blocks, "PLACES": places, "TOTAL": total,
            },
            items=total,
        )


register_family(
    SUM_PARTS, "sums of products in parts",
    cases=lambda: (conv_with((1, 260, 5, 7), (13, 260, 3, 3), pads=(1, 1, 1, 1), prefer="InParts("),),
    templates=("sum_parts",), fallback="sums by one work-group each", forced=on_many_units, seconds=0.45,
)
