"""The class of the backends on Vulkan."""

from __future__ import annotations

from weft.backends.gpu.backend import GpuBackend


class VulkanBackend(GpuBackend):
    """Runs a pipeline through Vulkan; `addCreator` on this class replaces an op on Vulkan alone."""

    takes_open_sizes = True
    keeps_state = True
