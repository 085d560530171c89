"""Which consecutive launches of a network share one: see `weft.kernels.chain`.

A launch waits for the one before it longer than work-groups inside one launch wait for each other, and costs the host
time. But a chain has no more groups than run at once, so a launch of many groups is done in rounds, and nothing of the
next launch runs meanwhile. So only short launches of few groups join.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import itemgetter

from weft.backends.gpu.memory.slots import Spot
from weft.backends.gpu.recording.launches import PlannedChain, PlannedLaunch
from weft.core.graph.layout import PACK
from weft.core.graph.tensor import Tensor
from weft.kernels.chain import (
    CHAIN,
    LEAST_PREFETCHED,
    WARPGROUP_CHAIN,
    ChainedLaunch,
    Level,
    chain_items,
    chain_source,
)
from weft.kernels.device_caps import DeviceCaps, Size3
from weft.kernels.dialect import Dialect
from weft.kernels.launch import SUM_PARTS

MOST_WAVES = 2
"""Waves of groups of a launch in a chain: one more takes about as long as the launch that it saves."""
MOST_FREE_WAVES = 6
"""The same where no item waits for another: such a wave takes little more than a load and a store."""
LONGER_BY_WARPGROUPS = 1.5
"""How many times longer a launch by warpgroups may be: few of its groups fit a unit anyway, so that it loses little by
having the groups of a chain."""
MOST_LEVELS = 8
"""Launches of a chain: its kernel is built as a whole, in a time that grows with them."""


@dataclass(frozen=True, eq=False)
class Section:
    """The launches of a node, or some of them, which are in a chain all together or not at all."""

    label: str
    depth: int
    """The dependency level of the node: nodes of one level neither wait for each other nor share memory."""
    launches: Sequence[PlannedLaunch]
    microseconds: float
    """What its launches are expected to take, together."""
    whole: bool = True
    """Whether these are all launches of the node."""


@dataclass
class _Run:
    """Sections that may share a launch, so far."""

    sections: list[Section] = field(default_factory=list)
    steps: list[ChainedLaunch] = field(default_factory=list)


def find_chains(
    sections: Sequence[Section], caps: DeviceCaps, dialect: Dialect, longest: float
) -> list[PlannedChain]:
    """Return the chains of a network whose nodes are given in the order in which they run.

    The launches of a node stay alone if they are expected to take more than `longest` microseconds on average, or
    LONGER_BY_WARPGROUPS times that if one of them is by warpgroups. Then a launch that adds parts of sums still joins
    those behind it.
    """
    runs, run = list[_Run](), _Run()
    for section in (piece for each in sections if each.launches for piece in _divided(each, caps, longest)):
        steps = [_step(launch) for launch in section.launches]
        short = _is_short(section, longest)
        if not (short and _fit([*run.steps, *steps], caps)):
            runs, run = [*runs, run], _Run()
        if short and _fit(steps, caps):
            run = _Run([*run.sections, section], [*run.steps, *steps])
    runs.append(run)
    found = (_chain(piece, caps, dialect) for run in runs for piece in _pieces(run.sections))
    return [chain for chain in found if chain is not None]


def moving_us(launches: Iterable[PlannedLaunch], caps: DeviceCaps) -> float:
    """Return the microseconds in which a device moves the bytes of launches."""
    return sum(x.read + x.written for x in launches) / (caps.model.read_bytes * caps.likely_units)


def _is_short(section: Section, longest: float) -> bool:
    """Tell whether the launches are expected to take no more than the limit on average."""
    by_warpgroups = any(launch.source.warpgroup for launch in section.launches)
    limit = longest * LONGER_BY_WARPGROUPS if by_warpgroups else longest
    return section.microseconds <= limit * len(section.launches)


def _divided(section: Section, caps: DeviceCaps, longest: float) -> list[Section]:
    """Return a section, or two if it is too long for a chain: its products, and the launches that add their parts.

    These stay where they are if they take more waves than MOST_WAVES: more than a load and a store hangs on each, and
    alone, more of their items run at once.
    """
    count = len(section.launches)
    products = next((n for n in range(count, 0, -1) if section.launches[n - 1].kernel != SUM_PARTS), 0)
    sums = section.launches[products:]
    if not products or not sums or _is_short(section, longest):
        return [section]
    if any(_waves(_step(launch), caps) > MOST_WAVES for launch in sums):
        return [section]
    return [
        replace(section, launches=section.launches[:products], whole=False),
        replace(section, launches=sums, microseconds=moving_us(sums, caps), whole=False),
    ]


def _waves(step: ChainedLaunch, caps: DeviceCaps) -> float:
    """Return in how many waves a chain of this launch alone does its groups."""
    at_once = caps.likely_units * step.slots(chain_items([step], caps), caps)
    return step.groups / at_once if at_once else inf


def _step(launch: PlannedLaunch) -> ChainedLaunch:
    return ChainedLaunch(launch.source, launch.values, launch.grid, launch.local, launch.repeatable)


def _fit(steps: Sequence[ChainedLaunch], caps: DeviceCaps) -> bool:
    """Tell whether launches may share one."""
    if not all(step.may_join for step in steps):
        return False
    if any(step.source.warpgroup for step in steps) and WARPGROUP_CHAIN in caps.without:
        return False
    if any(step.source.computes_double for step in steps):  # the compiler takes literals for something else there
        return False
    items = chain_items(steps, caps)
    slots = [step.slots(items, caps) for step in steps]
    return all(
        n and step.groups <= caps.likely_units * n * (MOST_WAVES if step.meets else MOST_FREE_WAVES)
        for n, step in zip(slots, steps, strict=True)
    )


def _pieces(sections: Sequence[Section]) -> list[list[Section]]:
    """Return the sections cut into pieces of about the same number of launches, none too long."""
    count = sum(len(section.launches) for section in sections)
    each = -(-count // max(-(-count // MOST_LEVELS), 1))
    pieces: list[list[Section]] = []
    left = 0
    for section in sections:
        if len(section.launches) > left:
            pieces.append([])
            left = max(each, len(section.launches))
        pieces[-1].append(section)
        left -= len(section.launches)
    return pieces


def _chain(sections: Sequence[Section], caps: DeviceCaps, dialect: Dialect) -> PlannedChain | None:
    """Return the chain of some sections, or None if they stay launches of their own."""
    owners = [section for section in sections for _ in section.launches]
    launches = [launch for section in sections for launch in _by_levels(section)]
    if len(launches) < 2 or len(launches) > MOST_LEVELS:
        return None
    memory = _ChainArguments()
    for owner, launch in zip(owners, launches, strict=True):
        memory.add(owner.label, launch)
    if len(memory.tensors) >= caps.max_buffers:
        return None
    waits = _waits(owners, launches)
    steps = [_step(launch) for launch in launches]
    items = chain_items(steps, caps)
    groups = min(caps.resident_groups, max(step.groups for step in steps))
    levels, busy = list[Level](), 0
    for owner, launch, step, after in zip(owners, launches, steps, waits, strict=True):
        busy = 0 if after else busy
        args = tuple(memory.number(owner.label, t) for t in (*launch.reads, *launch.writes))
        prefetched = tuple(memory.number(owner.label, t) for t in launch.reads if _is_prefetched(t))
        levels.append(Level(step, step.width(caps), step.slots(items, caps), args, after, prefetched, busy % groups))
        busy += step.groups
    made = chain_source(levels, memory.written, memory.sizes, items, dialect)
    if made is None:
        return None
    source, values = made
    grid: Size3 = (groups, 1, 1)
    kernel = WARPGROUP_CHAIN if source.warpgroup else CHAIN
    span = f"{owners[0].label} to {owners[-1].label}"
    return PlannedChain(
        node=launches[0].node,
        kernel=kernel,
        grid=grid,
        local=(items, 1, 1),
        read=sum(x.read for x in launches),
        written=sum(x.written for x in launches),
        owner=span,
        source=source,
        values=values,
        reads=tuple(memory.reads),
        writes=tuple(memory.writes),
        repeatable=False,
        launches=tuple(launches),
        waits=tuple(waits),
        whole_nodes=tuple(dict.fromkeys(x.label for x in owners if x.whole)),
        levels=tuple((x.node, x.kernel) for x in launches),
    )


@dataclass
class _Touched:
    """The values that launches read, and which channel blocks of which values they write."""

    read: set[Hashable] = field(default_factory=set)
    written: dict[Hashable, list[tuple[int, float]]] = field(default_factory=dict)

    @classmethod
    def by(cls, owner: str, launch: PlannedLaunch) -> _Touched:
        """Return what a launch of a node touches."""
        made = cls({_root(owner, t) for t in launch.reads})
        for tensor in launch.writes:
            made.written.setdefault(_root(owner, tensor), []).append(_blocks(tensor))
        return made

    def meets(self, other: _Touched) -> bool:
        """Tell whether one may write what the other reads or writes."""
        if self.written.keys() & other.read or other.written.keys() & self.read:
            return True
        return any(
            first < after and begin < end
            for root in self.written.keys() & other.written.keys()
            for first, end in self.written[root]
            for begin, after in other.written[root]
        )

    def add(self, other: _Touched) -> None:
        """Add what others touch."""
        self.read |= other.read
        for root, blocks in other.written.items():
            self.written.setdefault(root, []).extend(blocks)


def _blocks(tensor: Tensor) -> tuple[int, float]:
    """Return the first channel block of a value that lies in a tensor, and the one behind the last."""
    spot: Spot = tensor.memory
    return (spot.first, spot.first + -(-tensor.shape[1] // PACK)) if spot.blocks else (0, inf)


def _by_levels(section: Section) -> list[PlannedLaunch]:
    """Return the launches of a node in an order in which those that may run side by side come together."""
    levels, touched = list[int](), list[_Touched]()
    for launch in section.launches:
        mine = _Touched.by(section.label, launch)
        levels.append(1 + max((n for n, other in zip(levels, touched, strict=True) if mine.meets(other)), default=-1))
        touched.append(mine)
    return [launch for _, launch in sorted(zip(levels, section.launches, strict=True), key=itemgetter(0))]


def _waits(owners: Sequence[Section], launches: Sequence[PlannedLaunch]) -> list[bool]:
    """Return for each launch whether it needs all before it to be done; if not, it runs beside the one before it.

    Nodes of one depth share no memory, but for the parts of a joined value, and some launches of a node compute parts
    of its result: one may fill a part while another fills its own. What a launch reads is known for the whole value
    only, so these wait.
    """
    waits, beside = list[bool](), _Touched()
    for before, owner, launch in zip((None, *owners), owners, launches, strict=False):
        mine = _Touched.by(owner.label, launch)
        waits.append(before is not None and (before.depth != owner.depth or mine.meets(beside)))
        if waits[-1]:
            beside = _Touched()
        beside.add(mine)
    return waits


class _ChainArguments:
    """The arguments of a chain: one for each piece of memory that its launches access."""

    def __init__(self) -> None:
        self.tensors: dict[Hashable, Tensor] = {}
        self._written: set[Hashable] = set()

    def add(self, owner: str, launch: PlannedLaunch) -> None:
        """Note what a launch of a node accesses."""
        for tensor in (*launch.reads, *launch.writes):
            self.tensors.setdefault(_place(owner, tensor), tensor)
        self._written.update(_place(owner, tensor) for tensor in launch.writes)

    @property
    def _order(self) -> list[Hashable]:
        """Return the pieces in the order of the arguments: first the pieces that are only read."""
        return sorted(self.tensors, key=self._written.__contains__)

    @property
    def reads(self) -> list[Tensor]:
        """Return a tensor in each piece that is only read."""
        return [self.tensors[key] for key in self._order if key not in self._written]

    @property
    def writes(self) -> list[Tensor]:
        """Return a tensor in each piece that is written."""
        return [self.tensors[key] for key in self._order if key in self._written]

    @property
    def written(self) -> list[bool]:
        """Return for each argument whether it is written."""
        return [key in self._written for key in self._order]

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each argument."""
        return [self.tensors[key].nbytes for key in self._order]

    def number(self, owner: str, tensor: Tensor) -> int:
        """Return the number of the argument for a tensor that a launch of a node accesses."""
        return self._order.index(_place(owner, tensor))


def _is_prefetched(tensor: Tensor) -> bool:
    """Tell whether a chain prefetches what a level reads: a constant that is large enough."""
    spot: Spot = tensor.memory
    return spot.is_constant and tensor.nbytes >= LEAST_PREFETCHED


def _root(owner: str, tensor: Tensor) -> Hashable:
    """Return what tells the value in whose memory a tensor lies from others; a node's own is known only inside it."""
    spot: Spot = tensor.memory
    return owner if isinstance(spot.root, tuple) else "", spot.root


def _place(owner: str, tensor: Tensor) -> Hashable:
    """Return what tells the memory of a tensor from other memory."""
    spot: Spot = tensor.memory
    return _root(owner, tensor), spot.start, spot.length


def without_chained(launches: Sequence[PlannedLaunch], chains: Sequence[PlannedChain]) -> tuple[PlannedLaunch, ...]:
    """Return what is launched: the launches in order, each chain in the place of its first one."""
    of: Mapping[int, PlannedChain] = {id(level): chain for chain in chains for level in chain.launches}
    found = (of.get(id(launch), launch) for launch in launches)
    return tuple({id(launch): launch for launch in found}.values())
