"""Runs shifts of cases in child processes and records how each of them ends."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from scripts.fuzz.target import Target
from scripts.memory import resident_megabytes

LOOK = 0.25
"""Seconds between two checks of a child's memory and time."""
WAITING = 6
"""A case may take this many times its target's seconds by the wall clock, since other processes use the cores, too."""
WARM = 200
"""Cases in which a child may grow, as it meets every driver; of more than three times as many cases, a third."""
LAST = 50
"""The last cases, which show what a child holds permanently."""
MOST_FAULTS = 3
"""A target is given up after this many children in a row ended before their first case."""
GROWTH = 300
"""Megabytes by which a child may grow after that."""
ROOT = Path(__file__).parents[2]
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Found:
    """A finding: what it is, the case that showed it, and a folder with that case's files."""

    kind: str
    key: str
    text: str
    target: str
    device: str
    seed: int
    case: int
    folder: Path | None = None


@dataclass(frozen=True)
class Run:
    """What all shifts share: the stream of cases and its end, where findings go, and when to stop."""

    seed: int
    last: int
    found: Callable[[Found], None]
    stopped: Callable[[], bool]


@dataclass
class Shift:
    """The work of one target on one device."""

    target: type[Target]
    device: str
    next: int = 0
    words: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    growth: float = 0.0
    """The most megabytes by which a child grew after the first third of its cases."""
    given_back: float = 0.0
    """Megabytes that the children freed at their end: unused kernels and free memory; not part of `growth`."""
    faults: int = 0
    """Children in a row that ended before their first case."""

    @property
    def cases(self) -> int:
        """Return the number of cases checked."""
        return sum(self.words.values())


@dataclass
class Child:
    """A worker process, its current case, and what it has used."""

    process: subprocess.Popen[bytes]
    log: Path
    at: int | None = None
    since: float = 0.0
    used: float = 0.0
    ready: float = 0.0
    """Its megabytes before its first case."""
    held: list[float] = field(default_factory=list)
    """Its megabytes after each case, as it reports them: it may be many cases ahead of what was read."""
    settled: float | None = None
    """Its megabytes at the end, without unused kernels."""

    def clock(self) -> float:
        """Return the processor seconds that the process has used."""
        fields = self._read("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS if len(fields) > 12 else 0.0

    def megabytes(self) -> float:
        """Return the share of the machine's memory that the process holds."""
        return resident_megabytes(self.process.pid)

    def grown(self) -> float:
        """Return its permanent growth after the first third of its cases, or after the first WARM.

        A single large case does not count, and neither do kernels that a device keeps for later use.
        """
        if len(self.held) < WARM + LAST:
            return 0.0
        warm = max(self.held[: max(WARM, len(self.held) // 3)])
        return max(min(*self.held[-LAST:], self.settled or float("inf")) - warm, 0.0)

    def given_back(self) -> float:
        """Return the megabytes that it freed at its end: unused kernels, and free memory."""
        return max(min(self.held[-LAST:]) - self.settled, 0.0) if self.held and self.settled else 0.0

    def _read(self, name: str) -> str:
        try:
            return Path(f"/proc/{self.process.pid}/{name}").read_text()
        except OSError:  # it has ended
            return ""

    def stop(self) -> None:
        """End it, after it has reported its current case."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGABRT)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def work(shift: Shift, run: Run, scratch: Path, seconds: float) -> None:
    """Run cases for a time or until the last; a child that ends early is a finding, and another one continues."""
    begun = monotonic()
    while shift.next < run.last and shift.faults < MOST_FAULTS and not run.stopped():
        left = begun + seconds - monotonic()
        if left <= 0:
            break
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        _child(shift, run, scratch, left)
    shift.seconds += monotonic() - begun
    shutil.rmtree(scratch, ignore_errors=True)


def _child(shift: Shift, run: Run, scratch: Path, seconds: float) -> None:
    read, write = os.pipe()
    order = {
        "target": shift.target.name, "device": shift.device, "seed": run.seed, "first": shift.next,
        "last": run.last, "seconds": seconds, "scratch": str(scratch), "answers": write,
        "module": shift.target.__module__,
    }
    log = scratch / "log"
    environment = {**os.environ, "WEFT_CACHE_DIR": str(scratch / "cache"), "PYTHONFAULTHANDLER": "1"}
    with open(log, "wb") as out:
        command = [sys.executable, "-m", "scripts.fuzz.worker", json.dumps(order)]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            pass_fds=[write],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the parent, which ends the children
            stdout=out,
            stderr=out,
        )
    os.close(write)
    child = Child(process, log, since=monotonic())
    lines = _Lines(read)
    try:
        ended = _watch(shift, run, child, lines)
    finally:
        child.stop()
        lines.close()
    if ended is not None:
        kind, text = ended
        at = child.at if child.at is not None else shift.next
        shift.faults += child.at is None
        shift.words[kind] += child.at is not None
        shift.next = at + (child.at is not None)
        tail = log.read_text(errors="replace")[-6000:]
        what = (kind, _key(kind, text, tail), f"{text}\n{tail}")
        folder = None if child.at is None else scratch / "case"
        run.found(Found(*what, shift.target.name, shift.device, run.seed, at, folder))


def _watch(shift: Shift, run: Run, child: Child, lines: _Lines) -> tuple[str, str] | None:
    """Record what a child reports until it ends; return how it ended if that is a finding."""
    limit = shift.target.seconds
    allowed = shift.target.megabytes
    while True:
        for said in lines.wait(LOOK):
            if "begin" in said:
                child.at, child.since, child.used = said["begin"], monotonic(), child.clock()
                child.ready = child.ready or child.megabytes()
            elif "fault" in said:
                return "fault", f"the target itself failed\n{said['fault']}"
            elif "settled" in said:
                child.settled = said["settled"]
            else:
                _ended(shift, run, child, said)
        if lines.over:
            code = child.process.wait()
            if code == 0:
                grown = child.grown()
                shift.growth, shift.given_back = max(shift.growth, grown), max(shift.given_back, child.given_back())
                if grown > GROWTH:
                    return "growth", f"it grew by {grown:.0f} MB after the first third of {len(child.held)} cases"
                return None
            if run.stopped():
                return None
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return "crash", f"the process ended with {name}"
        if run.stopped():
            return None
        held = child.megabytes()
        if child.at is None:
            if monotonic() - child.since > 20 * WAITING:
                return "hang", "the target was not ready in time"
        elif child.clock() - child.used > limit or monotonic() - child.since > WAITING * limit:
            return (
                "hang",
                f"it took more than {limit:g} seconds of processor time, or {WAITING * limit:g} by the clock",
            )
        if child.ready and held - child.ready > allowed:
            return "memory", f"the process grew by {held - child.ready:.0f} MB; {allowed} are allowed"


def _ended(shift: Shift, run: Run, child: Child, said: dict[str, Any]) -> None:
    shift.next, shift.faults = said["end"] + 1, 0
    child.since, child.used = monotonic(), child.clock()
    child.held.append(said["held"])
    shift.words[said.get("word") or said["kind"]] += 1
    if "kind" in said:
        folder = Path(said["folder"])
        what = (said["kind"], said["key"], said["text"])
        run.found(Found(*what, shift.target.name, shift.device, run.seed, said["end"], folder))
        shutil.rmtree(folder, ignore_errors=True)


def _key(kind: str, text: str, tail: str) -> str:
    """Return the innermost function of Weft in an exception, or in the trace of a dying process: its first."""
    if kind in ("growth", "memory"):
        return kind
    first, _, trace = text.partition("\n")
    frames = reversed(trace.splitlines()) if kind == "fault" else tail.splitlines()
    lines = [line.strip() for line in frames if "/weft/" in line and "File " in line]
    return f"{first} in {lines[0].partition('/weft/')[2]}" if lines else first


class _Lines:
    """Reads what a child writes into its pipe, line by line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest, self.over = descriptor, b"", False
        self._selector = selectors.DefaultSelector()
        self._selector.register(descriptor, selectors.EVENT_READ)

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """Return new lines; `over` is set once no more can follow."""
        if not self._selector.select(seconds):
            return []
        got = os.read(self._descriptor, 1 << 16)
        self.over = not got
        *lines, self._rest = (self._rest + got).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the pipe."""
        self._selector.close()
        os.close(self._descriptor)
