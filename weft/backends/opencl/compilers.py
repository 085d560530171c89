"""Processes that compile kernels side by side, for a driver that compiles one kernel of a process at a time.

NVIDIA's OpenCL driver is one: threads gain nothing there. A process has to open the device first, so they are
started when a few kernels had to be compiled, and until they are ready the program compiles by itself. What they
compile is in the cache on disk, from which the program loads it; what they refuse, or fail at, the program compiles
itself, so that errors are its own. They end when nobody `hold`s them any more, and with the program.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

from weft import config
from weft.core.host import child_process
from weft.kernels.source import KernelSource

log = logging.getLogger("weft.opencl")

LEAST = 6
"""Kernels that must have been asked for before processes are started."""
MOST = 8
MARK = b"weft-compiler "
"""How the lines of answers begin: drivers print what they like."""
TIMEOUT = 60.0
"""Seconds after which a process that does not answer is given up."""
_LENGTH = struct.Struct("<Q")


def process_count() -> int:
    """Return how many processes compile: `WEFT_BUILD_PROCESSES`, or as many as half of the cores, up to a limit."""
    given = config.build_processes()
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, mine // 2) if given is None else given


class Compilers:
    """The processes of one device. It may be used from several threads."""

    def __init__(self, device: Mapping[str, Any], count: int) -> None:
        """`device` says which one it is (see `main`); with a `count` of 0 there are none."""
        usable = count > 0 and config.cache_enabled() and child_process.has_interpreter()
        self._device, self._count = json.dumps(device), count if usable else 0
        self._lock = threading.Lock()
        self._held = self._asked = 0
        self._begun: list[_Process] = []
        self._ready: deque[_Process] = deque()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let processes be started, and keep them, while a block runs."""
        with self._lock:
            self._held += 1
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1
                ended = [] if self._held else self._begun
                if not self._held:
                    self._asked, self._begun = 0, []
                    self._ready.clear()
            for process in ended:  # a context takes its time to close
                threading.Thread(target=process.end, name="weft-compilers", daemon=True).start()

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> bool:
        """Have a process compile a kernel into the cache on disk; False if none is free, or it did not."""
        process = self._take()
        if process is None:
            return False
        try:
            done = process.compile(source, values)
        except (OSError, EOFError, TimeoutError, ValueError) as e:  # ValueError: of a file that is closed
            log.info("a process that compiles is given up: %r", e)
            process.kill()
            return False
        self._offer(process)
        return done

    def _take(self) -> _Process | None:
        with self._lock:
            if not self._held or not self._count:
                return None
            self._asked += 1
            if self._asked == LEAST:
                self._start()
            return self._ready.popleft() if self._ready else None

    def _start(self) -> None:
        try:
            for _ in range(self._count):
                self._begun.append(_Process(self._device, self._offer))
        except OSError as e:
            log.info("processes that compile cannot be started: %s", e)

    def _offer(self, process: _Process) -> None:
        """Let others take a process that has nothing to do, unless it ends because nobody holds it any more."""
        with self._lock:
            if process in self._begun:
                self._ready.append(process)


class _Process:
    """One process; it calls `ready` with itself, in a thread, when it has the device open."""

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

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> bool:
        """Return whether the kernel is in the cache now; an error of its files if the process has ended, or is to."""
        task = pickle.dumps((source, dict(values)))
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
            self._answers.put(answer)  # for whoever asks next
            raise EOFError
        return answer

    def _listen(self) -> None:
        """Queue the answers, and an empty one when the process ends: a pipe has no reads with a timeout on Windows."""
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if line.startswith(MARK):
                self._answers.put(line[len(MARK) :].strip())
        self._answers.put(b"")

    def kill(self) -> None:
        """End it at once."""
        self._popen.kill()

    def end(self) -> None:
        """Let it end, and wait for that."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        with suppress(OSError):
            self._popen.stdin.close()
        try:
            self._popen.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._listener.join()  # who waits for an answer hears of the end
        self._popen.stdout.close()


# -- the side of a process -------------------------------------------------------------------------------------


def main(text: str) -> None:
    """Compile what comes, on the device that is meant, until there is no more; then end without the driver's say."""
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
    _say(b"ready")
    while (task := _next(sys.stdin.buffer)) is not None:
        try:
            programs.get(*pickle.loads(task))
            _say(b"done")
        except Exception:  # the program compiles it itself, and says why it is refused
            _say(b"refused")
        programs.close()
    os._exit(0)


def _next(stream: BinaryIO) -> bytes | None:
    head = stream.read(_LENGTH.size)
    return stream.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None


def _say(word: bytes) -> None:
    # In a line of its own, whatever a driver printed before.
    os.write(1, b"\n" + MARK + word + b"\n")
