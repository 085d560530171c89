"""What a run cost: events and counters that backends report, in one table (A13)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time in the last run: a node, a kernel, a copy, or what a backend calls it."""

    device: str
    name: str
    seconds: float


@dataclass(eq=False)
class Profile:
    """The events of a session's last run, in the order of their report, and the backends' counters."""

    events: list[Event] = field(default_factory=list)
    counters: dict[tuple[str, str], float] = field(default_factory=dict)
    """The newest value of each counter, by (device, name)."""

    def seconds(self, device: str | None = None) -> float:
        """Return the time of all events, or of those of one device."""
        return sum(e.seconds for e in self.events if device in (None, e.device))

    def __str__(self) -> str:
        lines = [f"{e.seconds * 1e6:12.1f} us  {e.device}  {e.name}" for e in self.events]
        return "\n".join(lines + [f"{v:15g}  {d}  {n}" for (d, n), v in self.counters.items()])


@dataclass(frozen=True, slots=True)
class ProfilingContext:
    """Where one backend reports to; `BackendInfo.profiling` holds it while a session is profiled."""

    device: str
    profile: Profile

    def event(self, name: str, seconds: float) -> None:
        """Report that something took so long in this run."""
        self.profile.events.append(Event(self.device, name, seconds))

    def counter(self, name: str, value: float) -> None:
        """Report the newest value of a counter."""
        self.profile.counters[self.device, name] = value
