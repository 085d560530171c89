"""Teams: work-items that share one line of elements, each with its part of the line in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK
from weft.core.graph.tensor import Tensor
from weft.kernels.launch import KernelBuilder, power_of_two
from weft.kernels.self_test_cases import SelfTestCase, one_node
from weft.kernels.source import ArgKind
from weft.kernels.special import EXCHANGES, in_place_of, register_family, register_special
from weft.ops.norm import LayerNormalization
from weft.ops.softmax import LogSoftmax, Softmax

WITHOUT_TEAMS = in_place_of("rows_in_teams")
"""Makes kernels run that give a line to one work-item or one work-group."""
SHORTEST = 16
"""A team pays from this many elements of a line; one work-item does a shorter line."""
SIDE_BY_SIDE = 32
"""Subgroup size of the devices where it matters; a team of at most this size needs no barrier to exchange values."""
LARGEST = 256
MOST_PER_ITEM = {True: 8, False: 16}
"""Most vectors of four (True) or elements (False) that a work-item keeps; beyond that registers become scarce."""
GROUP = 256
"""Work-items of a work-group, if there are enough lines; a GPU starts small work-groups slower than it runs them."""


def _cases() -> Sequence[SelfTestCase]:
    """Return softmaxes whose lines are shared by a part of a subgroup, by one subgroup and by several."""
    shapes = ((37, 20), (9, 384), (5, 1000), (3, 4099))
    return [one_node(Softmax(axis=-1), shape, precision=Precision.LOW) for shape in shapes]


SPECIAL = register_special(
    "team_shuffles",
    "exchanges between work-items",
    claimed=lambda caps: caps.shuffles,
    withdraw=lambda caps: replace(caps, shuffles=False),
    cases=_cases,
    template="softmax_rows",
    seconds=0.25,
    trait=EXCHANGES,
)


@dataclass(frozen=True, slots=True)
class Team:
    """A team of `items` for each line; each item has `each` vectors (`fours`) or elements; `rows` teams a group."""

    items: int
    each: int
    rows: int
    fours: bool

    def launch(
        self, k: KernelBuilder, template: str, reads: dict[str, Tensor], writes: dict[str, Tensor], *,
        lines: int, length: int, ints: dict[str, int] | None = None, floats: dict[str, float] | None = None,
        variant: dict[str, Any] | None = None,
    ) -> None:
        """Launch a template over lines; all of `writes` but the first have one element a line."""
        four: ArgKind = "fours"
        kinds = {name: four for name in (*reads, next(iter(writes))) if self.fours}
        ints = {"LINES": lines, "LENGTH": length, "UNITS": length // self.width, **(ints or {})}
        caps = k.caps
        own = {
            "team": self.items, "each": self.each, "fours": self.fours, "shuffles": caps.shuffles,
            "ahead": not caps.software,
        }
        k.launch(
            template, reads=reads, writes=writes, ints=ints, floats=floats, variant={**own, **(variant or {})},
            grid=(max(1, min(-(-lines // self.rows), caps.max_grid[0])), 1, 1),
            local=(self.items * self.rows, 1, 1), kinds=kinds,
        )

    @property
    def width(self) -> int:
        """Return the number of elements that a work-item accesses at once."""
        return PACK if self.fours else 1


def choose_team(
    k: KernelBuilder, tensors: Sequence[Tensor], lines: int, length: int, sizes: Sequence[int] = ()
) -> Team | None:
    """Return the team for contiguous lines of some tensors; None if they are too short or too long for one.

    `sizes` are the numbers of elements of operands that repeat along the lines.
    """
    if any(t.dtype is DType.FLOAT64 for t in tensors):
        return None  # registers hold half as many
    if length < SHORTEST or not lines or "rows_in_teams" in k.caps.without:
        return None
    fours = all(size % PACK == 0 for size in (length, *sizes)) and k.lies_plain(*tensors, count=PACK)
    units = length // PACK if fours else length
    items = power_of_two(min(units, max(SIDE_BY_SIDE, -(-units // MOST_PER_ITEM[fours]))))
    each = -(-units // items)
    if items > min(LARGEST, k.caps.max_local_items):
        return None
    rows = full = max(min(GROUP, k.caps.max_local_items) // items, 1)
    while rows * items > SIDE_BY_SIDE and rows > 1 and lines < 2 * rows * k.caps.compute_units:
        rows //= 2  # spread lines over the compute units rather than fill work-groups
    if k.sizes_change:  # few kernels: full groups or the smallest, and a power of two for each item
        rows = full if rows == full else max(SIDE_BY_SIDE // items, 1)
        each = power_of_two(each)
    return Team(items, each, rows, fours)


register_family(
    "rows_in_teams", "lines that several work-items share",
    cases=lambda: (
        one_node(Softmax(), (37, 20)),
        one_node(LogSoftmax(), (3, 1003)),
        one_node(LayerNormalization(), (3, 5, 197), (197,), (197,), constants=(1, 2)),
        one_node(LayerNormalization(), (9, 384), (384,), constants=(1,)),
    ),
    templates=("softmax_rows", "normalize_rows"), fallback="a work-group or an item for each line",
)
