"""The GPU door: what an API must provide so that every kernel of Weft runs on it.

Subclass `GpuDevice` and give it a `Dialect`; allocate, free, upload, download, compile, record, submit,
wait and close are all there is. Everything else (placement, memory plan, launches, levels) is shared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from weft.backends.gpu.device.profiles import DeviceProfile
from weft.core.contract.backend import DeviceInfo
from weft.core.graph.layout import Array
from weft.kernels.dialect import Dialect
from weft.kernels.launch import DeviceCaps, Size3
from weft.kernels.source import KernelSource

__all__ = [
    "BarrierCommand", "Binding", "Command", "CopyCommand", "DeviceCaps", "DeviceStats", "GpuBuffer", "GpuDevice",
    "LaunchCommand", "MemoryKind", "Size3",
]

class MemoryKind(Enum):
    """Where a buffer lies: on the device, or in memory that the host reaches and the device copies from or to.

    Where a device allows it kernels read UPLOAD memory, which may be the device's own, and write DOWNLOAD memory.

    STREAM is for uploads of which the device takes parts while the host writes others; unless that makes a
    difference on a device, it is the same as UPLOAD.
    """

    DEVICE = "device"
    UPLOAD = "upload"
    STREAM = "stream"
    DOWNLOAD = "download"


@dataclass(eq=False)
class GpuBuffer:
    """Memory of a device. Buffers of all kinds but DEVICE are mapped for good: `host` is their bytes."""

    nbytes: int
    kind: MemoryKind
    handle: Any
    host: Array | None = None
    """A uint8 array of `nbytes`, or None for kind DEVICE."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A piece of a buffer, in bytes."""

    buffer: GpuBuffer
    offset: int
    nbytes: int
    blocks: tuple[int, int] | None = None
    """Of an access: the first and the end of the blocks of channels that are touched, None for all. A device
    binds the whole piece."""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """Run a kernel on `grid` work-groups."""

    kernel: Any
    bindings: tuple[Binding, ...]
    grid: Size3
    label: str = ""


@dataclass(frozen=True, slots=True)
class CopyCommand:
    """Copy bytes from one piece to another of the same size; either may be host memory."""

    source: Binding
    target: Binding
    label: str = ""


@dataclass(frozen=True, slots=True)
class BarrierCommand:
    """Everything before is finished and visible before anything after begins."""


Command = LaunchCommand | CopyCommand | BarrierCommand


@dataclass
class DeviceStats:
    """Counters, so that a test can assert that a run allocates and compiles nothing and that nothing leaks."""

    allocations: int = 0
    live_buffers: int = 0
    live_bytes: int = 0
    compiles: int = 0
    """Kernels built for the device: pipelines in Vulkan, programs in OpenCL. Hits in memory do not count."""
    live_kernels: int = 0
    """Kernels that there were after the last one was asked for: in use, or held for later use."""
    live_recordings: int = 0
    submits: int = 0


@dataclass
class GpuDevice(ABC):
    """An open device. Its methods may be called from several threads: an implementation locks what needs it."""

    info: DeviceInfo
    caps: DeviceCaps
    dialect: Dialect
    stats: DeviceStats = field(default_factory=DeviceStats)
    sends_ahead: bool = field(default=False, init=False)
    """Whether large uploads go in chunks while the host copies on. Then what a thread submits runs in order, after
    what it sent before, and a wait for one submit is a wait for all that the thread submitted or sent before, which
    may be started again then; and it pays, too."""
    computes_ahead: bool = field(default=False, init=False)
    """Whether it pays to begin with a part of a large batch while the host still copies the rest; then what a thread
    submits runs in order, as for `sends_ahead`."""
    computes_on_uploads: bool = field(default=False, init=False)
    """Whether kernels read memory of kind UPLOAD as fast as the device's own: then inputs stay where they are put."""
    stores_to_host: bool = field(default=False, init=False)
    """Whether kernels may write memory of kind DOWNLOAD: then small outputs need no copy."""
    launches_overlap: bool = field(default=True, init=False)
    """Whether launches of one level run side by side; where they do not, one for two is worth some work in vain."""
    gone: bool = False
    """Whether the device was lost: new sessions open it anew."""
    profile: DeviceProfile | None = field(default=None, init=False)
    """What the device pretends to be."""

    def pretend(self, profile: DeviceProfile) -> None:
        """Have less than there is: called once, before anything is allocated.

        An implementation need do no more if it refuses what is beyond `caps`; `window` and `coherent` are its own
        matter, and `memory` is the matter of all that is allocated for sessions (`weft.backends.gpu.memory.heap`).
        """
        self.profile, self.caps = profile, profile.apply(self.caps)
        self.info = replace(self.info, name=f"{self.info.name} as {profile}")

    @abstractmethod
    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return a buffer of at least `nbytes`; OutOfMemory says how much was asked and what there is."""

    @abstractmethod
    def free(self, buffer: GpuBuffer) -> None:
        """Give a buffer back; the caller knows that no submitted work uses it any more."""

    @abstractmethod
    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Copy a contiguous array's bytes into a DEVICE buffer; returns when `data` may be changed."""

    @abstractmethod
    def download(self, buffer: GpuBuffer, offset: int, out: Array) -> None:
        """Copy bytes of a DEVICE buffer into the contiguous array `out`; waits for all earlier work."""

    @abstractmethod
    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Any:
        """Return the kernel with these constants, from memory, from the disk cache, or freshly built.

        LX, LY and LZ, the local size, must be known when the kernel is built; the others may as well be
        arguments of it.
        CompileError shows the start of the compiler's log and names a file with the source and the rest.
        """

    @abstractmethod
    def record(self, commands: Sequence[Command], profile: bool = False) -> Any:
        """Return the commands in a form that can be submitted many times; everything is bound here.

        The recording keeps alive what it binds. Kernels are bound to DEVICE memory, and to UPLOAD and DOWNLOAD
        memory only where the device says so (`computes_on_uploads`, `stores_to_host`). Where commands run in
        order, one after the other, barriers may be ignored.
        """

    @abstractmethod
    def submit(self, recording: Any) -> None:
        """Start a recording; returns before it is done. It is not submitted again before it was waited for."""

    def send(self, recording: Any) -> None:
        """Start a recording of uploads alone, to memory that no work under way reads or writes.

        It may run beside what was submitted before, for which a wait for it does not wait; what the thread submits
        from now on waits for it. A device that cannot copy while it computes just submits it.
        """
        self.submit(recording)

    @abstractmethod
    def wait(self, recording: Any) -> None:
        """Wait until the last submit of the recording is done; DeviceLost if the device gave up."""

    @abstractmethod
    def release(self, recording: Any) -> None:
        """Free a recording that is not running."""

    def building(self) -> AbstractContextManager[None]:
        """Prepare for many kernels to be compiled while a block runs, if the device has a way that costs something."""
        return nullcontext()

    def hold_kernels(self, count: int) -> None:
        """Hold so many built kernels beside those in use, those that were asked for last; nothing by default.

        A device that holds each kernel it has ever built would grow with each new shape.
        """
        return None

    def keep(self) -> None:
        """Put on disk what was compiled, at the end of a load or of tuning, if the device did not do so by itself."""
        return None

    def queued_seconds(self, commands: Sequence[Command]) -> float | None:
        """Run commands once, and return seconds from the first one's start to the last one's end, gaps included.

        None on a device whose `timings` are right for short kernels, too.
        """
        return None

    def timings(self, recording: Any) -> list[float]:
        """Return seconds per command of the last run of a recording made with `profile`; empty if unknown."""
        return []

    def span(self, recording: Any, first: int, last: int) -> float | None:
        """Return seconds from the start of command `first` to the end of command `last` in the run of `timings`.

        Waits between the commands count. Both commands enqueue something; None if the times are not known.
        """
        return None

    def close(self) -> None:
        """Free what the device still holds: kernels, caches, the device itself."""
        return None
