"""The Vulkan device: everything that the shared GPU code needs, on one compute queue."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, TypeVar

from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.device import Command, GpuBuffer, GpuDevice, MemoryKind
from weft.backends.gpu.device.limits import check_kernel
from weft.backends.gpu.device.profiles import DeviceProfile
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.instance import NO_DRIVER_FIX, validation_messages
from weft.backends.vulkan.memory import Memory
from weft.backends.vulkan.physical import physical_devices
from weft.backends.vulkan.pipeline_builder import Kernel
from weft.backends.vulkan.pipelines import Pipelines, PushedKernel
from weft.backends.vulkan.probe import absent_reason
from weft.backends.vulkan.ptx_kernels import DIALECT, PtxKernel, PtxKernels
from weft.backends.vulkan.recording import Recording
from weft.backends.vulkan.transfer import Transfer
from weft.core.contract.backend import DeviceInfo
from weft.core.contract.profile import Profiled
from weft.core.graph.layout import Array
from weft.core.host import shutdown
from weft.errors import ClosedError, DeviceLost, NoDevice, WeftError
from weft.kernels.dialect import Dialect
from weft.kernels.source import KernelSource

__all__ = ["VulkanDevice", "absent_reason", "enumerate_devices", "open_device", "validation_messages"]

K = TypeVar("K", bound=Kernel | PushedKernel | PtxKernel)


class _Parts:
    """What a device owns; a separate object, so that the device is closed when it is garbage collected."""

    def __init__(
        self, context: Context, memory: Memory, pipelines: Pipelines, transfer: Transfer, ptx: PtxKernels | None
    ) -> None:
        self.context = context
        self.ptx = ptx
        """Kernels by PTX; None where the device runs none."""
        self.memory = memory
        self.pipelines = pipelines
        self.transfer = transfer
        self.recordings: set[Recording] = set()
        self.lock = threading.Lock()
        self._is_destroyed = False

    def close(self) -> None:
        """Destroy everything, once no thread compiles any more; a forked process has nothing to destroy."""
        if not fork_guard.is_forked():
            self.context.end(self._destroy)

    def _destroy(self) -> None:
        """Destroy everything, users before what they use.

        While callers hold arrays in the device's memory, the logical device stays.
        """
        self.context.idle()
        with self.lock:
            recordings, self.recordings = self.recordings, set()
        for recording in recordings:
            recording.destroy()
        self.context.count(live_recordings=-len(recordings))
        self.transfer.destroy()
        self.memory.destroy()
        try:
            if self.ptx is not None:
                self.ptx.destroy()
            self.pipelines.destroy()
        finally:
            self._is_destroyed = True
            if self.memory.is_empty:
                self.context.destroy()

    @property
    def builds(self) -> Pipelines | PtxKernels:
        """Return what builds the kernels."""
        return self.pipelines if self.ptx is None else self.ptx

    def free_after_close(self, buffer: GpuBuffer) -> None:
        """Free a buffer that a caller held beyond the close; the last one takes the logical device with it."""
        self.memory.free(buffer)
        if self._is_destroyed and self.memory.is_empty:
            self.context.destroy()


class VulkanDevice(GpuDevice):
    """An open Vulkan device; `open_device` makes one."""

    def __init__(self, info: DeviceInfo, parts: _Parts, dialect: Dialect) -> None:
        ptx = parts.ptx
        caps = parts.context.physical.caps() if ptx is None else ptx.caps
        super().__init__(info, caps, dialect if ptx is None else DIALECT, parts.context.stats)
        self._held = parts
        self.stores_to_host = self.divides = True
        self.shares_kernels = ptx is not None  # those in GLSL take 128 bytes of constants at the launch
        if ptx is not None:
            self.tuned_as = "vulkan-ptx"
            self.remarks = ("kernels are OpenCL's, as PTX; the option vulkan.ptx=no keeps those in GLSL",)
        self._learn()
        self._finalizer = weakref.finalize(self, parts.close)
        self._finalizer.atexit = False
        shutdown.note_device(self)

    def _learn(self) -> None:
        """Set what pays with this device's memory types.

        One queue runs everything in order. If the host writes to the device's memory, sending in chunks gains nothing:
        19 MB took a fifth longer with chunks. On a CPU device, overlap takes cores from the
        copies.
        """
        self.computes_on_uploads = self._held.memory.writes_to_device
        self.computes_on_streams = self._held.memory.is_unified
        self.sends_ahead = not self.caps.software and not self._held.memory.writes_to_device
        self.computes_ahead = not self.caps.software

    def pretend(self, profile: DeviceProfile) -> None:
        """Pretend to have less than the device has, including memory types."""
        super().pretend(profile)
        self._held.memory.pretend(profile, self.caps.max_allocation)
        self._learn()

    def _closed(self) -> ClosedError:
        return ClosedError(
            f"the Vulkan device {self.info.name} is closed", fix="open it again, or create a new session"
        )

    @property
    def parts(self) -> _Parts:
        """Return what the device owns; ClosedError once it is closed."""
        if not self._finalizer.alive:
            raise self._closed()
        return self._held

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return a buffer of at least `nbytes`; OutOfMemory says how much was requested and how much there is."""
        return self.parts.memory.allocate(nbytes, kind)

    def adopt(self, memory: Array) -> GpuBuffer | None:
        """Return a buffer whose `host` is the caller's memory; None where the driver cannot import it."""
        return self.parts.memory.adopt(memory)

    def free(self, buffer: GpuBuffer) -> None:
        """Release a buffer; its `host` array must not be used any more. Does nothing in a forked process."""
        if fork_guard.is_forked():
            return
        if self._finalizer.alive:
            self._held.memory.free(buffer)
        elif buffer.lent:  # a closed device has freed all others already
            self._held.free_after_close(buffer)

    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Copy a contiguous array's bytes into a DEVICE buffer; return once `data` may be changed."""
        self.parts.transfer.upload(buffer, offset, data)

    def download(self, buffer: GpuBuffer, offset: int, out: Array) -> None:
        """Copy bytes of a DEVICE buffer into the contiguous array `out`, after all earlier work."""
        self.parts.transfer.download(buffer, offset, out)

    def to_be_built(self, kernels: Iterable[tuple[KernelSource, Mapping[str, int | float]]]) -> int:
        """Return how many kernels are neither built nor kept on disk, as SPIR-V or for the device."""
        return self.parts.builds.missing(kernels)

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Kernel | PushedKernel | PtxKernel:
        """Return the kernel with these constants, from memory or newly built from its SPIR-V or PTX."""
        check_kernel(source, values, self.caps, self.info.name)
        return self._counted(self.parts.builds.kernel(source, values))

    def compile_for_shapes(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> Kernel | PushedKernel | PtxKernel:
        """Return the kernel with these constants; those that vary are given to it at each launch."""
        check_kernel(source, values, self.caps, self.info.name)
        return self._counted(self.parts.builds.kernel_for_shapes(source, values, varying))

    def _counted(self, kernel: K) -> K:
        self.stats.live_kernels = self.parts.builds.held
        return kernel

    @property
    def compiles_side_by_side(self) -> bool:
        """Tell whether several threads compile faster than one."""
        return True

    def building(self) -> AbstractContextManager[None]:
        """Let child processes compile to PTX, where kernels come from there."""
        ptx = self.parts.ptx
        return nullcontext() if ptx is None else ptx.building()

    def expect_building(self) -> None:
        """Start the processes that compile to PTX, which takes a second or two."""
        ptx = self.parts.ptx
        if ptx is not None:
            ptx.expect_building()

    def hold_kernels(self, count: int) -> None:
        """Keep the `count` most recently used kernels, besides those in use."""
        builds = self.parts.builds
        builds.hold(count)
        self.stats.live_kernels = builds.held

    def record(self, commands: Sequence[Command], profile: Profiled = False) -> Recording:
        """Return the commands as a command buffer that can be submitted many times."""
        return self.record_divided(commands, (), profile)

    def record_divided(self, commands: Sequence[Command], cuts: Sequence[int], profile: Profiled = False) -> Recording:
        """Return the commands as command buffers, of which one begins with each command in `cuts`."""
        parts = self.parts
        recording = Recording(parts.context, parts.memory, parts.ptx, self.caps, commands, profile, cuts)
        with parts.lock:
            parts.recordings.add(recording)
        parts.context.count(live_recordings=1)
        return recording

    def submit(self, recording: Any) -> None:
        """Start a recording; return before it is done."""
        if not self._finalizer.alive:
            raise self._closed()
        recording.submit()

    def wait(self, recording: Any) -> None:
        """Wait until the last submit of the recording is done; DeviceLost if the device failed.

        Returns at once in a forked process, where the submit would never end.
        """
        if self._finalizer.alive and not fork_guard.is_forked():  # closing has waited for everything
            recording.wait()

    def release(self, recording: Any) -> None:
        """Free a recording, after waiting for it if it still runs. A second release does nothing.

        The loss of its device is no error here, because nothing runs on a lost device. In a forked process there is
        nothing to free.
        """
        if fork_guard.is_forked():
            return
        parts = self._held
        with parts.lock:
            if recording not in parts.recordings:
                return
            parts.recordings.remove(recording)
        try:
            with suppress(DeviceLost):
                recording.wait()
        finally:
            recording.destroy()
            parts.context.count(live_recordings=-1)

    def timings(self, recording: Any) -> list[float]:
        """Return seconds per command of the last run of a profiled recording; barriers take 0.0."""
        if not self._finalizer.alive:
            raise self._closed()
        timings: list[float] = recording.timings()
        return timings

    def span(self, recording: Any, first: int, last: int) -> float | None:
        """Return seconds from the start of one command to the end of another in the last run; None if unknown."""
        if not self._finalizer.alive:
            raise self._closed()
        span: float | None = recording.span(first, last)
        return span

    def keep(self) -> None:
        """Save the driver's pipeline cache if it has grown enough; closing saves it if it has grown at all."""
        self._save()

    def _save(self, *, at_the_end: bool = False) -> None:
        with suppress(WeftError):
            if self._finalizer.alive and not fork_guard.is_forked():
                self._held.pipelines.save(at_the_end=at_the_end)

    def end(self, *, may_close: bool) -> None:
        """Close at the end of the process; while a thread may still use the device, only save its cache."""
        if may_close:
            self.close()
        else:
            self._save(at_the_end=True)

    def close(self) -> None:
        """Destroy everything that the device holds, including buffers and recordings; a second close does nothing."""
        self._finalizer()


def enumerate_devices() -> list[DeviceInfo]:
    """Return the Vulkan devices, the best kind first; empty if Vulkan has no usable driver."""
    try:
        return [physical.info(index) for index, physical in enumerate(physical_devices())]
    except NoDevice:
        return []


def open_device(index: int, dialect: Dialect, *, ptx: bool = True) -> VulkanDevice:
    """Open the device that `enumerate_devices` lists under `index`; NoDevice lists the present ones.

    Kernels are written in `dialect`, unless `ptx` and the device runs kernels by PTX faster (`ptx_kernels`).
    """
    found = physical_devices()
    if not 0 <= index < len(found):
        listed = ", ".join(f"vulkan:{i} {p.name}" for i, p in enumerate(found)) or "there is none"
        raise NoDevice(
            f"there is no Vulkan device {index}",
            why=f"found: {listed}",
            fix="choose one of these" if found else NO_DRIVER_FIX,
        )
    context = Context(found[index])
    with ExitStack() as made:
        made.callback(context.destroy)
        memory = Memory(context)
        made.callback(memory.destroy)
        built = PtxKernels.open(context) if ptx else None
        if built is not None:
            made.callback(built.destroy)
        pipelines = Pipelines(context, memory)
        made.callback(pipelines.destroy)
        parts = _Parts(context, memory, pipelines, Transfer(context, memory), built)
        made.pop_all()
    return VulkanDevice(found[index].info(index), parts, dialect)
