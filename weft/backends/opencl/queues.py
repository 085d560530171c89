"""The command queues of a device: one in-order queue per thread that uses it, and one for uploads ahead of it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from dataclasses import dataclass

import pyopencl as cl

from weft.backends.opencl.cl_errors import words

log = logging.getLogger("weft.opencl")


@dataclass(eq=False)
class _Lane:
    """A thread's in-order queue, and one for uploads beside it, made when it is first needed.

    An NVIDIA GPU copies and computes at a time, but not what is in one in-order queue. Where a driver makes no second
    queue, uploads go with the rest.
    """

    queue: cl.CommandQueue
    uploads: cl.CommandQueue | None = None
    behind: bool = False
    """Whether there are uploads for which the queue does not wait yet."""

    def catch_up(self) -> None:
        """Have what is enqueued from now on wait for the uploads."""
        assert self.uploads is not None
        done = cl.enqueue_marker(self.uploads)
        self.uploads.flush()  # or the other queue might wait for what never starts
        cl.enqueue_barrier(self.queue, wait_for=[done])
        self.behind = False

    def finish(self) -> None:
        """Wait for everything in both queues."""
        if self.uploads is not None:
            self.uploads.finish()
        self.queue.finish()


class _Lease:
    """A thread's hold on a lane; it ends with the thread."""

    __slots__ = ("__weakref__", "lane")

    def __init__(self, lane: _Lane) -> None:
        self.lane = lane


class QueuePool:
    """In-order queues, one per thread: a thread's work stays in order, threads do not wait for each other.

    A queue whose thread has ended goes to the next new thread.
    """

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        self._context, self._device = context, device
        self._local = threading.local()
        self._idle: deque[_Lane] = deque()
        self._all: list[_Lane] = []
        self._lock = threading.Lock()

    def current(self) -> cl.CommandQueue:
        """Return the calling thread's queue, in which what comes now waits for all uploads before."""
        lane = self._lane()
        if lane.behind:
            lane.catch_up()
        return lane.queue

    def uploads(self) -> cl.CommandQueue:
        """Return the calling thread's queue for uploads that wait for nothing but each other."""
        lane = self._lane()
        if lane.uploads is None:
            try:
                lane.uploads = cl.CommandQueue(self._context, self._device)
            except cl.Error as e:
                log.info("uploads have no queue of their own: %s", words(e.code))
                lane.uploads = lane.queue
        lane.behind = lane.uploads is not lane.queue
        return lane.uploads

    def finish(self) -> None:
        """Wait for the work of all threads."""
        with self._lock:
            lanes = list(self._all)
        for lane in lanes:
            lane.finish()

    def close(self) -> None:
        """Forget all queues; the driver frees each when its last user lets go."""
        with self._lock:
            self._all.clear()
            self._local = threading.local()  # the leases that end with it give their lanes back
            self._idle.clear()

    def _lane(self) -> _Lane:
        lease: _Lease | None = getattr(self._local, "lease", None)
        if lease is None:
            lease = self._local.lease = _Lease(self._take())
            # Runs wherever the thread's locals die, so it must not lock: deque.append is atomic.
            weakref.finalize(lease, self._idle.append, lease.lane).atexit = False
        return lease.lane

    def _take(self) -> _Lane:
        try:
            return self._idle.pop()
        except IndexError:
            lane = _Lane(cl.CommandQueue(self._context, self._device))
        with self._lock:
            self._all.append(lane)
        return lane
