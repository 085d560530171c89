"""Test kernels in child processes: start them, read their reports, and the child's own side.

A child is this interpreter with this process's module path. It imports Weft and the modules that register kinds, never
the user's program. It reports each kind before and after its test, so that a crash can be blamed on a kind. It ends at
the first failure, because a device may answer nothing correctly after a fault; another child tests the rest. It says
when it has no more to report, because a driver may take a second to end a process, which nobody has to wait for.

Compilers take most of a test's time, and some drivers (NVIDIA's for OpenCL) compile one kernel of a process at a time.
So several children share the kinds at first: all read from one pipe which to test next, the longest test first.
A kind that fails there is tested again by itself, because the fault of one child may take the device from all.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from itertools import accumulate
from typing import IO, Any

from weft.backends.gpu.runtime import GpuRuntime, OpensRuntimes
from weft.backends.gpu.selftest import verdict_store
from weft.backends.gpu.selftest.verdict_store import KEPT
from weft.core.contract.backend import DeviceInfo
from weft.core.contract.backend_options import NO_OPTIONS, Options
from weft.core.host import cancelled
from weft.core.host import child_process as processes
from weft.core.registry.backend_registry import registry
from weft.errors import WeftError
from weft.kernels.special import SpecialKernel, kernel_families, special_kernels
from weft.kernels.verdict import Verdict

MARK = "weft-selftest "
"""The prefix of report lines: drivers may print, too."""
NUMBER = struct.Struct("<I")
"""A kind in the queue: its number in the task."""
TOLD = b"weft-selftest-told"
"""The line after the last report."""
PROGRAM = processes.program(__name__)
OUTSIDE = {s.value for s in signal.Signals if s.name in ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")}
"""Signals from outside, which say nothing about a kernel. Windows has two of them."""
REAP = 5.0
"""Seconds to wait for a killed child: one that hangs in its driver cannot end."""
ASK = "WEFT_SELFTEST=process tests them in the program's own process"


# -- the parent's side -------------------------------------------------------------------------------------


def verdicts(
    device: DeviceInfo, kinds: Sequence[SpecialKernel], timeout: float, beside: int = 1,
    nearly_done: Callable[[], None] = lambda: None, options: Options = NO_OPTIONS,
) -> dict[str, Verdict]:
    """Return the verdict on each kind: from up to `beside` children side by side, then one child after the other.

    The children open the device with these options. A thread calls `nearly_done` when about a third of the work of
    several children is left.
    """
    found: dict[str, Verdict] = {}
    if (count := min(beside, len(kinds))) > 1:
        longest_first = sorted(kinds, key=lambda kind: -kind.seconds)
        for new, _ in _children(device, options, longest_first, timeout, count, nearly_done):
            found |= {name: verdict for name, verdict in new.items() if not verdict.is_fault}
    left = [kind for kind in kinds if kind.name not in found]
    while left:
        [(new, problem)] = _children(device, options, left, timeout)
        found |= new
        left = [kind for kind in left if kind.name not in found]
        if left and not new:
            why = f"the process that is to test them did not get so far: {problem}; {ASK}"
            return found | {kind.name: Verdict(why, lasting=False) for kind in left}
    return found


def _children(
    device: DeviceInfo, options: Options, kinds: Sequence[SpecialKernel], timeout: float, count: int = 1,
    nearly_done: Callable[[], None] = lambda: None,
) -> list[tuple[dict[str, Verdict], str]]:
    """Return for each child the verdicts that it gave, and how it ended if it failed."""
    if not processes.has_interpreter():
        return [({}, "this program has no Python interpreter of its own")] * count
    work = accumulate(kind.seconds for kind in reversed(kinds))
    last = sum(1 for left in work if left < sum(kind.seconds for kind in kinds) / 3)
    begins = _line(kind=kinds[-last].name).encode() if last else None

    def heard(line: bytes) -> None:
        if line.rstrip() == begins:
            nearly_done()

    deadline = time.monotonic() + timeout
    with ExitStack() as held:
        # A file never fills up, as a pipe does that nobody reads.
        errors = [held.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        queue = held.enter_context(_queue(len(kinds)))
        try:
            children = [held.enter_context(_Child(_start(device, options, kinds, queue, e), e, heard)) for e in errors]
        except OSError as e:
            return [({}, f"{sys.executable} cannot be started: {e.strerror}")] * count
        return [_judge(child.status(deadline), *child.printed(), timeout) for child in children]


@contextmanager
def _queue(count: int) -> Iterator[int]:
    """Give the reading end of a pipe that holds so many numbers and ends behind them."""
    out, into = os.pipe()
    try:
        try:
            os.write(into, b"".join(map(NUMBER.pack, range(count))))  # the pipe takes far more of them
        finally:
            os.close(into)
        yield out
    finally:
        os.close(out)


def _judge(status: int | None, out: bytes, error: bytes, timeout: float) -> tuple[dict[str, Verdict], str]:
    """Return the verdicts that a child printed, with one on the kind that ended it, and how it ended."""
    found, begun = _read(out)
    problem, lasting = _how_it_ended(status, error, timeout)
    if begun and begun not in found:
        until = time.time() + KEPT if status is None else None
        found[begun] = Verdict(f"its test in a process of its own {problem}", lasting=lasting, until=until)
    return found, problem


class _Child:
    """A child process, and what it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], error: IO[bytes], heard: Callable[[bytes], None]) -> None:
        """Listen to the process: a thread calls `heard` with each line that it prints; its errors are in `error`."""
        self._process, self._error, self._heard = process, error, heard
        self._out: list[bytes] = []
        self._told = False
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, name="weft-selftest", daemon=True)
        self._reader.start()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # however far it is

    def status(self, deadline: float) -> int | None:
        """Wait until it has told all or ended; return 0 or its status, and None if neither came in time."""
        cancelled.wait(self._over, max(deadline - time.monotonic(), 0))
        if self._told:
            return 0
        self._reader.join(max(deadline - time.monotonic(), 0))
        if not self._reader.is_alive():
            return self._process.returncode
        self._process.kill()
        self._reader.join(REAP)
        return None

    def printed(self) -> tuple[bytes, bytes]:
        """Return what it has printed, and its errors."""
        self._error.seek(0)
        return b"".join(self._out), self._error.read()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._out.append(line)
                self._heard(line)
                if line.startswith(TOLD):
                    self._told = True
                    self._over.set()
        self._over.set()
        self._process.wait()


def _start(
    device: DeviceInfo, options: Options, kinds: Sequence[SpecialKernel], queue: int, error: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a child that reads from the queue which of the kinds to test next; OSError if that fails."""
    facts = {name: getattr(device, name) for name in ("id", "index", "name", "driver", "uuid")}
    task = {"device": facts, "options": dict(options), "kinds": [(kind.module, kind.name) for kind in kinds]}
    return processes.start(
        PROGRAM,
        json.dumps(task),
        stdin=queue,
        stderr=error.fileno(),
        WEFT_SELFTEST="process",
        WEFT_BUILD_PROCESSES="0",
    )


def _how_it_ended(status: int | None, error: bytes, timeout: float) -> tuple[str, bool]:
    """Return how a child ended, as the end of a sentence, and whether to blame the kernel."""
    if status is None:
        return f"did not end within {timeout:g} s", True
    if status < 0:
        number = -status
        names = {s.value: s.name for s in signal.Signals}
        return f"was ended by {names.get(number, f'signal {number}')}", number not in OUTSIDE
    last = error.decode(errors="replace").strip().rpartition("\n")[2]
    return f"ended with status {status}" + (f" ({last[:200]})" if last else ""), True


def _read(out: bytes) -> tuple[dict[str, Verdict], str]:
    """Return the verdicts that a child printed, and the last kind whose test it began."""
    found, begun = {}, ""
    for report in _reports(out.decode(errors="replace")):
        begun = str(report["kind"])
        if "verdict" in report:
            found[begun] = Verdict(**report["verdict"])
    return found, begun


def _reports(out: str) -> Iterator[Mapping[str, Any]]:
    for line in out.splitlines():
        if line.startswith(MARK):
            with suppress(ValueError):  # for a line that a crash cut off
                yield json.loads(line[len(MARK) :])


# -- the child's side --------------------------------------------------------------------------------------


def main(text: str) -> None:
    """Test kinds of a task on its device as long as stdin names one, report each, and end the process."""
    task = json.loads(text)
    for module, _ in task["kinds"]:
        import_module(module)
    runtime = _open(DeviceInfo(**task["device"]), Options(task["options"]))
    known = {kind.name: kind for kind in (*special_kernels(), *kernel_families())}
    while number := os.read(sys.stdin.fileno(), NUMBER.size):
        name = task["kinds"][NUMBER.unpack(number)[0]][1]
        _print(_line(kind=name))
        verdict = verdict_store.verdict(known[name], runtime)
        _print(_line(kind=name, verdict=asdict(verdict)))
        if verdict.is_fault:
            break
    _print(TOLD.decode())
    os._exit(0)  # do not test what the driver does at the end of a process


def _open(device: DeviceInfo, options: Options) -> GpuRuntime:
    """Return the runtime of the parent's device; SystemExit, which blames no kernel, if it cannot be opened here."""
    try:
        creator = registry.find(device.id)
        if not isinstance(creator, OpensRuntimes):
            raise SystemExit(f"{device.id} is not a GPU backend there")
        runtime = creator.runtime(device.index, options)
    except WeftError as e:
        raise SystemExit(e.what) from None
    own = runtime.device.info
    if (own.name, own.driver, own.uuid) != (device.name, device.driver, device.uuid):
        told = " in place of ".join(f"{d.name}, {d.driver}, {d.uuid or 'no UUID'}" for d in (own, device))
        raise SystemExit(f"it finds {told}")
    runtime.trust()  # a check that loads a network must not start a self-test
    return runtime


def _line(**facts: object) -> str:
    """Return the line of a report."""
    return f"{MARK}{json.dumps(facts)}"


def _print(line: str) -> None:
    # It must start a line, even if a driver printed part of one.
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()
