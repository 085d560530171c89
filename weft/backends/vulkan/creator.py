"""Registers Vulkan: what must be installed, which devices exist, how one is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.backends.gpu.creator import CHAINS, GpuCreator
from weft.backends.vulkan.dialect import GlslDialect
from weft.backends.vulkan.probe import absent_reason, hidden, listed_vendors
from weft.core.contract.backend import BackendOption, DeviceInfo, ForwardType
from weft.core.contract.backend_options import NO_OPTIONS, Options

if TYPE_CHECKING:
    from weft.backends.gpu.backend import GpuBackend
    from weft.backends.gpu.device.device import GpuDevice


PTX = BackendOption("ptx", True, "On a Hopper GPU, run OpenCL's kernels, which NVIDIA's OpenCL driver compiles.")


class VulkanCreator(GpuCreator):
    """Makes backends on Vulkan devices."""

    id = "vulkan"
    forward_type = ForwardType.VULKAN
    auto_rank = 1
    options: Sequence[BackendOption] = (*GpuCreator.options, CHAINS, PTX)

    def missing(self) -> str | None:
        """Return why Vulkan is missing here, or None."""
        return absent_reason()

    def devices(self) -> list[DeviceInfo]:
        """Return the physical devices, the best kind first."""
        from weft.backends.vulkan.device import enumerate_devices

        return enumerate_devices()

    def hidden(self) -> list[str]:
        """Return what the user's variables hide."""
        return hidden()

    def listed_vendors(self) -> set[int] | None:
        """Return the vendors whose devices Vulkan lists."""
        return listed_vendors()

    def sooner(self, options: Options) -> Options:
        """Return the options with general kernels; in GLSL, if that can be compiled: that needs no other process."""
        from weft.backends.vulkan.glslang import find_compiler

        ptx = bool(options[PTX.name]) and find_compiler() is None
        return Options({**super().sooner(options), PTX.name: ptx})

    def backend_class(self) -> type[GpuBackend]:
        """Return the backend class, to which creators of single ops can be added."""
        from weft.backends.vulkan.backend import VulkanBackend

        return VulkanBackend

    def open(self, index: int) -> GpuDevice:
        """Open a device; imports the `vulkan` package."""
        return self.open_with(index, NO_OPTIONS)

    def open_with(self, index: int, options: Options) -> GpuDevice:
        """Open a device, with or without kernels by PTX."""
        from weft.backends.vulkan.device import open_device

        return open_device(index, GlslDialect(), ptx=bool(options.get(PTX.name, PTX.default)))
