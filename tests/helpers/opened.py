"""The devices that a process has open."""

from __future__ import annotations

from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import GpuDevice
from weft.core.registry.backend_registry import registry

STARTS = {"opencl": ("send", "submit"), "vulkan": ("submit",)}
"""What starts a recording on a device; where uploads have no way of their own, `send` submits."""


def opened(device: str) -> GpuDevice:
    """Return the first device of a GPU backend."""
    creator = registry.find(device)
    assert isinstance(creator, GpuCreator)
    return creator.runtime(0).device
