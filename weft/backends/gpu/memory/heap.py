"""The buffers of an open device, within a limit: the option `memory_limit`, or `memory` of a device profile."""

from __future__ import annotations

import logging
import threading
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from weft.backends.gpu.device.device import GpuBuffer, GpuDevice, MemoryKind
from weft.core.contract.error_context import caught
from weft.core.graph.layout import Array, address_of
from weft.core.graph.tensor import Tensor
from weft.core.host.dropped import ArrayBase, Dropped
from weft.errors import LESS_MEMORY, OutOfMemory

log = logging.getLogger("weft.gpu")


class LentBuffer:
    """A buffer in host memory that callers and recordings share; it is freed after the last of them."""

    def __init__(self, heap: DeviceHeap, buffer: GpuBuffer) -> None:
        assert buffer.host is not None
        self.buffer, self.host = buffer, buffer.host
        self._memory: weakref.ref[ArrayBase] | None = None
        # Once the device is closed, nobody else uses its locks, and this frees the buffer. It also keeps the heap, and
        # with it the device, as long as the memory is in use.
        weakref.finalize(self, heap.unused, buffer).atexit = False

    @property
    def address(self) -> int:
        """Return where the memory begins."""
        return address_of(self.host)

    @property
    def is_held(self) -> bool:
        """Tell whether a caller still has an array in it."""
        return self._memory is not None and self._memory() is not None

    def hold(self) -> ArrayBase:
        """Return what stands for the callers: the buffer is held as long as it lives. Called once."""
        memory = ArrayBase(self.host.__array_interface__, self)
        self._memory = weakref.ref(memory)
        return memory


class Keeper(Protocol):
    """Recordings, which keep lent buffers for runs to come."""

    def drop_unheld(self) -> None:
        """Drop the buffers in which no caller has an array any more; any thread may call it."""
        ...


@dataclass(eq=False)
class DeviceHeap:
    """Allocates and frees for all sessions on a device; together they hold at most `limit` bytes (0: no limit).

    Weights, activations, staging buffers for inputs and outputs, and arrays that callers hold count. The staging
    buffers through which Vulkan copies weights belong to the device and do not.
    """

    device: GpuDevice
    limit: int = 0
    pretended: int = 0
    """The bytes that the device pretends to have, which is a limit, too; 0 for its real size."""
    held: int = 0
    """Bytes of all buffers not freed yet."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _keepers: weakref.WeakSet[Keeper] = field(default_factory=weakref.WeakSet)
    _lent: weakref.WeakValueDictionary[int, LentBuffer] = field(default_factory=weakref.WeakValueDictionary)
    """The buffers in which callers hold arrays, by address."""
    _unused: Dropped[GpuBuffer] = field(default_factory=Dropped)
    """Lent buffers that nobody uses any more, to be freed."""
    _freeing: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return a buffer of at least `nbytes`; OutOfMemory if the limit or the device does not allow it."""
        self._free_unused()
        try:
            return self._taken(nbytes, kind)
        except OutOfMemory:  # recordings may keep buffers in which callers have no arrays any more
            self.drop_unheld()
        self._free_unused()
        with self._freeing:  # another thread may be about to make room
            pass
        return self._taken(nbytes, kind)

    def drop_unheld(self) -> None:
        """Have recordings drop what they keep for memory that callers gave up."""
        with self._lock:
            keepers = [*self._keepers]
        for keeper in keepers:
            with caught(partial(log.warning, "buffers of another session cannot be dropped: %s")):
                keeper.drop_unheld()

    def _taken(self, nbytes: int, kind: MemoryKind) -> GpuBuffer:
        with self._lock:
            most = min(filter(None, (self.limit, self.pretended)), default=None)
            if most is not None and self.held + nbytes > most:
                raise self._refused(nbytes, most)
            self.held += nbytes  # count first: other threads allocate while the driver does
        try:
            return self.device.allocate(nbytes, kind)
        except BaseException:
            self._give(nbytes)
            raise

    def free(self, buffer: GpuBuffer) -> None:
        """Release a buffer, once."""
        nbytes = 0 if buffer.adopted else buffer.nbytes
        try:
            self.device.free(buffer)
        finally:
            self._give(nbytes)

    def lend(self, nbytes: int, kind: MemoryKind) -> Array:
        """Return a new array of bytes in memory of a host kind. It stays valid after sessions and device are closed."""
        buffer = self.allocate(nbytes, kind)
        buffer.lent = True
        array = np.asarray(self._shared(buffer))
        array[...] = 0
        return array

    def adopt(self, memory: Array) -> object:
        """Have the device reach whole pages of the caller's memory, as a DOWNLOAD buffer; None if it cannot.

        They are in reach as long as the returned object lives. They are the host's memory, so they do not count for the
        limit.
        """
        self._free_unused()
        buffer = self.device.adopt(memory)
        return None if buffer is None else self._shared(buffer)

    def _shared(self, buffer: GpuBuffer) -> ArrayBase:
        lent = LentBuffer(self, buffer)
        self._lent[lent.address] = lent
        return lent.hold()

    def lent(self, array: Array, tensor: Tensor, kind: MemoryKind) -> LentBuffer | None:
        """Return the buffer in which an array begins, if it was lent, is of this kind and holds the tensor's bytes."""
        found = self._lent.get(address_of(array)) if self._lent else None
        if found is None or found.buffer.kind is not kind or not array.flags.c_contiguous:
            return None
        fits = array.dtype == tensor.dtype.numpy and array.nbytes == tensor.nbytes <= len(found.host)
        return found if fits else None

    def add_keeper(self, keeper: Keeper) -> None:
        """Take note of who keeps lent buffers, and is asked for them when memory lacks."""
        with self._lock:
            self._keepers.add(keeper)

    def unused(self, buffer: GpuBuffer) -> None:
        """Take note that nobody uses a lent buffer any more; it is freed at the next allocation, or after a close."""
        self._unused.add(buffer)
        if self._closed:
            self._free_unused()

    def close(self) -> None:
        """Take note that the device was closed: lent buffers are freed as soon as they are unused."""
        self._closed = True
        self._free_unused()

    def _free_unused(self) -> None:
        # Freeing may collect the next unused buffer in this thread; it is then found here.
        while self._unused and self._freeing.acquire(blocking=False):
            try:
                for buffer in self._unused.take():
                    self.free(buffer)
            finally:
                self._freeing.release()

    def _give(self, nbytes: int) -> None:
        with self._lock:
            self.held -= nbytes

    def _refused(self, nbytes: int, most: int) -> OutOfMemory:
        info = self.device.info
        if most == self.limit:
            said, option = "the option memory_limit allows", f'"memory_limit": {self.held + nbytes}'
            more = f'raise the option (backend_options={{"{info.id}": {{{option}}}}})'
        else:
            said, more = "the device pretends to have", "give the device profile more memory"
        return OutOfMemory(
            f"{nbytes:,} bytes cannot be allocated",
            where=f"{info.id}:{info.index} ({info.name})",
            why=f"{self.held:,} bytes are in use by Weft, and {said} {most:,} in all",
            fix=f"{LESS_MEMORY}, close other sessions, or {more}",
        )
