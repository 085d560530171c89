"""Child processes that compile kernels in parallel, for drivers that compile one kernel per process at a time.

NVIDIA's OpenCL driver is one: threads gain nothing there. A child process must open the device first, so they are
started only after a few kernels were compiled; until they are ready, the program compiles by itself. They put their
results into the cache on disk, and the program loads them. Kernels that they refuse or fail at, the program compiles
itself, so that it raises the error. They end when no block `hold`s them any more, and with the program. Where a load is
known to come, as after a self-test, they are started before (`expect`).
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from weft import config
from weft.config import MOST_PROCESSES
from weft.core.contract.backend import DeviceInfo
from weft.core.host import child_process
from weft.core.host.parallel_copy import cores
from weft.kernels.source import KernelSource

log = logging.getLogger("weft.opencl")

LEAST = 6
"""Kernels of the usual length to be requested before child processes are started."""
USUAL = 8000
"""Characters of a kernel of the usual length: that of a chain of launches has ten times as many."""
PATIENCE = 10.0
"""Seconds that a kernel waits for a child process that is about to be ready, while the program compiles another one."""
MOST_COMPILERS = 8
EARLY = 4
"""Child processes that are started while a device is tried for the first time, to build the first, general kernels."""
MARK = b"weft-compiler "
"""The start of each answer line: drivers print lines of their own."""
TIMEOUT = 60.0
"""Seconds without an answer after which a child process is given up."""
_LENGTH = struct.Struct("<Q")


def process_count() -> int:
    """Return how many child processes compile: `WEFT_BUILD_PROCESSES`, or half as many as cores, up to a limit."""
    given = config.build_processes()
    return min(MOST_COMPILERS, cores() // 2) if given is None else given


class Compilers:
    """The compiling child processes of one device; several threads may use it."""

    def __init__(self, device: Mapping[str, Any], count: int) -> None:
        """Prepare for the device that `device` describes (see `main`); a `count` of 0 means no child processes."""
        usable = count > 0 and config.cache_enabled() and child_process.has_interpreter()
        self._device, self._count = json.dumps(device), count if usable else 0
        self._lock = threading.Condition()
        self._held = self._starters = self._asked = self._own = 0
        self._begun: list[_Process] = []
        self._ready: deque[_Process] = deque()

    @contextmanager
    def hold(self, *, starts: bool = True) -> Iterator[None]:
        """Keep child processes while a block runs, and allow them to start if it builds many kernels."""
        with self._lock:
            self._held += 1
            self._starters += starts
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1
                self._starters -= starts
            self.close()

    def expect(self, most: int = MOST_PROCESSES) -> None:
        """Start the child processes for a block that will hold them; they end if none does within `PATIENCE`."""
        with self._lock:
            if self._held or self._begun or not self._count:
                return
            self._start(most)
        timer = threading.Timer(PATIENCE, self.close)
        timer.name, timer.daemon = "weft-compilers", True
        timer.start()

    def close(self) -> None:
        """End the child processes, unless a block holds them."""
        with self._lock:
            if self._held:
                return
            ended, self._asked, self._begun = self._begun, 0, []
            self._ready.clear()
            self._lock.notify_all()
        for process in ended:  # closing a context takes time
            threading.Thread(target=process.end, name="weft-compilers", daemon=True).start()

    @contextmanager
    def compiled(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str] = frozenset()
    ) -> Iterator[bool]:
        """Have a child process compile a kernel into the cache on disk, and yield whether it did.

        If not, none is free or it failed, and it is the program's turn to compile the kernel in the block.
        """
        process = self._take(len(source.text))
        done = process is not None and self._compiled_by(process, source, values, varying)
        if process is not None and not done:
            self._turn(1)
        try:
            yield done
        finally:
            if not done:
                self._turn(-1)

    def _compiled_by(
        self, process: _Process, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> bool:
        try:
            done = process.compile(source, values, varying)
        except (OSError, EOFError, TimeoutError, ValueError) as e:  # ValueError: its pipe is closed
            log.info("a process that compiles is given up: %r", e)
            process.kill()
            return False
        self._offer(process)
        return done

    def _turn(self, count: int) -> None:
        """Note that the program begins to compile a kernel by itself, or with -1 that it has ended."""
        with self._lock:
            self._own += count
            self._lock.notify_all()

    def _take(self, length: int) -> _Process | None:
        """Return a child process that is ready; None if it is the program's turn, which is noted.

        While the program compiles a kernel, its driver compiles no other one. So one of that length waits for the end
        of that, or for a child process, whichever comes first.
        """
        with self._lock:
            if self._held and self._count:
                self._asked += max(round(length / USUAL), 1)
                if self._starters and self._asked >= LEAST and not self._begun:
                    self._start()
                self._lock.wait_for(lambda: self._ready or not self._own or not self._begun, PATIENCE)
                if self._ready:
                    return self._ready.popleft()
            self._own += 1
            return None

    def _start(self, most: int = MOST_PROCESSES) -> None:
        try:
            for _ in range(min(self._count, most)):
                self._begun.append(_Process(self._device, self._offer))
        except OSError as e:
            log.info("processes that compile cannot be started: %s", e)

    def _offer(self, process: _Process) -> None:
        """Make an idle child process available, unless it is ending because no block holds it any more."""
        with self._lock:
            if process in self._begun:
                self._ready.append(process)
                self._lock.notify()


_shared: WeakValueDictionary[tuple[str, int], Compilers] = WeakValueDictionary()
_sharing = threading.Lock()


def facts_of(info: DeviceInfo) -> dict[str, Any]:
    """Return what a child process must know of a device."""
    return {"index": info.index, "name": info.name, "driver": info.driver}


def shared(device: Mapping[str, Any], count: int) -> Compilers:
    """Return the child processes of a device, which all that open it share."""
    key = json.dumps(device), count
    with _sharing:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = Compilers(device, count)
        return found


class _Process:
    """One child process; a thread calls `ready` with it once it has opened the device."""

    def __init__(self, device: str, ready: Any) -> None:
        program = child_process.program(__name__)
        self._popen = child_process.start(program, device, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._answers = SimpleQueue[bytes]()
        self._listener = threading.Thread(target=self._listen, name="weft-compilers", daemon=True)
        self._listener.start()
        threading.Thread(target=self._welcome, args=[ready], name="weft-compilers", daemon=True).start()

    def _welcome(self, ready: Any) -> None:
        with suppress(OSError, EOFError, TimeoutError, ValueError):
            if self._answer() == b"ready":
                ready(self)

    def compile(self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]) -> bool:
        """Return whether the kernel is in the cache now; raise the pipes' error if the process has ended."""
        task = pickle.dumps((source, dict(values), varying))
        assert self._popen.stdin is not None
        self._popen.stdin.write(_LENGTH.pack(len(task)) + task)
        self._popen.stdin.flush()
        return self._answer() == b"done"

    def _answer(self) -> bytes:
        try:
            answer = self._answers.get(timeout=TIMEOUT)
        except Empty:
            raise TimeoutError("a process that compiles does not answer") from None
        if not answer:
            self._answers.put(answer)  # for the next caller
            raise EOFError
        return answer

    def _listen(self) -> None:
        """Queue the answers, and an empty one when the process ends; Windows cannot read a pipe with a timeout."""
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if line.startswith(MARK):
                self._answers.put(line[len(MARK) :].strip())
        self._answers.put(b"")

    def kill(self) -> None:
        """End the process at once."""
        self._popen.kill()

    def end(self) -> None:
        """Let the process end, and wait for it."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        with suppress(OSError):
            self._popen.stdin.close()
        try:
            self._popen.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._listener.join()  # it tells waiting callers of the end
        self._popen.stdout.close()


# -- in the child process ---------------------------------------------------------------------------------------


def main(text: str) -> None:
    """Compile tasks from stdin on the given device until stdin closes; then exit without the driver's exit code."""
    import sys

    import pyopencl as cl

    from weft.backends.opencl.discovery import describe, raw_device
    from weft.backends.opencl.programs import Programs

    meant = json.loads(text)
    device = raw_device(meant["index"])
    info = describe(device, meant["index"])
    if (info.name, info.driver) != (meant["name"], meant["driver"]):
        raise SystemExit(f"it finds {info.name}, {info.driver}")
    programs = Programs(cl.Context([device]), device)
    compile_one: Callable[..., object] = programs.get
    if "known_as" in meant:  # it compiles for another API
        from weft.backends.opencl.ptx_writer import write_for

        compile_one = partial(write_for, tuple(meant["known_as"]), programs)
    _say(b"ready")
    while (task := _next(sys.stdin.buffer)) is not None:
        try:
            compile_one(*pickle.loads(task))
            _say(b"done")
        except Exception:  # the program compiles it again and reports the error
            _say(b"refused")
        programs.close()
    os._exit(0)


def _next(stream: BinaryIO) -> bytes | None:
    head = stream.read(_LENGTH.size)
    return stream.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None


def _say(word: bytes) -> None:
    # On a line of its own: a driver may have printed before.
    os.write(1, b"\n" + MARK + word + b"\n")
