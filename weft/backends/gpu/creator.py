"""What the creators of GPU backends share: one runtime a device, opened on first use."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import ClassVar

from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.device import GpuDevice
from weft.backends.gpu.runtime import GpuRuntime
from weft.core.backend import Backend, BackendCreator, BackendInfo


class GpuCreator(BackendCreator):
    """Open devices once and make backends on them; a subclass says how a device is opened."""

    backend: ClassVar[type[GpuBackend]] = GpuBackend
    """The class of the backends, to which creators of single ops can be added."""

    def __init__(self) -> None:
        self._runtimes: dict[int, GpuRuntime] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def open(self, index: int) -> GpuDevice:
        """Open the device of that index."""

    def runtime(self, index: int) -> GpuRuntime:
        """Return the runtime of a device, opening it the first time."""
        with self._lock:
            if index not in self._runtimes:
                self._runtimes[index] = GpuRuntime(self.open(index))
            return self._runtimes[index]

    def onCreate(self, info: BackendInfo) -> Backend:
        """Return a backend for one pipeline; all on one device share its runtime."""
        return self.backend(info, self.runtime(info.index))

    def close(self) -> None:
        """Close the devices that were opened; sessions on them must be closed before."""
        with self._lock:
            for runtime in self._runtimes.values():
                runtime.close()
            self._runtimes.clear()
