"""The chains of a run: several launches as one, whose work-groups wait for each other (`weft.kernels.chain`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.device.kernel_builds import Builds
from weft.backends.gpu.memory.slots import Slots
from weft.backends.gpu.recording.launches import BoundChain, BoundLaunch, PlannedChain
from weft.core.contract.backend import StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.tensor import Tensor
from weft.errors import DeviceError
from weft.kernels.chain import COUNTER_WORDS, LEAST_WAIT, MOST_ROUNDS


@dataclass(eq=False)
class RunChains:
    """Which launches of a run share one, and how that ends where a device does not keep up."""

    bound: Sequence[BoundChain] = ()
    """The chains that take the place of their levels."""
    notes: Sequence[str] = ()
    """Which launches that were to share one run separately, and why."""
    gave_up: bool = False
    """Whether work-groups have given up waiting for each other."""
    _planned: Sequence[PlannedChain] = ()
    _chained: frozenset[int] = frozenset()
    """The `id` of each planned launch in a chain."""
    _places: dict[int, BoundChain] = field(default_factory=dict)
    """The chains by the `id` of each planned launch in them."""
    _counters: list[Tensor] = field(default_factory=list)
    """By which the work-groups of each chain wait for each other."""

    def plan(self, chains: Sequence[PlannedChain]) -> None:
        """Note which launches are to share one."""
        self._planned = chains
        self._chained = frozenset(id(launch) for chain in chains for launch in chain.launches)

    def __contains__(self, launch: BoundLaunch) -> bool:
        return id(launch.plan) in self._chained

    def joined(self, launches: Iterable[BoundLaunch]) -> list[BoundLaunch]:
        """Return launches with each chain in the place of its first level."""
        found = (self._places.get(id(launch.plan), launch) for launch in launches)
        return list({id(launch): launch for launch in found}.values())

    def bind(
        self, launches: Iterable[BoundLaunch], device: GpuDevice, builds: Builds, slots: Slots, *, share: bool
    ) -> None:
        """Let launches share one as planned, now that each has its memory, if they may `share` one.

        Where the compiler refuses the kernel of a chain, its levels are built.
        """
        known = {id(launch.plan): launch for launch in launches}
        planned = [(chain, tuple(known[id(launch)] for launch in chain.launches)) for chain in self._planned]
        if not share:
            _build((level for _, levels in planned for level in levels), builds)
            return
        chains = [self._bound(chain, levels, device, builds, slots) for chain, levels in planned]
        errors = builds.attempt([chain.build for chain in chains])
        refused = [(chain, e) for chain, e in zip(chains, errors, strict=True) if e is not None]
        for chain, _ in refused:
            _build(chain.levels, builds)
        self.notes = [
            f"{len(chain.levels)} launches from {chain.plan.node!r} on do not share one: {e.what}"
            for chain, e in refused
        ]
        self.bound = [chain for chain, e in zip(chains, errors, strict=True) if e is None]
        self._places = {id(level.plan): chain for chain in self.bound for level in chain.levels}

    def _bound(
        self, chain: PlannedChain, levels: tuple[BoundLaunch, ...], device: GpuDevice, builds: Builds, slots: Slots
    ) -> BoundChain:
        """Return a chain in the memory of its levels, with a counter of its own."""
        tensors = {
            id(planned): bound
            for level in levels
            for planned, bound in zip(
                (*level.plan.reads, *level.plan.writes), (*level.reads, *level.writes), strict=True
            )
        }
        counter = Tensor(f"{chain.launches[0].owner}.counter", (COUNTER_WORDS,), DType.UINT32)
        counter.memory = slots.acquire(counter, StorageType.STATIC)
        self._counters.append(counter)
        binding = counter.memory.binding()
        device.upload(binding.buffer, binding.offset, np.zeros(COUNTER_WORDS, np.uint32))
        reads, writes = (tuple(tensors[id(t)] for t in each) for each in (chain.reads, chain.writes))
        return BoundChain(chain, builds.build(chain), reads, (counter, *writes), levels)

    def build_levels(self, builds: Builds) -> None:
        """Build the kernels of which chains have taken the place."""
        _build((level for chain in self.bound for level in chain.levels), builds)

    def check(self, device: GpuDevice, took: float) -> None:
        """Raise DeviceError if work-groups gave up in the last run. On a GPU that takes a while."""
        if not device.info.software and took < LEAST_WAIT:
            return
        words, info = np.zeros(COUNTER_WORDS, np.uint32), device.info
        for chain in self.bound:
            counter = chain.writes[0].memory.binding()
            device.download(counter.buffer, counter.offset, words)
            if words[1]:
                self.gave_up = True
                raise DeviceError(
                    "the run has no results: work-groups that wait for each other did not all run at once",
                    where=f"{info.id}:{info.index} ({info.name}), launch {chain.label!r}",
                    why=f"one of its {prod(chain.grid)} work-groups looked {MOST_ROUNDS:,} times for the others; "
                    "another program may keep the device busy",
                    fix="run again: launches that shared one are separate from now on; for that from the start, pass "
                    f'backend_options={{"{info.id}": {{"chains": False}}}}',
                )

    def part(self, slots: Slots) -> None:
        """Launch the levels of chains one by one from now on; their kernels must be built."""
        self.drop(slots)
        self.gave_up = False
        self.notes = [
            "the launches that are listed as one run separately since work-groups that wait for each other did not all "
            "run at once"
        ]

    def drop(self, slots: Slots) -> None:
        """Free the counters and forget what is bound; the plan stays until there is another one."""
        for counter in self._counters:
            slots.release(counter, StorageType.STATIC)
        self.bound, self._places, self._counters = (), {}, []


def _build(levels: Iterable[BoundLaunch], builds: Builds) -> None:
    for level in levels:
        builds.add(level.owner, [level.build])
