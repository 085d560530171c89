"""The class of the backends on OpenCL."""

from __future__ import annotations

from weft.backends.gpu.backend import GpuBackend


class OpenCLBackend(GpuBackend):
    """Runs a pipeline through OpenCL; `addCreator` on this class replaces an op on OpenCL alone."""

    takes_open_sizes = True
    keeps_state = True
