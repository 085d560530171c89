"""How a run is divided into submissions, so that no watchdog takes a long one for a hang.

Drivers reset a device whose work does not end in time: after two seconds on Windows, on some phones after one or less.
They count each submission by itself. A run is divided by what its launches are expected to take, and anew if runs turn
out to take longer. A launch that takes too long alone becomes several (`divided_launches`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from weft.backends.gpu.device.device import BarrierCommand, Command, CopyCommand, GpuDevice
from weft.backends.gpu.recording.divided_launches import MOST_PARTS, divided, most_parts
from weft.backends.gpu.recording.launches import BoundLaunch

LONGEST = 0.5
"""About the seconds of the longest submission to a GPU. One more submission costs some 10 us."""
CAUTION = 8.0
"""How many times longer than expected launches may take on a device on which nothing has run yet."""
SLACK = 1.25
"""A run is divided anew if a submission takes more than so many times the limit."""
TRIALS = 3
"""Runs of which the time is taken, even if they are short."""
COPIED = 1e4
"""Bytes that are copied in a microsecond."""


@dataclass(frozen=True)
class Division:
    """How the commands of a run are divided."""

    weights: tuple[float, ...] = ()
    """The microseconds that the model expects of each command."""
    cuts: tuple[int, ...] = ()
    """The commands with which another submission begins."""
    divisible: frozenset[int] = frozenset()
    """The commands that can become more launches than they are."""

    @property
    def parts(self) -> list[float]:
        """Return the microseconds that the model expects of each submission."""
        ends = zip((0, *self.cuts), (*self.cuts, len(self.weights)), strict=True)
        return [sum(self.weights[begin:end]) for begin, end in ends]


WHOLE = Division()


@dataclass(frozen=True, slots=True)
class Part:
    """A launch of a run, or one of those that a long one is divided into."""

    launch: BoundLaunch
    us: float
    """The microseconds that the model expects."""
    divisible: bool
    """Whether it could be divided into more."""


@dataclass
class Submissions:
    """Divides the runs of a pipeline, and learns from the time that they take."""

    longest: float = 0.0
    """About the most seconds of a submission; 0: no limit."""
    watches: bool = False
    """Whether the time of the next run is to be noted."""
    expected: Mapping[int, float] = field(default_factory=dict)
    """The microseconds that the model expects of planned launches, by `id`."""
    _pace: float | None = None
    """Seconds of the device for a microsecond of the model; None before the first run."""
    _took: float = inf
    _trials: int = TRIALS

    def begin(self) -> None:
        """Note that the pipeline has other launches now."""
        self._took, self._trials, self.watches = inf, TRIALS, self.longest > 0

    @property
    def most(self) -> float:
        """Return the microseconds that the model may expect of a submission."""
        return self.longest / (CAUTION * 1e-6 if self._pace is None else self._pace) if self.longest else inf

    def in_parts(self, launches: Iterable[BoundLaunch], device: GpuDevice) -> list[Part]:
        """Return the launches; in place of each that takes too long for a submission, those it is divided into."""
        made, most = list[Part](), self.most if device.divides else inf
        for launch in launches:
            us, parts = sum(self.expected.get(id(plan), 0.0) for plan in launch.plans), [launch]
            if us > most:
                parts = list(divided(launch, ceil(min(us / most, MOST_PARTS)), device))
            made += [Part(part, us / len(parts), len(parts) < most_parts(launch, device)) for part in parts]
        return made

    def division(self, commands: Sequence[Command], parts: Mapping[int, Part], device: GpuDevice) -> Division:
        """Return how a run is divided; `parts` are the launches of its commands, by `id`."""
        if not self.longest or not device.divides:
            return WHOLE
        expected = {key: part.us for key, part in parts.items()}
        divisible = [at for at, command in enumerate(commands) if id(command) in parts and parts[id(command)].divisible]
        return self.divide([_weigh(command, expected) for command in commands], divisible)

    def divide(self, weights: Sequence[float], divisible: Iterable[int] = ()) -> Division:
        """Return where commands are cut of which the model expects these microseconds."""
        if not self.longest:
            return WHOLE
        most = self.most
        cuts, now = list[int](), 0.0
        for at, us in enumerate(weights):
            if now and us and now + us > most:
                cuts.append(at)
                now = 0.0
            now += us
        return Division(tuple(weights), tuple(cuts), frozenset(divisible))

    def learn(self, division: Division, took: float, *, waited: bool) -> bool:
        """Note the seconds of a run, at most `took` if nobody `waited`; tell whether it must be divided further."""
        parts = division.parts
        total = sum(parts)
        self._took = took if waited else min(took, self._took)
        self._trials -= waited
        self.watches = self._trials > 0 or self._took > self.longest / 4
        if not total:
            return False
        self._pace = max(self._took / total, 1e-12)
        too_long = max(parts) * self._pace > self.longest * SLACK
        becomes_more = any(division.weights[at] > self.most for at in division.divisible)
        return too_long and (becomes_more or len(self.divide(division.weights).cuts) > len(division.cuts))

    def too_long(self, division: Division) -> list[tuple[int, float]]:
        """Return the commands that take longer than a submission should, with their seconds."""
        seconds = [us * (1e-6 if self._pace is None else self._pace) for us in division.weights]
        return [(at, took) for at, took in enumerate(seconds) if took > self.longest * SLACK]


def _weigh(command: Command, launches: Mapping[int, float]) -> float:
    """Return the microseconds that the model expects of a command; `launches` has those of launches, by `id`."""
    if isinstance(command, BarrierCommand):
        return 0.0
    return command.source.nbytes / COPIED if isinstance(command, CopyCommand) else launches.get(id(command), 0.0)
