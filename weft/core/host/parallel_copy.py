"""Copies of large arrays on the host by several threads: one core alone is slower than the bus to a GPU.

numpy releases the GIL while it copies, so Python threads are enough. The calling thread copies too; its helper threads
wait on a queue that costs far less than an executor's.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from weft.core.graph.layout import Array

SMALLEST = 1 << 20
"""Below this many bytes one thread is faster: it copies half of them in the time that waking others takes."""
SHARE = 1 << 19
"""Fewest bytes for each thread beyond the second: others copy them before one more thread is awake, so for 1.2 MB two
threads are faster than four (benchmarks/NOTES.md)."""
PIECE = 1 << 20
LEAST_PIECE = 1 << 18
"""The most and the fewest bytes of a piece, which a thread copies at a time. Between them all threads get as many."""
LINE = 64
"""Bytes of a line of the processor's cache. Pieces are whole lines, so that two threads rarely write the same one."""
MOST_THREADS = 4
"""More threads copy faster alone, but not beside a caller that submits the copied pieces: at the end of each piece the
threads and the caller wait for the GIL (measured on 16 cores, benchmarks/NOTES.md)."""

HELPER = "weft-copy"
"""Name of the threads that copy beside the caller's; they use nothing but the arrays."""

T = TypeVar("T")
Progress = Callable[[int], None]
"""The copying thread calls it with the bytes done, counted from the start of the target."""


def copy_into(target: Array, source: Array, progress: Progress | None = None) -> None:
    """Do what `target[...] = source` does; large contiguous targets are written by several threads."""
    if target.nbytes < SMALLEST and progress is None:  # most copies of a run: each call more takes as long as the copy
        target[...] = source
    else:
        _copier.copy(target, source, progress)


def copy_converted(target: Array, source: Array) -> None:
    """Do the same for a target that may be of another float type; numbers beyond that become infinite."""
    with np.errstate(over="ignore"):
        copy_into(target, source)


def set_threads(count: int) -> None:
    """Set the number of threads of `copy_into`; for measurements."""
    global _copier
    _copier.close()
    _copier = Copier(count)


def default_threads() -> int:
    """Return the default number of threads of `copy_into`: the cores this process may use, up to a limit."""
    return min(MOST_THREADS, cores())


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Copier:
    """Copies with a number of threads, including the caller's; several threads may use it."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._helpers = 0
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()

    def copy(self, target: Array, source: Array, progress: Progress | None = None) -> None:
        """Do what `target[...] = source` does."""
        threads = self.threads
        pieces: list[tuple[Array, Array]] = []
        if _divisible(target, source):
            threads = min(threads, max(target.nbytes // SHARE, 2))
            pieces += _pieces(target, source, threads)
        if len(pieces) < 2 or (self.threads < 2 and progress is None):
            target[...] = source
            if progress is not None:
                progress(target.nbytes)
            return
        job = _Job(pieces, _copy_piece)
        self._have_helped(job, threads)
        if progress is None:
            job.run()
        else:
            job.run_telling(progress, [part.nbytes for part, _ in pieces])

    def each(self, work: Callable[[T], object], items: Sequence[T]) -> None:
        """Call a function with each item, in this thread and the others; raise what a call raises."""
        job = _Job(items, work)
        self._have_helped(job, self.threads)
        job.run()

    def _have_helped(self, job: _Job, threads: int) -> None:
        for _ in range(min(self._ready(), threads - 1, job.count - 1)):
            self._calls.put(job.help)

    def close(self) -> None:
        """End the helpers after their current work; the next copy starts new ones."""
        with self._lock:
            for _ in range(self._helpers):
                self._calls.put(None)
            self._helpers = 0

    def _ready(self) -> int:
        """Return the number of helper threads, starting them at the first need."""
        wanted = self.threads - 1
        if self._helpers < wanted:
            with self._lock:
                try:
                    while self._helpers < wanted:
                        # Daemons do not keep the interpreter from exiting. While it exits, no thread can start.
                        threading.Thread(target=_serve, args=[self._calls], name=HELPER, daemon=True).start()
                        self._helpers += 1
                except RuntimeError:
                    pass  # copy with those that have started
        return self._helpers


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # otherwise the loop holds it, and its arrays, until the next call


def _copy_piece(piece: tuple[Array, Array]) -> None:
    target, source = piece
    # numpy reacquires the GIL at the end. That atomic operation also flushes this core's write-combining
    # buffers before another thread learns that the piece is done.
    target[...] = source


class _Job:
    """One copy, or other work in pieces: free threads take the pieces in order."""

    def __init__(self, pieces: Sequence[Any], work: Callable[[Any], object]) -> None:
        self.count, self._work = len(pieces), work
        self._todo = deque(enumerate(pieces))
        self._done: SimpleQueue[int | BaseException] = SimpleQueue()
        self._came: deque[None] = deque()
        self._ended: deque[None] = deque()
        self._left: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        """Copy until all is done; do not return or raise before the last helper has stopped writing."""
        try:
            while self._copy_one():
                pass
            self._stop()
        except BaseException:
            self._stop()
            raise
        while not self._done.empty():
            index = self._done.get()
            if isinstance(index, BaseException):
                raise index

    def run_telling(self, progress: Progress, sizes: Sequence[int]) -> None:
        """Do the same, and tell of each piece, of which the bytes are given, when it and all before it are done."""
        try:
            self._copy_all(progress, sizes)
        except BaseException:
            self._stop()
            raise

    def help(self) -> None:
        """Copy pieces until none are left."""
        self._came.append(None)
        try:
            while self._copy_one():
                pass
        except BaseException as e:
            self._done.put(e)
        finally:
            self._ended.append(None)
            self._left.put(None)

    def _stop(self) -> None:
        """Wait until no helper writes any more; pieces that nobody has taken stay undone."""
        # A helper counts itself in before it takes a piece, so this misses none. Late helpers may still come, find
        # no piece and leave first, so count those that came again each time. `_left` only wakes this thread: after an
        # interrupt it may lack what was taken from it.
        self._todo.clear()
        while len(self._ended) < len(self._came):
            self._left.get()

    def _copy_one(self) -> bool:
        try:
            index, piece = self._todo.popleft()
        except IndexError:
            return False
        self._work(piece)
        self._done.put(index)
        return True

    def _copy_all(self, progress: Progress, sizes: Sequence[int]) -> None:
        done, first, nbytes = [False] * len(sizes), 0, 0
        for _ in sizes:
            if self._done.empty():
                self._copy_one()
            index = self._done.get()
            if isinstance(index, BaseException):
                raise index
            done[index] = True
            if index == first:
                while first < len(done) and done[first]:
                    nbytes += sizes[first]
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
    """Yield pairs of views that together cover both arrays, in the order of the target's memory."""
    rounds = -(-target.nbytes // (PIECE * threads))
    most = max(LEAST_PIECE, -(-target.nbytes // (LINE * rounds * threads)) * LINE)
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
    """Forget the helpers: a forked process has none."""
    global _copier
    _copier = Copier(_copier.threads)


_copier = Copier(default_threads())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
