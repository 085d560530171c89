"""The command queues of a device: one in-order queue per thread that uses it."""

from __future__ import annotations

import threading
import weakref
from collections import deque

import pyopencl as cl


class _Lease:
    """A thread's hold on a queue; it ends with the thread."""

    __slots__ = ("__weakref__", "queue")

    def __init__(self, queue: cl.CommandQueue) -> None:
        self.queue = queue


class QueuePool:
    """In-order queues, one per thread: a thread's work stays in order, threads do not wait for each other.

    A queue whose thread has ended goes to the next new thread.
    """

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        self._context, self._device = context, device
        self._local = threading.local()
        self._idle: deque[cl.CommandQueue] = deque()
        self._all: list[cl.CommandQueue] = []
        self._lock = threading.Lock()

    def current(self) -> cl.CommandQueue:
        """Return the calling thread's queue."""
        lease: _Lease | None = getattr(self._local, "lease", None)
        if lease is None:
            lease = self._local.lease = _Lease(self._take())
            # Runs wherever the thread's locals die, so it must not lock: deque.append is atomic.
            weakref.finalize(lease, self._idle.append, lease.queue).atexit = False
        return lease.queue

    def finish(self) -> None:
        """Wait for the work of all threads."""
        with self._lock:
            queues = list(self._all)
        for queue in queues:
            queue.finish()

    def close(self) -> None:
        """Forget all queues; the driver frees each when its last user lets go."""
        with self._lock:
            self._all.clear()
            self._idle.clear()
            self._local = threading.local()

    def _take(self) -> cl.CommandQueue:
        try:
            return self._idle.pop()
        except IndexError:
            queue = cl.CommandQueue(self._context, self._device)
        with self._lock:
            self._all.append(queue)
        return queue
