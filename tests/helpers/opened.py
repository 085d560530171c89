"""The devices that a process has open."""

from __future__ import annotations

from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import DeviceStats, GpuDevice
from weft.core.registry.backend_registry import registry

STARTS = {"opencl": ("send", "submit"), "vulkan": ("submit",)}
"""What starts a recording on a device; where uploads have no way of their own, `send` submits."""


def opened(device: str) -> GpuDevice:
    """Return the first device of a GPU backend."""
    creator = registry.find(device)
    assert isinstance(creator, GpuCreator)
    return creator.runtime(0).device


def stats(device: str) -> DeviceStats | None:
    """Return the counters of a device; a CPU has none."""
    creator = registry.find(device)
    return creator.runtime(0).device.stats if isinstance(creator, GpuCreator) else None


def held(device: str) -> tuple[int, int, int]:
    """Return how much of a device is in use: buffers, bytes, recordings."""
    found = stats(device)
    return (found.live_buffers, found.live_bytes, found.live_recordings) if found else (0, 0, 0)
