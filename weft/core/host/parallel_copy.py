"""Copies of large arrays on the host, by several threads: one core alone is slower than the bus to a GPU.

numpy releases the interpreter's lock while it copies, so threads of Python are enough. The calling thread
copies too; its helpers are threads that wait for work on a queue that costs far less than an executor's.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import numpy as np

from weft.core.graph.layout import Array

SMALLEST = 1 << 20
"""Bytes below which one thread is faster: to wake others takes as long as it needs for half of that."""
PIECE = 1 << 20
LEAST_PIECE = 1 << 18
"""A thread copies so many bytes at a time: fewer where there would be no piece for some of them."""
MOST_THREADS = 4
"""More than these copy faster by themselves, but not beside a caller that submits what is there: threads wait for
the interpreter's lock at the end of each piece, and so does the caller (measured on 16 cores, benchmarks/NOTES.md)."""

HELPER = "weft-copy"
"""The name of the threads that copy beside the caller's; they use nothing but the arrays."""

Progress = Callable[[int], None]
"""Called by the thread that copies, with how many bytes from the target's first on are done."""


def copy_into(target: Array, source: Array, progress: Progress | None = None) -> None:
    """Do what `target[...] = source` does; large contiguous targets are written by several threads."""
    _copier.copy(target, source, progress)


def set_threads(count: int) -> None:
    """Let `copy_into` use so many threads from now on; for measurements."""
    global _copier
    _copier.close()
    _copier = Copier(count)


def default_threads() -> int:
    """Return how many threads `copy_into` uses by itself: those this process has cores for, up to a limit."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_THREADS, mine)


class Copier:
    """Copies with a number of threads, the caller's among them. It may be used from several threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._helpers = 0
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()

    def copy(self, target: Array, source: Array, progress: Progress | None = None) -> None:
        """Do what `target[...] = source` does."""
        pieces = list(_pieces(target, source, self.threads)) if _divisible(target, source) else []
        if len(pieces) < 2 or (self.threads < 2 and progress is None):
            target[...] = source
            if progress is not None:
                progress(target.nbytes)
            return
        job = _Job(pieces)
        for _ in range(min(self._ready(), len(pieces) - 1)):
            self._calls.put(job.help)
        job.run(progress)

    def close(self) -> None:
        """Let the helpers end once they have done what was asked of them; the next copy makes new ones."""
        with self._lock:
            for _ in range(self._helpers):
                self._calls.put(None)
            self._helpers = 0

    def _ready(self) -> int:
        """Return how many helpers there are, which are started when they are first needed."""
        wanted = self.threads - 1
        if self._helpers < wanted:
            with self._lock:
                try:
                    while self._helpers < wanted:
                        # They must not keep the interpreter from its end, at which none can be started either.
                        threading.Thread(target=_serve, args=[self._calls], name=HELPER, daemon=True).start()
                        self._helpers += 1
                except RuntimeError:
                    pass  # then those that there are do it
        return self._helpers


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # or it, and what it holds, would stay until the next one


class _Job:
    """One copy: pieces that are taken in order by whoever is free."""

    def __init__(self, pieces: list[tuple[Array, Array]]) -> None:
        self._sizes = [target.nbytes for target, _ in pieces]
        self._todo = deque(enumerate(pieces))
        self._done: SimpleQueue[int | BaseException] = SimpleQueue()
        self._came: deque[None] = deque()
        self._left: SimpleQueue[None] = SimpleQueue()

    def run(self, progress: Progress | None) -> None:
        """Copy until all is done; returns or raises only when no helper writes any more."""
        try:
            self._copy_all(progress)
        except BaseException:
            # A helper that has a piece has come before it took it, so none is missed after this. Others may
            # come yet, find nothing and leave first, so those that came are counted again each time.
            self._todo.clear()
            left = 0
            while left < len(self._came):
                self._left.get()
                left += 1
            raise

    def help(self) -> None:
        """Copy pieces until there are none left to take."""
        self._came.append(None)
        try:
            while self._copy_one():
                pass
        except BaseException as e:
            self._done.put(e)
        finally:
            self._left.put(None)

    def _copy_one(self) -> bool:
        try:
            index, (target, source) = self._todo.popleft()
        except IndexError:
            return False
        # numpy takes the interpreter's lock again at the end; that atomic operation also drains what this core
        # has still buffered of write-combined memory, before anybody hears that the piece is done.
        target[...] = source
        self._done.put(index)
        return True

    def _copy_all(self, progress: Progress | None) -> None:
        done, first, nbytes = [False] * len(self._sizes), 0, 0
        for _ in self._sizes:
            if self._done.empty():
                self._copy_one()
            index = self._done.get()
            if isinstance(index, BaseException):
                raise index
            done[index] = True
            if index == first and progress is not None:
                while first < len(done) and done[first]:
                    nbytes += self._sizes[first]
                    first += 1
                progress(nbytes)


def _divisible(target: Array, source: Array) -> bool:
    """Tell whether pieces can be copied in any order: no broadcast, no conversion, no overlap, no objects."""
    return (
        target.nbytes >= SMALLEST
        and target.flags.c_contiguous
        and target.flags.writeable
        and target.shape == source.shape
        and target.dtype == source.dtype
        and not target.dtype.hasobject
        and not np.may_share_memory(target, source)
    )


def _pieces(target: Array, source: Array, threads: int) -> Iterator[tuple[Array, Array]]:
    """Yield pairs of views that together are all of both arrays, in the order of the target's memory."""
    most = max(LEAST_PIECE, min(PIECE, target.nbytes // threads))
    if source.flags.c_contiguous:
        target, source = target.reshape(-1), source.reshape(-1)
    yield from _split(target, source, most)


def _split(target: Array, source: Array, most: int) -> Iterator[tuple[Array, Array]]:
    row = target.nbytes // len(target)
    if row > most and target.ndim > 1:
        for t, s in zip(target, source, strict=True):
            yield from _split(t, s, most)
        return
    step = max(1, most // row)
    for at in range(0, len(target), step):
        yield target[at : at + step], source[at : at + step]


def _renew() -> None:
    """Forget the helpers: a process that was forked has none."""
    global _copier
    _copier = Copier(_copier.threads)


_copier = Copier(default_threads())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
