"""A launch: planned, before tensors have memory, and bound, with memory and a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.backends.gpu.device.device import Binding, LaunchCommand
from weft.backends.gpu.device.kernel_builds import Build
from weft.backends.gpu.memory.slots import Region, touched
from weft.backends.gpu.recording.schedule import Access
from weft.core.contract.backend import StorageType
from weft.core.contract.lowered import Launch
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import Size3
from weft.kernels.source import KernelSource


@dataclass(frozen=True, eq=False)
class PlannedLaunch(Launch):
    """A launch with its kernel's source and constants; its tensors lie at spots that have no memory yet."""

    owner: str
    """The first output of its node."""
    # Not in a report's repr: the source alone has thousands of characters, and a network hundreds of launches.
    source: KernelSource = field(repr=False)
    values: Mapping[str, int | float] = field(repr=False)
    reads: tuple[Tensor, ...] = field(repr=False)
    writes: tuple[Tensor, ...] = field(repr=False)
    repeatable: bool = field(repr=False)
    """Whether more items of a group may do what the last one does."""

    @property
    def label(self) -> str:
        """Return what profiles and messages call the launch: its owner and the kernel."""
        return f"{self.owner}/{self.kernel}"


@dataclass(frozen=True, eq=False)
class PlannedChain(PlannedLaunch):
    """Several launches as one (`weft.kernels.chain`); its tensors are one for each piece of memory.

    The kernel takes those that are only read, a counter that begins with zero and is only its own, and the others.
    """

    launches: tuple[PlannedLaunch, ...] = field(repr=False)
    waits: tuple[bool, ...] = field(repr=False)
    """Of each launch, whether it waits for all before it; if not, it runs beside the last one."""
    whole_nodes: tuple[str, ...] = field(repr=False)
    """The first outputs of the nodes all of whose launches these are. `owner` names the first and the last node, of
    which it may have the sum of parts alone."""

    @property
    def label(self) -> str:
        """Return what profiles and messages call the chain: its owner, its kernel and those of its levels."""
        return f"{self.owner}/{self.kernel} of {', '.join(launch.kernel for launch in self.launches)}"


@dataclass(frozen=True)
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
        """Return what profiles and messages call the launch."""
        return self.plan.label

    @property
    def owner(self) -> str:
        """Return the first output of its node; of a chain, those of the first and the last node."""
        return self.plan.owner

    @property
    def templates(self) -> list[str]:
        """Return the templates of its kernel."""
        return [self.plan.kernel]

    @property
    def plans(self) -> Sequence[PlannedLaunch]:
        """Return the launches that it is, as they were planned."""
        return (self.plan,)

    @property
    def accessed(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return all tensors that it reads, and all that it writes."""
        return self.reads, self.writes


@dataclass(frozen=True)
class BoundChain(BoundLaunch):
    """A chain with its memory; `writes` begins with the counter."""

    plan: PlannedChain
    levels: tuple[BoundLaunch, ...]

    @property
    def templates(self) -> list[str]:
        """Return the templates of its kernel: that of chains, and those of its levels."""
        return [self.plan.kernel, *(name for level in self.levels for name in level.templates)]

    @property
    def plans(self) -> Sequence[PlannedLaunch]:
        """Return the launches of its levels."""
        return self.plan.launches

    @property
    def accessed(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return all tensors that its levels read, and all that they write."""
        pairs = [level.accessed for level in self.levels]
        return [t for reads, _ in pairs for t in reads], [t for _, writes in pairs for t in writes]


def access(launch: BoundLaunch, known: dict[object, Binding] | None = None) -> Access:
    """Return a launch as a command with the bytes that it reads and writes.

    `known` are pieces that other launches are bound to; those that this one adds to them are kept there, too.
    """
    pieces: dict[object, Binding] = {} if known is None else known

    def whole(tensor: Tensor) -> Binding:
        region: Region = tensor.memory
        key = region.slot, region.start, region.length
        found = pieces.get(key)
        if found is None:
            found = pieces[key] = region.binding()
        return found

    bindings = tuple([whole(t) for t in (*launch.reads, *launch.writes)])
    command = LaunchCommand(launch.kernel, bindings, launch.grid, launch.label)
    # No launch writes STATIC memory, so it cannot cause hazards.
    read, written = launch.accessed
    reads = tuple([touched(t, whole(t)) for t in read if t.memory.slot.storage is not StorageType.STATIC])
    return Access(command, reads, tuple([touched(t, whole(t)) for t in written]))
