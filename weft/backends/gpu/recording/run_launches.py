"""What a pipeline launches in every run: some nodes on each micro-batch, then the others, some launches as chains."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.backends.gpu.recording.launches import BoundLaunch
from weft.backends.gpu.recording.micro_batches import WHOLE_BATCH, MicroBatches
from weft.backends.gpu.recording.run_chains import RunChains


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
    chains: RunChains = field(default_factory=RunChains)
    """Those of `rest` that share one."""

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
        """Return the launches of a run on the whole batch, none of them joined into chains."""
        return [*(self.undivided or self._divided), *self.rest]

    @property
    def separate(self) -> list[BoundLaunch]:
        """Return all launches as if none shared one."""
        return [*self._divided, *self.rest]

    @property
    def joined(self) -> list[BoundLaunch]:
        """Return the launches on the whole batch, each chain in the place of its first one."""
        return self.chains.joined(self.rest)

    @property
    def _divided(self) -> list[BoundLaunch]:
        return [launch for number in sorted(self.of_micro_batches) for launch in self.of_micro_batches[number]]

    def clear(self) -> None:
        """Forget all launches; the plan of chains and micro-batches stays until there is another one."""
        self.rest, self.of_micro_batches, self.undivided = [], {}, []
