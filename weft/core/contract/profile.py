"""What a run cost: events and counters that backends report, in one table (A13)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import numpy as np

from weft.core.contract import check_answers
from weft.core.graph.fused_op import Fused
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.errors import BackendError, ConfigError, brief

Profiled = bool | Literal["span"]
"""What is timed: nothing, everything, or on GPUs no single launches, but all of a run's together ("span").

To time single launches makes a run slower, and keeps them from running side by side. Either way a run computes the
whole batch at once, and nothing while the host copies.
"""
SPAN = "span"
"""The counter of seconds from the start of a run's first launch to the end of its last."""


@dataclass(frozen=True, slots=True)
class Work:
    """The least work that a node must do; all events that are the node's alone name the same."""

    node: str
    flops: int
    """As the op counts them: two for a multiply-add."""
    nbytes: int
    """Bytes of its inputs and weights, each read once, and its outputs, written once; without padding."""

    @classmethod
    def of(cls, node: str, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> Work:
        """Return the work of a node whose shapes are known."""
        written = [prod(t.shape) for t in outputs]
        # A dict, because a value that is read twice comes from memory once.
        read = {t.name: (prod(t.shape), t.dtype.itemsize) for t in inputs if t is not None}
        most, base = max(written, default=0), op.base if isinstance(op, Fused) else op
        nbytes = sum((min(n, most) if base.reads_part else n) * size for n, size in read.values())
        nbytes += sum(n * t.dtype.itemsize for n, t in zip(written, outputs, strict=True))
        flops = op.flops([None if t is None else t.shape for t in inputs], [t.shape for t in outputs])
        return cls(node, flops, nbytes)

    @classmethod
    def sum(cls, name: str, parts: Sequence[Work]) -> Work:
        """Return the work of several nodes, under a name of their own."""
        return cls(name, sum(part.flops for part in parts), sum(part.nbytes for part in parts))


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time in the last run: a node, a kernel, a copy, or whatever a backend names."""

    device: str
    name: str
    seconds: float
    work: Work | None = None
    """The work of the node that it belongs to, if the backend says so."""


@dataclass(eq=False)
class Profile:
    """The events of a session's last run, in the order reported, and the backends' counters."""

    events: list[Event] = field(default_factory=list)
    timed: Profiled = True
    """What GPUs time; never False."""
    _counted: dict[ProfilingContext, dict[str, float]] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    """The devices of which the last run has events, not counting copies from other devices."""
    _taking_part: set[ProfilingContext] = field(default_factory=set)
    """Where the backends of the last run report to; a stage that it did not come to has others."""
    _ran: list[str] = field(default_factory=list)
    """The devices that the last run was on, once it is done."""

    @classmethod
    def of(cls, profile: Profiled) -> Profile | None:
        """Return the profile of a session, None for False; ConfigError for what `Profiled` does not have."""
        if isinstance(profile, str) and profile == "span":
            return cls(timed="span")
        if not isinstance(profile, (int, np.bool_)) or profile not in (0, 1):
            raise ConfigError(
                f"profile={brief(repr(profile))} is not known",
                fix='pass True, or "span" for the time of all launches of a run together',
            )
        return cls() if profile else None

    @property
    def untimed(self) -> list[str]:
        """Return the devices of the last run that told no times of their work; none before it is done."""
        return [device for device in self._ran if device not in self._reported]

    @property
    def counters(self) -> dict[tuple[str, str], float]:
        """Return each counter by (device, name): the newest values, summed over the network's parts on that device.

        Stages that the last run did not come to have no part in it.
        """
        sums: dict[tuple[str, str], float] = {}
        counted = self._counted.items()
        for context, values in [(c, v) for c, v in counted if not self._taking_part or c in self._taking_part]:
            for name, value in values.items():
                sums[context.device, name] = sums.get((context.device, name), 0) + value
        return sums

    def begin(self) -> None:
        """Forget the events of the run before."""
        self.events.clear()
        self._reported.clear()
        self._taking_part.clear()
        self._ran.clear()

    def start(self, contexts: Collection[ProfilingContext]) -> None:
        """Note that the backends which report there take part in this run."""
        self._taking_part.update(contexts)

    def end(self, devices: Iterable[str]) -> None:
        """Note that a run, or a stage of one, is done, and the devices that it was on."""
        self._ran = list(dict.fromkeys([*self._ran, *devices]))

    def forget(self, contexts: Collection[ProfilingContext]) -> None:
        """Forget the counters of contexts whose parts no longer exist."""
        self._counted = {c: values for c, values in self._counted.items() if c not in contexts}

    def seconds(self, device: str | None = None) -> float:
        """Return the total time of all events, or of one device's."""
        return sum(e.seconds for e in self.events if device in (None, e.device))

    def __str__(self) -> str:
        lines = [f"{e.seconds * 1e6:12.1f} us  {e.device}  {e.name}" for e in self.events]
        lines += [f"{v:15g}  {d}  {n}" for (d, n), v in self.counters.items()]
        return "\n".join(lines + [f"{'no times':>15}  {device}" for device in self.untimed])


@dataclass(frozen=True, slots=True, eq=False)
class ProfilingContext:
    """Where one backend object reports to; `BackendInfo.profiling` holds it while a session is profiled."""

    device: str
    profile: Profile

    @property
    def timed(self) -> Profiled:
        """Return what a GPU times: everything (True), or all launches of a run together ("span")."""
        return self.profile.timed

    def event(self, name: str, seconds: float, work: Work | None = None) -> None:
        """Report how long something took in this run, and which node's work it belongs to.

        BackendError if the name is not a text or the seconds are not a number from 0 on.
        """
        check_answers.reported(f"{self.device}: ProfilingContext.event", name, seconds)
        if work is not None and not isinstance(work, Work):
            raise BackendError(
                f"the event {name!r} has work {check_answers.shown(work)}",
                where=f"{self.device}: ProfilingContext.event",
                why="it must be Work.of(node, op, inputs, outputs), or None",
                fix="leave it out for what is no node's work",
            )
        self.profile._reported.add(self.device)
        self.profile.events.append(Event(self.device, name, seconds, work))

    def counter(self, name: str, value: float) -> None:
        """Report the newest value of a counter; BackendError unless the value is a number and the name a text."""
        check_answers.reported(f"{self.device}: ProfilingContext.counter", name, value, least=None)
        if name == SPAN and self.timed == "span":
            self.profile._reported.add(self.device)
        self.profile._counted.setdefault(self, {})[name] = value
