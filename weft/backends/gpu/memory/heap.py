"""The buffers of an open device, within the limit that the user sets; see the option `memory_limit`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from weft.backends.gpu.device.device import GpuBuffer, GpuDevice, MemoryKind
from weft.errors import OutOfMemory


@dataclass(eq=False)
class DeviceHeap:
    """Allocates and frees for all sessions on a device; they together hold at most `limit` bytes, 0 for any number.

    Weights, activations, and what inputs and outputs pass through count. The buffers through which Vulkan copies
    weights are the device's own and do not.
    """

    device: GpuDevice
    limit: int = 0
    held: int = 0
    """Bytes of the buffers that were not freed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return a buffer of at least `nbytes`; OutOfMemory if the limit or the device does not allow it."""
        with self._lock:
            if self.limit and self.held + nbytes > self.limit:
                raise self._refused(nbytes)
            self.held += nbytes  # before the driver is asked, which other threads do meanwhile
        try:
            return self.device.allocate(nbytes, kind)
        except BaseException:
            self._give(nbytes)
            raise

    def free(self, buffer: GpuBuffer) -> None:
        """Give a buffer back; once."""
        nbytes = buffer.nbytes
        self.device.free(buffer)
        self._give(nbytes)

    def _give(self, nbytes: int) -> None:
        with self._lock:
            self.held -= nbytes

    def _refused(self, nbytes: int) -> OutOfMemory:
        info = self.device.info
        return OutOfMemory(
            f"{nbytes:,} bytes cannot be allocated",
            where=f"{info.id}:{info.index} ({info.name})",
            why=f"{self.held:,} bytes are in use by Weft, and the option memory_limit allows {self.limit:,} in all",
            fix="use a smaller batch, precision low or memory limit, close other sessions, or raise the option "
            f'(backend_options={{"{info.id}": {{"memory_limit": {self.held + nbytes}}}}})',
        )
