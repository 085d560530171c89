"""The queue of a pool: requests in the order in which they came, put together into batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from weft.errors import QueueFull


@dataclass(eq=False, slots=True)
class Request:
    """What one caller asks for, and the future that gets its outputs."""

    inputs: dict[str, Any]
    kind: Hashable = None
    """Requests of one kind may share a run. None runs alone."""
    rows: int = 1
    future: Future[list[Any]] = field(default_factory=Future)
    arrived: float = field(default_factory=monotonic)
    number: int = 0
    """Its place in the order in which requests came."""
    failures: int = 0
    """How many replicas died while they ran it."""

    def begin(self) -> bool:
        """Return whether somebody still wants it; from now on it cannot be cancelled."""
        return self.future.running() or self.future.set_running_or_notify_cancel()


class RequestQueue:
    """Up to `most` waiting requests, which `take` returns in batches of up to `rows` rows.

    A batch has requests of one kind, in the order in which they came. It is ready when it is full, or when its first
    request has waited for `wait` seconds. Of those that are ready, the one that begins with the oldest request is next.
    """

    def __init__(self, most: int, rows: int, wait: float) -> None:
        self._most, self._rows, self._wait = most, rows, wait
        lock = threading.Lock()
        self._filled, self._emptied = threading.Condition(lock), threading.Condition(lock)
        self._turn = threading.Lock()
        """Held by the one thread that waits for a batch to fill."""
        self._kinds: dict[Hashable, deque[Request]] = {}
        self._count = self._number = 0
        self._refusal: Callable[[], Exception] | None = None
        """What makes the error of `put` once the queue is closed."""

    def __len__(self) -> int:
        return self._count

    @property
    def is_closed(self) -> bool:
        """Tell whether `put` raises."""
        return self._refusal is not None

    def put(self, request: Request, timeout: float | None = None) -> None:
        """Add a request; ClosedError after `close`. With the queue full, QueueFull if there is no room in time."""
        with self._emptied:
            if self._count >= self._most and self._refusal is None:
                self._emptied.wait_for(lambda: self._count < self._most or self._refusal is not None, timeout)
            if self._refusal is not None:
                raise self._refusal()
            if self._count >= self._most:
                raise QueueFull(
                    "the pool takes no more requests now",
                    why=f"{self._count} requests wait, and its queue holds {self._most}",
                    fix="send less, try again later, or give the pool more devices, a longer queue= or larger batches",
                )
            self._number += 1
            request.number = self._number
            same = self._kinds.setdefault(request.kind, deque())
            same.append(request)
            self._count += 1
            if len(same) == 1 or self._fills(same):  # else the thread that waits would only go on waiting
                self._filled.notify()

    def put_back(self, requests: list[Request]) -> None:
        """Add requests that were taken before all others; each runs alone then."""
        with self._filled:
            for request in requests:
                request.kind = None
            alone = sorted([*requests, *self._kinds.pop(None, ())], key=lambda r: r.number)
            if alone:
                self._kinds[None] = deque(alone)
            self._count += len(requests)
            self._filled.notify()

    def take(self) -> list[Request] | None:
        """Return the next batch, waiting for it; None if the queue is closed and empty."""
        with self._turn, self._filled:
            while self._count or self._refusal is None:
                now = monotonic()
                firsts = sorted(self._kinds.values(), key=lambda waiting: waiting[0].number)
                for waiting in firsts:
                    if self._refusal is not None or now - waiting[0].arrived >= self._wait or self._fills(waiting):
                        return self._taken(waiting)
                self._filled.wait(self._wait - (now - firsts[0][0].arrived) if firsts else None)
            return None

    def close(self, refusal: Callable[[], Exception]) -> None:
        """Take no more requests: `put` raises from now on. Those that wait are still taken, at once."""
        with self._filled:
            if self._refusal is None:
                self._refusal = refusal
            self._filled.notify_all()
            self._emptied.notify_all()

    def clear(self) -> list[Request]:
        """Return all waiting requests, which are not taken any more."""
        with self._filled:
            waiting = [request for kind in self._kinds.values() for request in kind]
            self._kinds.clear()
            self._count = 0
            self._emptied.notify_all()
            return sorted(waiting, key=lambda r: r.number)

    def _fills(self, waiting: deque[Request]) -> bool:
        """Tell whether requests of a kind fill a batch, so that there is nothing to wait for."""
        if waiting[0].kind is None or len(waiting) >= self._rows:
            return True
        rows = 0
        for request in waiting:
            rows += request.rows
            if rows >= self._rows:
                return True
        return False

    def _taken(self, waiting: deque[Request]) -> list[Request]:
        batch = [waiting.popleft()]
        rows = batch[0].rows
        while waiting and batch[0].kind is not None and rows + waiting[0].rows <= self._rows:
            rows += waiting[0].rows
            batch.append(waiting.popleft())
        if not waiting:
            del self._kinds[batch[0].kind]
        self._count -= len(batch)
        self._emptied.notify(len(batch))
        return batch
