"""Registers Vulkan: what must be installed, which devices there are, how one is opened."""

from __future__ import annotations

from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device import GpuDevice
from weft.backends.vulkan.dialect import GlslDialect
from weft.backends.vulkan.presence import absent_reason
from weft.core.backend import DeviceInfo, ForwardType


class VulkanBackend(GpuBackend):
    """Run a pipeline through Vulkan; `addCreator` on this class replaces an op on Vulkan alone."""


class VulkanCreator(GpuCreator):
    """Makes backends on Vulkan devices."""

    id = "vulkan"
    forward_type = ForwardType.VULKAN
    backend = VulkanBackend
    auto_rank = 1

    def absent(self) -> str | None:
        """Return why there is no Vulkan here."""
        return absent_reason()

    def devices(self) -> list[DeviceInfo]:
        """Return the physical devices, the best kind first."""
        from weft.backends.vulkan.device import enumerate_devices

        return enumerate_devices()

    def open(self, index: int) -> GpuDevice:
        """Open a device; the `vulkan` package is imported only now."""
        from weft.backends.vulkan.device import open_device

        return open_device(index, GlslDialect())
