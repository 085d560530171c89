"""What a pipeline launches in every run: some nodes on each micro-batch, then the others, some launches as chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.backends.gpu.recording.launches import BoundChain, BoundLaunch, PlannedChain
from weft.backends.gpu.recording.micro_batches import WHOLE_BATCH, MicroBatches


@dataclass(eq=False)
class RunLaunches:
    """The launches of a run, and which of them share one."""

    rest: list[BoundLaunch] = field(default_factory=list)
    """The launches of all nodes but those on micro-batches, as if none shared one."""
    micro_batches: MicroBatches = WHOLE_BATCH
    """The nodes that run on a micro-batch while the host copies the next."""
    of_micro_batches: dict[int, list[BoundLaunch]] = field(default_factory=dict)
    """The launches on each micro-batch, by its number."""
    undivided: list[BoundLaunch] = field(default_factory=list)
    """The launches of the nodes on micro-batches in a run that begins when the whole batch is there.

    Empty where the micro-batches serve for that, too.
    """
    _chains: Sequence[PlannedChain] = ()
    _chained: frozenset[int] = frozenset()
    """The `id` of each planned launch in a chain."""
    _bound: dict[int, BoundChain] = field(default_factory=dict)
    """The chains with memory and kernels, by the `id` of each planned launch in them."""

    @property
    def divided_input(self) -> str:
        """Return the input whose micro-batches have launches; "" if there is none."""
        return self.micro_batches.input if self.of_micro_batches else ""

    @property
    def planned(self) -> list[BoundLaunch]:
        """Return all launches, in the order of their submits."""
        return [*self._divided, *self.joined]

    @property
    def at_once(self) -> list[BoundLaunch]:
        """Return the launches of a run that begins when the whole batch is there."""
        return [*(self.undivided or self._divided), *self.joined]

    @property
    def one_by_one(self) -> list[BoundLaunch]:
        """Return the launches of a run on the whole batch as if none shared one."""
        return [*(self.undivided or self._divided), *self.rest]

    @property
    def separate(self) -> list[BoundLaunch]:
        """Return all launches as if none shared one."""
        return [*self._divided, *self.rest]

    @property
    def joined(self) -> list[BoundLaunch]:
        """Return the launches on the whole batch, each chain in the place of its first one."""
        found = (self._bound.get(id(launch.plan), launch) for launch in self.rest)
        return list({id(launch): launch for launch in found}.values())

    @property
    def _divided(self) -> list[BoundLaunch]:
        return [launch for number in sorted(self.of_micro_batches) for launch in self.of_micro_batches[number]]

    def plan_chains(self, chains: Sequence[PlannedChain]) -> None:
        """Note which launches are to share one."""
        self._chains = chains
        self._chained = frozenset(id(launch) for chain in chains for launch in chain.launches)

    def is_chained(self, launch: BoundLaunch) -> bool:
        """Tell whether a launch is to share one with others."""
        return id(launch.plan) in self._chained

    def unchained(self) -> list[tuple[PlannedChain, list[BoundLaunch]]]:
        """Return the planned chains with their launches, now that each of these is bound to memory."""
        bound = {id(launch.plan): launch for launch in self.rest}
        return [(chain, [bound[id(launch)] for launch in chain.launches]) for chain in self._chains]

    def chain(self, chains: Sequence[BoundChain]) -> None:
        """Let chains take the place of their launches."""
        self._bound = {id(level.plan): chain for chain in chains for level in chain.levels}

    def clear(self) -> None:
        """Forget all launches; the plan of chains and micro-batches stays until there is another one."""
        self.rest, self.of_micro_batches, self.undivided, self._bound = [], {}, [], {}
