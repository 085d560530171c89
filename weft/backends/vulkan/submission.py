"""Work that the queue takes as a whole: it is submitted, and a fence tells when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import perf_counter
from typing import Any

from weft.backends.vulkan._vk import NULL, Arena, create, failure, lib
from weft.backends.vulkan.context import Context
from weft.core.contract.error_context import is_error

SPIN_SECONDS = 0.002
"""How long before and after the expected end `wait_for` polls: a sleeping wait wakes up 30 us late, and later on some
hosts."""
_MOMENT = 0.1
"""Most seconds for which Ctrl-C waits for a call that waits."""
_ONE_SECOND = 1_000_000_000
_NOT_READY = 1
_TIMEOUT = 2


class Submission:
    """Command buffers with a fence and the prebuilt data of their submits; one thread at a time uses it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._arena = Arena()
        info = Arena().new("VkFenceCreateInfo")
        self._fence = create(lib.vkCreateFence, context.device, info, "VkFence", "a fence cannot be made")
        self._fences = self._arena.array("VkFence", [self._fence])
        self._infos: list[Any] = []
        self.pending = False
        """Whether it was submitted, and nobody has waited for it."""

    def take(self, buffers: Sequence[Any]) -> None:
        """Submit these command buffers from now on, one after the other."""
        self._infos = [self._arena.new("VkSubmitInfo", commandBufferCount=1, pCommandBuffers=[b]) for b in buffers]

    def start(self, *, counted: bool = False) -> None:
        """Submit it, piece by piece; the fence tells of the last one. If that fails, there is nothing to wait for."""
        context, (*first, last) = self._context, self._infos
        self.pending = False
        try:
            result = lib.vkResetFences(context.device, 1, self._fences)
            if result == 0:
                with context.queue_lock:
                    for info in first:
                        result = result or lib.vkQueueSubmit(context.queue, 1, info, NULL)
                    result = result or lib.vkQueueSubmit(context.queue, 1, last, self._fence)
                    context.stats.submits += counted and len(self._infos)
            if result != 0:
                raise failure(result, "work cannot be submitted", context.physical.name)
            self.pending = True
        except BaseException as e:
            if not is_error(e) or first:  # Ctrl-C, or a refused piece: some of it may be running
                context.idle()
            raise

    @property
    def is_done(self) -> bool:
        """Tell whether what was submitted is done."""
        result = lib.vkGetFenceStatus(self._context.device, self._fence)
        if result not in (0, _NOT_READY):
            raise self._failure(result)
        return bool(result == 0)

    def wait_for(self, expected: float = 0.0) -> bool:
        """Wait until it is done, and tell whether there was anything to wait for.

        `expected` is when it should be, by `perf_counter`; 0.0: unknown. A GPU is polled about then, or from now on if
        that is over; a CPU is not, where polling takes the cores that compute.
        """
        result = lib.vkGetFenceStatus(self._context.device, self._fence)
        waited = bool(result == _NOT_READY)
        if waited and not self._context.physical.software:
            result = self._sleep(expected - SPIN_SECONDS)
            if result == _TIMEOUT:
                result = self._poll(max(perf_counter(), expected) + SPIN_SECONDS)
        if result in (_NOT_READY, _TIMEOUT):
            result = self._sleep()
        self.pending = False  # nothing runs on a lost device either
        if result != 0:
            raise self._failure(result)
        return waited

    def _failure(self, result: int) -> Exception:
        return failure(result, "the device failed while it ran", self._context.physical.name)

    def _sleep(self, until: float = inf) -> int:
        """Wait in the driver, for a moment at a time, so that Ctrl-C works; return _TIMEOUT, 0 or an error."""
        result = _TIMEOUT
        while result == _TIMEOUT and (left := until - perf_counter()) > 0:
            nanoseconds = int(min(left, _MOMENT) * _ONE_SECOND)
            result = lib.vkWaitForFences(self._context.device, 1, self._fences, 1, nanoseconds)
        return int(result)

    def _poll(self, until: float) -> int:
        """Ask for the status again and again; return _NOT_READY, 0 or an error."""
        get_status, device, fence = lib.vkGetFenceStatus, self._context.device, self._fence
        result = get_status(device, fence)
        while result == _NOT_READY and perf_counter() < until:
            result = get_status(device, fence)
        return int(result)

    def destroy(self) -> None:
        """Destroy the fence; it must not be running."""
        lib.vkDestroyFence(self._context.device, self._fence, NULL)
        self._fence = NULL
