"""Registers OpenCL: what must be installed, which devices there are, how one is opened."""

from __future__ import annotations

from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device import GpuDevice
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.opencl.discovery import absent_reason, enumerate_devices
from weft.core.backend import DeviceInfo, ForwardType


class OpenCLBackend(GpuBackend):
    """Run a pipeline through OpenCL; `addCreator` on this class replaces an op on OpenCL alone."""


class OpenCLCreator(GpuCreator):
    """Makes backends on OpenCL devices."""

    id = "opencl"
    forward_type = ForwardType.OPENCL
    backend = OpenCLBackend
    auto_rank = 2

    def absent(self) -> str | None:
        """Return why there is no OpenCL here."""
        return absent_reason()

    def devices(self) -> list[DeviceInfo]:
        """Return the devices of all platforms."""
        return enumerate_devices()

    def open(self, index: int) -> GpuDevice:
        """Open a device; pyopencl is imported only now."""
        from weft.backends.opencl.device import open_device

        return open_device(index, OpenCLDialect())
