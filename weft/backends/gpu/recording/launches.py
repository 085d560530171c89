"""A launch: planned, before tensors have memory, and bound, with memory and a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.backends.gpu.device.kernel_builds import Build
from weft.core.contract.lowered import Launch
from weft.core.graph.tensor import Tensor
from weft.kernels.launch import Size3
from weft.kernels.source import KernelSource


@dataclass(frozen=True, eq=False)
class PlannedLaunch(Launch):
    """A launch with its kernel's source and constants; its tensors lie at spots that have no memory yet."""

    label: str
    # Not in a report's repr: the source alone has thousands of characters, and a network hundreds of launches.
    source: KernelSource = field(repr=False)
    values: Mapping[str, int | float] = field(repr=False)
    reads: tuple[Tensor, ...] = field(repr=False)
    writes: tuple[Tensor, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    """A planned launch with its memory, of which the address may still be open, and its kernel, perhaps not built."""

    plan: PlannedLaunch
    build: Build
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]

    @property
    def kernel(self) -> Any:
        """Return the device's kernel, waiting for it."""
        return self.build.kernel

    @property
    def grid(self) -> Size3:
        """Return the number of work-groups."""
        return self.plan.grid

    @property
    def label(self) -> str:
        """Return what profiles and messages call the launch: the node's first output and the kernel."""
        return self.plan.label
