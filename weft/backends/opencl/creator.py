"""Registers OpenCL: what must be installed, which devices exist, how one is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.backends.gpu.creator import CHAINS, GENERAL, GpuCreator
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.opencl.discovery import (
    absent_reason,
    enumerate_devices,
    hidden,
    listed_vendors,
    why_unusable,
)
from weft.core.contract.backend import BackendOption, DeviceInfo, ForwardType
from weft.core.contract.backend_options import NO_OPTIONS, Options

if TYPE_CHECKING:
    from weft.backends.gpu.backend import GpuBackend
    from weft.backends.gpu.device.device import GpuDevice


class OpenCLCreator(GpuCreator):
    """Makes backends on OpenCL devices."""

    id = "opencl"
    forward_type = ForwardType.OPENCL
    auto_rank = 2
    options: Sequence[BackendOption] = (*GpuCreator.options, CHAINS)

    def missing(self) -> str | None:
        """Return why OpenCL is missing here, or None."""
        return absent_reason()

    def devices(self) -> list[DeviceInfo]:
        """Return the devices of all platforms."""
        return enumerate_devices()

    def hidden(self) -> list[str]:
        """Return what the user's variables hide."""
        return hidden()

    def listed_vendors(self) -> set[int] | None:
        """Return the vendors whose devices OpenCL lists."""
        return listed_vendors()

    def unusable(self, index: int) -> str | None:
        """Return why a listed device is unusable, or None: tries a small kernel on it."""
        return why_unusable(index)

    def backend_class(self) -> type[GpuBackend]:
        """Return the backend class, to which creators of single ops can be added."""
        from weft.backends.opencl.backend import OpenCLBackend

        return OpenCLBackend

    def open(self, index: int) -> GpuDevice:
        """Open a device; imports pyopencl."""
        return self.open_with(index, NO_OPTIONS)

    def open_with(self, index: int, options: Options) -> GpuDevice:
        """Open a device, for general kernels or all."""
        from weft.backends.opencl.device import open_device

        return open_device(index, OpenCLDialect(), few=bool(options.get(GENERAL.name, False)))
