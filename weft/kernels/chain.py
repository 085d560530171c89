"""Several launches as one: a kernel whose work-groups wait for each other between the levels.

Where a launch costs the host or the device more than its work, consecutive small launches share one: a chain. Its
work-groups, no more than run at once, do the groups of the first launch, wait until all of these are done, do those of
the second one, and so on. A group of a launch keeps the work-items that it was written for. Where the chain's
groups have more, several groups of a launch run side by side in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from weft.core.graph.dtypes import DType
from weft.kernels.device_caps import WARPGROUP_MEMORY, DeviceCaps, Size3
from weft.kernels.shared_size import shared_bytes
from weft.kernels.source import LOCAL_SIZE, SUBGROUP, Arg, ConstantKind, KernelCode, KernelSource

if TYPE_CHECKING:
    from weft.kernels.dialect import Dialect

CHAIN = "chain"
"""The name of the kernel, and of the kind in self-tests.

It has as many work-groups as a device runs at once, and they wait for each other. So no two may run side by side: some
groups of both might wait for others that have no room. Nor is there room where another program fills the device, so
that a group gives up after MOST_ROUNDS.
"""
WARPGROUP_CHAIN = "chain_warpgroups"
"""The kind of chains with a level that needs warpgroups; `DeviceCaps.without` names it where they are wrong."""
ITEMS = 256
"""Work-items of a chain's work-groups where groups of launches may run side by side in one."""
GRID = ("GRID_X", "GRID_Y", "GRID_Z")
"""The constants that are the grid of a level."""
SPREAD = ("CHAIN_SLOTS", "CHAIN_SHIFT", "CHAIN_BYTES")
"""The constants that say how a level is spread: `Level.slots`, `Level.shift` and `ChainedLaunch.local_bytes`."""
BARRIERS = 15
"""Barriers of a part of a group, beside that of all its items: PTX has sixteen of both kinds."""
SHARED_VECTORS = "SHARED_VECTORS"
"""The constant that says how many vectors of 16 bytes of work-group memory a chain takes."""
LEAST_PREFETCHED = 1 << 18
"""Bytes of the smallest constant that is prefetched; for a smaller one that takes longer than it saves."""
MOST_ROUNDS = 1 << 21
"""Rounds in which a work-group of a chain looks for the others before it gives up: on a GPU about a second, since each
is a load from the memory that all units share. A level takes a thousandth of that."""
LEAST_WAIT = 0.2
"""Seconds below which no work-group of a GPU has given up: so many loads in turn take longer."""
COUNTER_WORDS = 2
"""The arrivals, and whether a group has given up: then what the launch computed is of no use."""
COUNTER = Arg("counter", DType.UINT32, "linear", written=True)


@dataclass(frozen=True)
class ChainedLaunch:
    """A launch that may become a level of a chain."""

    source: KernelSource
    values: Mapping[str, int | float]
    grid: Size3
    local: Size3
    repeatable: bool = False
    """Whether more items of a group may do what the last one does."""

    @property
    def items(self) -> int:
        """Return the work-items of a group."""
        return prod(self.local)

    @property
    def groups(self) -> int:
        """Return the number of groups."""
        return prod(self.grid)

    @property
    def meets(self) -> bool:
        """Tell whether the items of a group wait for each other, which they do for what lies in its memory."""
        return bool(self.source.shared)

    @property
    def may_join(self) -> bool:
        """Tell whether the kernel may read what others wrote in the same launch."""
        return self.source.code.in_pieces and not self.source.has("unwritten")

    @property
    def alignment(self) -> int:
        """Return at whose multiples each array of work-group memory begins, in bytes."""
        return 1024 if self.source.warpgroup else 128

    @cached_property
    def local_bytes(self) -> int:
        """Return the bytes of work-group memory of a group."""
        arrays = (shared_bytes(kind, size, self.values) for kind, size in self.source.shared)
        return sum(-(-n // self.alignment) * self.alignment for n in arrays)

    def width(self, caps: DeviceCaps) -> int:
        """Return the items of a chain that do a group's work: whole subgroups, if these have to wait for each other."""
        whole = -(-self.items // SUBGROUP) * SUBGROUP
        return whole if self.meets and self.repeatable and caps.partial_barriers else self.items

    def slots(self, items: int, caps: DeviceCaps) -> int:
        """Return how many groups fit side by side into a chain's group of so many items; 0 if none does."""
        width = self.width(caps)
        if self.items > caps.max_local_items:
            return 0  # the other levels would have to do with as few registers as its many items leave
        if width > items or (self.source.subgroup and width % SUBGROUP):
            return 0
        parted = caps.partial_barriers and width % SUBGROUP == 0 and not self.source.has("numbered")
        if self.meets and width != items and not parted:
            return 0
        side_by_side = min(items // width, BARRIERS) if self.meets else items // width
        most = WARPGROUP_MEMORY if self.source.warpgroup and caps.has_warpgroups else caps.local_memory
        return min(side_by_side, most // self.local_bytes) if self.local_bytes else side_by_side


@dataclass(frozen=True)
class Level:
    """A level of a chain: a launch, how it is spread, and which arguments of the chain are its own."""

    step: ChainedLaunch
    width: int
    """Items of the chain that do a group's work; those beyond its own repeat the last one."""
    slots: int
    """Groups side by side in a work-group of the chain."""
    args: tuple[int, ...]
    """The numbers of the chain's arguments, in the order of the launch's own."""
    waits: bool
    """Whether it needs all levels before it to be done; if not, it runs beside the one before it."""
    prefetched: tuple[int, ...] = ()
    """The numbers of the arguments that are prefetched before its turn."""
    shift: int = 0
    """The work-group of the chain that begins with the first group: those before it are busy with levels beside it."""


def chain_items(steps: Sequence[ChainedLaunch], caps: DeviceCaps) -> int:
    """Return the work-items of a chain's groups."""
    most = max(step.width(caps) for step in steps)
    return max(most, min(ITEMS, caps.max_local_items)) if caps.partial_barriers else most


def chain_source(
    levels: Sequence[Level], written: Sequence[bool], sizes: Sequence[int], items: int, dialect: Dialect
) -> tuple[KernelSource, dict[str, int | float]] | None:
    """Return the kernel of a chain and its constants, or None if the language cannot say it.

    `written` tells of each argument whether any level writes it; the counter is the first of those that are written.
    `sizes` are the bytes of each.
    """
    args = tuple(Arg(f"memory{i}", DType.UINT8, "linear", w) for i, w in enumerate(written))
    named = [a.name for a in args]
    first = written.index(True)
    args = (*args[:first], COUNTER, *args[first:])
    text = dialect.chain(levels, args, items)
    if text is None:
        return None
    kinds: list[tuple[str, ConstantKind]] = [(name, "int") for name in LOCAL_SIZE]
    taken = max(level.slots * level.step.local_bytes for level in levels)
    values: dict[str, int | float] = dict(zip(LOCAL_SIZE, (items, 1, 1), strict=True))
    kinds.append((SHARED_VECTORS, "int"))
    values[SHARED_VECTORS] = max(taken // 16, 1)
    for i in sorted({i for level in levels for i in level.prefetched}):
        kinds.append((prefetched_bytes(named[i]), "int"))
        values[prefetched_bytes(named[i])] = sizes[i]
    for number, level in enumerate(levels):
        step = level.step
        kinds += [(constant(number, name), kind) for name, kind in step.source.constants]
        values |= {constant(number, name): step.values[name] for name, _ in step.source.constants}
        own = dict(zip(GRID, step.grid, strict=True))
        own |= dict(zip(SPREAD, (level.slots, level.shift, step.local_bytes), strict=True))
        kinds += [(constant(number, name), "int") for name in own]
        values |= {constant(number, name): value for name, value in own.items()}
    subgroup = max(level.step.source.subgroup for level in levels)
    warpgroup = any(level.step.source.warpgroup for level in levels)
    shared = (("uint4", SHARED_VECTORS),)
    covered = any(level.step.source.has("covered") for level in levels)
    code = KernelCode(text, traits=("covered",) if covered else ())
    return KernelSource(CHAIN, code, args, tuple(kinds), shared, subgroup, warpgroup), values


def constant(level: int, name: str) -> str:
    """Return the name that a constant of a level has in the chain."""
    return f"L{level}_{name}"


def prefetched_bytes(argument: str) -> str:
    """Return the name of the constant that says how many bytes of an argument are prefetched."""
    return f"PREFETCHED_{argument}"
