"""The command queues of a device: for each thread one in-order queue and one for uploads."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyopencl as cl

from weft.backends.opencl.cl_errors import words

log = logging.getLogger("weft.opencl")


@dataclass(eq=False)
class _Lane:
    """A thread's in-order queue, and a second one for uploads, created at first use.

    An NVIDIA GPU copies and computes at the same time, but not within one in-order queue. If the driver creates no
    second queue, uploads use the first.
    """

    queue: cl.CommandQueue
    uploads: cl.CommandQueue | None = None
    behind: bool = False
    """Whether the main queue still has to wait for some uploads."""

    def catch_up(self) -> None:
        """Make later commands of the main queue wait for the uploads."""
        assert self.uploads is not None
        done = cl.enqueue_marker(self.uploads)
        self.uploads.flush()  # otherwise the main queue could wait for a command that never starts
        cl.enqueue_barrier(self.queue, wait_for=[done])
        self.behind = False

    def finish(self) -> None:
        """Wait for everything in both queues."""
        if self.uploads is not None:
            self.uploads.finish()
        self.queue.finish()


class _Lease:
    """A thread's hold on a lane; it is freed when the thread ends."""

    __slots__ = ("__weakref__", "lane")

    def __init__(self, lane: _Lane) -> None:
        self.lane = lane


class QueuePool:
    """In-order queues, one per thread: each thread's work stays in order, and threads do not wait for each other.

    When a thread ends, its queue goes to the next new thread.
    """

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        self._context, self._device = context, device
        self._local = threading.local()
        self._idle: deque[_Lane] = deque()
        self._all: list[_Lane] = []
        self._lock = threading.Lock()
        self._meeting = threading.Lock()
        self._met: cl.CommandQueue | None = None
        """The queue in which `start_alone` started something last."""

    def current(self) -> cl.CommandQueue:
        """Return the calling thread's queue; later commands in it wait for all earlier uploads."""
        lane = self._lane()
        if lane.behind:
            lane.catch_up()
        return lane.queue

    def uploads(self, *, awaited: bool = False) -> cl.CommandQueue:
        """Return the calling thread's upload queue; uploads wait only for each other.

        Later commands of the main queue need not wait for uploads that are `awaited` by the caller.
        """
        lane = self._lane()
        if lane.uploads is None:
            try:
                lane.uploads = cl.CommandQueue(self._context, self._device)
            except cl.Error as e:
                log.info("uploads have no queue of their own: %s", words(e.code))
                lane.uploads = lane.queue
        if not awaited:
            lane.behind = lane.uploads is not lane.queue
        return lane.uploads

    def start_alone(self, queue: cl.CommandQueue, start: Callable[[cl.CommandQueue], object]) -> None:
        """Start work in a queue once all earlier work of this kind, in any queue, is done.

        Chains need it: no two may run side by side (`weft.kernels.chain.CHAIN`).
        """
        with self._meeting:
            if self._met is not None and self._met is not queue:
                done = cl.enqueue_marker(self._met)
                self._met.flush()  # otherwise this queue could wait for a command that never starts
                cl.enqueue_barrier(queue, wait_for=[done])
            self._met = queue
            start(queue)

    def finish(self) -> None:
        """Wait for the work of all threads."""
        with self._lock:
            lanes = list(self._all)
        for lane in lanes:
            lane.finish()

    def close(self) -> None:
        """Forget all queues; the driver frees each with its last user."""
        with self._lock:
            self._all.clear()
            self._local = threading.local()  # this ends the leases, which return their lanes
            self._idle.clear()
        with self._meeting:
            self._met = None

    def _lane(self) -> _Lane:
        lease: _Lease | None = getattr(self._local, "lease", None)
        if lease is None:
            lease = self._local.lease = _Lease(self._take())
            # A finalizer may run anywhere, so it must not lock: deque.append is atomic.
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
