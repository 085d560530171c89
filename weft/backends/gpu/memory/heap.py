"""The buffers of an open device, within a limit: the option `memory_limit`, or `memory` of a device profile."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from weft.backends.gpu.device.device import GpuBuffer, GpuDevice, MemoryKind
from weft.errors import OutOfMemory


@dataclass(eq=False)
class DeviceHeap:
    """Allocates and frees for all sessions on a device; together they hold at most `limit` bytes (0: no limit).

    Weights, activations and staging buffers for inputs and outputs count. The staging buffers through which Vulkan
    copies weights belong to the device and do not.
    """

    device: GpuDevice
    limit: int = 0
    pretended: int = 0
    """The bytes that the device pretends to have, which is a limit, too; 0 for its real size."""
    held: int = 0
    """Bytes of all buffers not freed yet."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return a buffer of at least `nbytes`; OutOfMemory if the limit or the device does not allow it."""
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
        nbytes = buffer.nbytes
        try:
            self.device.free(buffer)
        finally:
            self._give(nbytes)

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
            fix=f"use a smaller batch, precision low or memory limit, close other sessions, or {more}",
        )
