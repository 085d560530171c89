"""Test kernels in child processes: start them, read their reports, and the child's own side.

A child is this interpreter with this process's module path. It imports Weft and the modules that register kinds, never
the user's program. It reports each kind before and after its test, so that a crash can be blamed on a kind. It ends at
the first failure, because a device may answer nothing correctly after a fault; another child tests the rest. It says
when it has no more to report, because a driver may take a second to end a process, which nobody has to wait for.

Compilers take most of a test's time, and some drivers (NVIDIA's for OpenCL) compile one kernel of a process at a time.
So several children share the kinds at first, dealt by the time of their tests. A kind that fails there is tested again
by itself, because the fault of one child may take the device from all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from importlib import import_module
from typing import IO, Any

from weft.backends.gpu.runtime import GpuRuntime, OpensRuntimes
from weft.backends.gpu.selftest import verdict_store
from weft.backends.gpu.selftest.verdict_store import KEPT
from weft.core.contract.backend import DeviceInfo
from weft.core.host import child_process as processes
from weft.core.registry.backend_registry import registry
from weft.errors import WeftError
from weft.kernels.special import SpecialKernel, kernel_families, special_kernels
from weft.kernels.verdict import Verdict

MARK = "weft-selftest "
"""The prefix of report lines: drivers may print, too."""
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
    device: DeviceInfo, kinds: Sequence[SpecialKernel], timeout: float, beside: int = 1
) -> dict[str, Verdict]:
    """Return the verdict on each kind: from up to `beside` children side by side, then one child after the other."""
    found: dict[str, Verdict] = {}
    if min(beside, len(kinds)) > 1:
        for new, _ in _children(device, dealt(kinds, beside), timeout):
            found |= {name: verdict for name, verdict in new.items() if not verdict.is_fault}
    left = [kind for kind in kinds if kind.name not in found]
    while left:
        [(new, problem)] = _children(device, [left], timeout)
        found |= new
        left = [kind for kind in left if kind.name not in found]
        if left and not new:
            why = f"the process that is to test them did not get so far: {problem}; {ASK}"
            return found | {kind.name: Verdict(why, lasting=False) for kind in left}
    return found


def dealt(kinds: Sequence[SpecialKernel], groups: int) -> list[list[SpecialKernel]]:
    """Return the kinds in groups that take about equally long; each kind, longest first, joins the shortest group."""
    shares: list[list[SpecialKernel]] = [[] for _ in range(groups)]
    for kind in sorted(kinds, key=lambda kind: -kind.seconds):
        min(shares, key=lambda share: sum(each.seconds for each in share)).append(kind)
    return shares


def _children(
    device: DeviceInfo, groups: Sequence[Sequence[SpecialKernel]], timeout: float
) -> list[tuple[dict[str, Verdict], str]]:
    """Return the verdicts of a child for each group that has kinds, and how it ended if it failed."""
    groups = [kinds for kinds in groups if kinds]
    if not processes.has_interpreter():
        return [({}, "this program has no Python interpreter of its own")] * len(groups)
    deadline = time.monotonic() + timeout
    with ExitStack() as held:
        # A file never fills up, as a pipe does that nobody reads.
        errors = [held.enter_context(tempfile.TemporaryFile()) for _ in groups]
        try:
            children = [held.enter_context(_Child(device, *each)) for each in zip(groups, errors, strict=True)]
        except OSError as e:
            return [({}, f"{sys.executable} cannot be started: {e.strerror}")] * len(groups)
        return [_judge(child.status(deadline), *child.printed(), timeout) for child in children]


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

    def __init__(self, device: DeviceInfo, kinds: Sequence[SpecialKernel], error: IO[bytes]) -> None:
        """Start it; OSError if that fails."""
        self._error = error
        self._process = _start(device, kinds, error.fileno())
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
        self._over.wait(max(deadline - time.monotonic(), 0))
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
                if line.startswith(TOLD):
                    self._told = True
                    self._over.set()
        self._over.set()
        self._process.wait()


def _start(device: DeviceInfo, kinds: Sequence[SpecialKernel], error: int) -> subprocess.Popen[bytes]:
    facts = {"id": device.id, "index": device.index, "name": device.name, "driver": device.driver}
    task = {"device": facts, "kinds": [(kind.module, kind.name) for kind in kinds]}
    return processes.start(
        PROGRAM,
        json.dumps(task),
        stdin=subprocess.DEVNULL,
        stderr=error,
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
    """Test the kinds of a task on its device, report each, and end the process."""
    task = json.loads(text)
    for module, _ in task["kinds"]:
        import_module(module)
    runtime = _open(DeviceInfo(**task["device"]))
    known = {kind.name: kind for kind in (*special_kernels(), *kernel_families())}
    for _, name in task["kinds"]:
        kind = known[name]
        _report(kind=name)
        verdict = verdict_store.verdict(kind, runtime)
        _report(kind=name, verdict=asdict(verdict))
        if verdict.is_fault:
            break
    _print(TOLD.decode())
    os._exit(0)  # do not test what the driver does at the end of a process


def _open(device: DeviceInfo) -> GpuRuntime:
    """Return the runtime of the parent's device; SystemExit, which blames no kernel, if it cannot be opened here."""
    try:
        creator = registry.find(device.id)
        if not isinstance(creator, OpensRuntimes):
            raise SystemExit(f"{device.id} is not a GPU backend there")
        runtime = creator.runtime(device.index)
    except WeftError as e:
        raise SystemExit(e.what) from None
    own = runtime.device.info
    if (own.name, own.driver) != (device.name, device.driver):
        raise SystemExit(f"it finds {own.name}, {own.driver} in place of {device.name}, {device.driver}")
    runtime.trust()  # a check that loads a network must not start a self-test
    return runtime


def _report(**facts: object) -> None:
    _print(f"{MARK}{json.dumps(facts)}")


def _print(line: str) -> None:
    # It must start a line, even if a driver printed part of one.
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()
