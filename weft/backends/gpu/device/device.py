"""What a GPU's API must provide so that all of Weft's kernels run on it.

Subclass `GpuDevice` and give it a `Dialect`. The only methods to write are allocate, free, upload, download, compile,
record, release, submit and wait. Everything else (memory plan, launches, levels) is shared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import wraps
from typing import Any

from weft.backends.gpu.device.profiles import DeviceProfile
from weft.core.contract.backend import DeviceInfo
from weft.core.contract.profile import Profiled
from weft.core.graph.layout import Array
from weft.errors import DeviceLost
from weft.kernels.device_caps import DeviceCaps, Size3
from weft.kernels.dialect import Dialect
from weft.kernels.source import KernelSource

__all__ = [
    "BarrierCommand", "Binding", "Command", "CopyCommand", "DeviceCaps", "DeviceStats", "GpuBuffer", "GpuDevice",
    "LaunchCommand", "MemoryKind", "Size3",
]

class MemoryKind(Enum):
    """Where a buffer lies: on the device, or in memory that the host accesses and the device copies from or to.

    If a device allows it, kernels read UPLOAD memory, which may be the device's own, and write DOWNLOAD memory.
    The device takes parts of STREAM memory while the host writes others; on devices where that makes no
    difference, STREAM is the same as UPLOAD.
    """

    DEVICE = "device"
    UPLOAD = "upload"
    STREAM = "stream"
    DOWNLOAD = "download"


@dataclass(eq=False)
class GpuBuffer:
    """Memory of a device. All kinds but DEVICE stay mapped: `host` is their bytes."""

    nbytes: int
    kind: MemoryKind
    handle: Any
    host: Array | None = None
    """A uint8 array of `nbytes`, or None for kind DEVICE."""
    lent: bool = False
    """Whether callers hold arrays in it. A device that is closed leaves it valid, until it is freed."""
    adopted: bool = False
    """Whether its memory is the caller's, which stays when the buffer is freed."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A piece of a buffer, in bytes."""

    buffer: GpuBuffer
    offset: int
    nbytes: int
    blocks: tuple[int, int] | None = None
    """In an access: the first channel block touched and the end, None for all blocks. A device
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
    """Everything before it is finished and visible before anything after it begins."""


Command = LaunchCommand | CopyCommand | BarrierCommand


@dataclass
class DeviceStats:
    """Counters, so that tests can check that a run allocates and compiles nothing and that nothing leaks."""

    allocations: int = 0
    live_buffers: int = 0
    live_bytes: int = 0
    compiles: int = 0
    """Kernels built for the device: pipelines in Vulkan, programs in OpenCL. Hits in memory do not count."""
    live_kernels: int = 0
    """Kernels in use or kept, counted at the last request."""
    live_recordings: int = 0
    submits: int = 0


@dataclass
class GpuDevice(ABC):
    """An open device. Several threads may call its methods: an implementation locks what needs it.

    In every subclass, a method that raises DeviceLost marks the device as `gone`.
    """

    info: DeviceInfo
    caps: DeviceCaps
    dialect: Dialect
    stats: DeviceStats = field(default_factory=DeviceStats)
    sends_ahead: bool = field(default=False, init=False)
    """Whether the device sends large uploads in chunks while the host copies on, and gains by it. Then a thread's
    submits and sends must run in order, and a wait for one submit must wait for all that the thread submitted or sent
    before; those may then be started again."""
    uploads_directly: bool = field(default=False, init=False)
    """Whether `upload_beside` takes a large input from a caller's array faster than it goes through UPLOAD memory."""
    computes_ahead: bool = field(default=False, init=False)
    """Whether the device gains by starting on a part of a large batch while the host copies the rest. Then a thread's
    submits must run in order, as for `sends_ahead`."""
    computes_on_uploads: bool = field(default=False, init=False)
    """Whether kernels read UPLOAD memory as fast as the device's own; then inputs need no copy."""
    computes_on_streams: bool = field(default=False, init=False)
    """Whether that holds for STREAM memory, too; then inputs in callers' arrays need no copy."""
    stores_to_host: bool = field(default=False, init=False)
    """Whether kernels may write DOWNLOAD memory; then small outputs need no copy."""
    launches_overlap: bool = field(default=True, init=False)
    """Whether launches of one level run in parallel; if not, merging two launches is worth some wasted work."""
    longest_chained: float = field(default=8.0, init=False)
    """Microseconds of the longest launches that share one: the longer it is, the more a launch loses in a chain, whose
    groups are few and do not run beside other launches. Those by warpgroups may be half as long again."""
    divides: bool = field(default=False, init=False)
    """Whether `record_divided` divides a recording into several submissions."""
    reads_all_sizes: bool = field(default=False, init=False)
    """Whether kernels read all constants but the local size when they run, whatever shapes there were."""
    shares_kernels: bool = field(default=False, init=False)
    """Whether `compile_for_shapes` leaves any number of constants to the launch, so that layers can share a kernel."""
    remarks: tuple[str, ...] = field(default=(), init=False)
    """Sentences for reports on how the device runs kernels, where an option decides that."""
    tuned_as: str = field(default="", init=False)
    """Under which id tuning tables know it, if not by its API's: where its kernels are others than the API's own."""
    not_for_shapes: set[str] = field(default_factory=set, init=False)
    """Digests of the kernels that `compile_for_shapes` refused; they are built for each shape."""
    gone: bool = False
    """Whether the device was lost; then new sessions open it again."""
    profile: DeviceProfile | None = field(default=None, init=False)
    """The device that this one pretends to be, if any."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        note_losses(cls)

    def pretend(self, profile: DeviceProfile) -> None:
        """Pretend to have less than the device has; called once, before anything is allocated.

        An implementation that refuses what is beyond `caps` needs nothing more. It handles `window` and `coherent`
        itself; `weft.backends.gpu.memory.heap` handles `memory`, for everything allocated for sessions.
        """
        self.profile, self.caps = profile, profile.apply(self.caps)
        self.info = replace(self.info, name=f"{self.info.name} as {profile}")

    @abstractmethod
    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return a buffer of at least `nbytes`; OutOfMemory says how much was requested and how much there is."""

    def adopt(self, memory: Array) -> GpuBuffer | None:
        """Return a DOWNLOAD buffer, marked `adopted`, whose `host` is the caller's memory, or None, as by default.

        `memory` is whole pages of bytes. The device must write there about as fast as to DOWNLOAD memory of its own,
        and the host must read there as fast as elsewhere. A forked process must keep what it has
        (`fork_guard.keeps_pages`).
        """
        return None

    @abstractmethod
    def free(self, buffer: GpuBuffer) -> None:
        """Release a buffer; the caller ensures that no submitted work uses it any more."""

    @abstractmethod
    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Copy a contiguous array's bytes into a DEVICE buffer; return once `data` may be changed."""

    def upload_beside(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Do what `upload` does, to memory that no running work reads or writes: it need not wait for that work."""
        self.upload(buffer, offset, data)

    @abstractmethod
    def download(self, buffer: GpuBuffer, offset: int, out: Array) -> None:
        """Copy bytes of a DEVICE buffer into the contiguous array `out`, after all earlier work."""

    @abstractmethod
    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Any:
        """Return the kernel with these constants, from memory, from the disk cache, or newly built.

        LX, LY and LZ, the local size, must be known when the kernel is built; the other constants may become
        arguments. CompileError shows the start of the compiler's log and names a file with the source and the rest.
        """

    def compile_for_shapes(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> Any:
        """Return the kernel with these constants, of which those in `varying` are read when it runs.

        A network's shape changed, and these constants with it: then a kernel that reads them serves further shapes
        without being built again. Constants that must be known when a kernel is built, such as LX, may be among them.
        A device whose kernels are built for all constants, as by default, returns what `compile` does.
        """
        return self.compile(source, values)

    def to_be_built(self, kernels: Iterable[tuple[KernelSource, Mapping[str, int | float]]]) -> int:
        """Return how many kernels are neither built nor kept on disk; 0 by default, which takes no time to find."""
        return 0

    def compile_together(self, kernels: Iterable[tuple[KernelSource, Mapping[str, int | float]]]) -> object:
        """Build kernels that `compile` will be asked for, if that is faster than one by one; nothing by default.

        The caller holds what is returned until it has the kernels. What the compiler refuses, `compile` tells.
        """
        return None

    @abstractmethod
    def record(self, commands: Sequence[Command], profile: Profiled = False) -> Any:
        """Return the commands in a form that can be submitted many times; everything is bound here.

        With `profile` a run takes times for `timings` and `span`; with "span" for `span` from the first launch to the
        last one alone, so that it takes no longer than without. A device that cannot takes all.
        The recording keeps what it binds alive. Kernels are bound to DEVICE memory, and to other kinds only if the
        device allows it (`computes_on_uploads`, `computes_on_streams`, `stores_to_host`). If commands run in
        order, one after the other, barriers may be ignored.
        """

    def record_divided(self, commands: Sequence[Command], cuts: Sequence[int], profile: Profiled = False) -> Any:
        """Return what `record` does, of which another submission begins with each command in `cuts`.

        By default it is one, whatever the cuts.
        """
        return self.record(commands, profile)

    @abstractmethod
    def submit(self, recording: Any) -> None:
        """Start a recording and return before it is done. The caller waits for it before it submits it again."""

    def send(self, recording: Any) -> None:
        """Start a recording of uploads alone, to memory that no running work reads or writes.

        It may run beside work submitted earlier; a wait for it does not wait for that work. What the thread submits
        later waits for it. A device that cannot copy while it computes just submits it.
        """
        self.submit(recording)

    @abstractmethod
    def wait(self, recording: Any) -> None:
        """Wait until the last submit of the recording is done; DeviceLost if the device failed."""

    @abstractmethod
    def release(self, recording: Any) -> None:
        """Free a recording that is not running."""

    @property
    def compiles_side_by_side(self) -> bool:
        """Tell whether several threads compile faster than one: OpenCL's drivers for CPUs have them wait for a lock."""
        return not self.caps.software

    def building(self) -> AbstractContextManager[None]:
        """Prepare for compiling many kernels while a block runs, such as by starting processes; nothing by default."""
        return nullcontext()

    def expect_building(self) -> None:
        """Get ready for `building` in some seconds, which may never come; nothing by default. Any thread calls it."""
        return None

    def hold_kernels(self, count: int) -> None:
        """Keep the `count` most recently requested kernels besides those in use; nothing by default.

        A device that keeps every kernel would grow with each new shape.
        """
        return None

    def keep(self) -> None:
        """Write compiled kernels to disk at the end of a load or of tuning, if the device has not done so already."""
        return None

    def queued_seconds(self, commands: Sequence[Command]) -> float | None:
        """Run commands once, and return seconds from the first one's start to the last one's end, gaps included.

        None on a device whose `timings` are accurate for short kernels, too.
        """
        return None

    def timings(self, recording: Any) -> list[float]:
        """Return seconds per command of the last run of a recording made with `profile=True`; empty if unknown."""
        return []

    def span(self, recording: Any, first: int, last: int) -> float | None:
        """Return seconds from the start of command `first` to the end of command `last` in the run of `timings`.

        It includes waits between the commands. Both commands must enqueue something. None if the times are unknown.
        """
        return None

    def close(self) -> None:
        """Free what the device still holds: kernels, caches, and the device itself."""
        return None


# -- lost devices -----------------------------------------------------------------------------------------


CALLS = (
    "allocate", "adopt", "upload", "upload_beside", "download", "compile", "compile_for_shapes", "compile_together",
    "record", "submit", "send", "wait", "queued_seconds", "timings", "span",
)
"""The methods of a device in which its driver may give up."""


def note_losses(kind: type) -> None:
    """Have a class of devices mark a device as `gone` when one of its methods raises DeviceLost."""
    for name in CALLS:
        method = vars(kind).get(name)
        if method is not None:
            setattr(kind, name, _noting(method))


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(device: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(device, *arguments, **named)
        except DeviceLost:
            device.gone = True
            raise

    return call
