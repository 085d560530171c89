"""The Vulkan device: everything the shared GPU code asks for, on one compute queue."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.device import Command, GpuBuffer, GpuDevice, MemoryKind
from weft.backends.gpu.device.limits import check_kernel
from weft.backends.gpu.device.profiles import DeviceProfile
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.instance import NO_DRIVER_FIX, validation_messages
from weft.backends.vulkan.memory import Memory
from weft.backends.vulkan.physical import physical_devices
from weft.backends.vulkan.pipelines import Kernel, Pipelines
from weft.backends.vulkan.probe import absent_reason
from weft.backends.vulkan.recording import Recording
from weft.backends.vulkan.transfer import Transfer
from weft.core.contract.backend import DeviceInfo
from weft.core.graph.layout import Array
from weft.core.host.parallel_copy import HELPER
from weft.core.session import shutdown
from weft.errors import ClosedError, DeviceLost, NoDevice, WeftError
from weft.kernels.dialect import Dialect
from weft.kernels.source import KernelSource

__all__ = ["VulkanDevice", "absent_reason", "enumerate_devices", "open_device", "validation_messages"]


class _Parts:
    """What a device owns; apart from the device, so that it is closed when the device is forgotten."""

    def __init__(self, context: Context, memory: Memory, pipelines: Pipelines, transfer: Transfer) -> None:
        self.context = context
        self.memory = memory
        self.pipelines = pipelines
        self.transfer = transfer
        self.recordings: set[Recording] = set()
        self.lock = threading.Lock()

    def close(self) -> None:
        """Destroy everything, users before what they use; in a forked process nothing of it is there."""
        if fork_guard.why_not():
            return
        self.context.idle()
        with self.lock:
            recordings, self.recordings = self.recordings, set()
        for recording in recordings:
            recording.destroy()
        self.context.count(live_recordings=-len(recordings))
        self.transfer.destroy()
        self.memory.destroy()
        try:
            self.pipelines.destroy()
        finally:
            self.context.destroy()


_open: weakref.WeakValueDictionary[int, VulkanDevice] = weakref.WeakValueDictionary()


@atexit.register
def _end() -> None:
    """Close what is open at the end of the process, sessions first; beside a daemon thread, which may use it, save."""
    shutdown.end()
    alone = all(t is threading.main_thread() or t.name == HELPER for t in threading.enumerate())
    for device in list(_open.values()):
        if alone:
            device.close()
        else:
            device.keep(at_the_end=True)


class VulkanDevice(GpuDevice):
    """An open Vulkan device; `open_device` makes one."""

    def __init__(self, info: DeviceInfo, parts: _Parts, dialect: Dialect) -> None:
        super().__init__(info, parts.context.physical.caps(), dialect, parts.context.stats)
        self._held = parts
        self.stores_to_host = True
        self._learn()
        self._finalizer = weakref.finalize(self, parts.close)
        self._finalizer.atexit = False
        _open[id(self)] = self

    def _learn(self) -> None:
        """Take over what pays with these memory types on such a device.

        One queue runs everything in order. Where the host writes to the device's memory there is nothing to send:
        on an H200 19 MB took 0.80 ms so and 0.95 ms in chunks. A device that is the CPU takes the cores that copy.
        """
        self.computes_on_uploads = self._held.memory.writes_to_device
        self.sends_ahead = not self.caps.software and not self._held.memory.writes_to_device
        self.computes_ahead = not self.caps.software

    def pretend(self, profile: DeviceProfile) -> None:
        """Have less than there is, memory types included."""
        super().pretend(profile)
        self._held.memory.pretend(profile, self.caps.max_allocation)
        self._learn()

    def _closed(self) -> ClosedError:
        return ClosedError(
            f"the Vulkan device {self.info.name} is closed", fix="open it anew, or create a new session"
        )

    @property
    def _parts(self) -> _Parts:
        if not self._finalizer.alive:
            raise self._closed()
        return self._held

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return a buffer of at least `nbytes`; OutOfMemory says how much was asked and what there is."""
        return self._parts.memory.allocate(nbytes, kind)

    def free(self, buffer: GpuBuffer) -> None:
        """Give a buffer back; its `host` array must not be used any more. A forked process has none of it."""
        if self._finalizer.alive and not fork_guard.why_not():  # closing freed it
            self._held.memory.free(buffer)

    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Copy a contiguous array's bytes into a DEVICE buffer; returns when `data` may be changed."""
        self._parts.transfer.upload(buffer, offset, data)

    def download(self, buffer: GpuBuffer, offset: int, out: Array) -> None:
        """Copy bytes of a DEVICE buffer into the contiguous array `out`; waits for all earlier work."""
        self._parts.transfer.download(buffer, offset, out)

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Kernel:
        """Return the pipeline with these constants, from memory or freshly built from its SPIR-V."""
        check_kernel(source, values, self.caps, self.info.name)
        pipelines = self._parts.pipelines
        kernel = pipelines.kernel(source, values)
        self.stats.live_kernels = pipelines.held
        return kernel

    def hold_kernels(self, count: int) -> None:
        """Hold so many pipelines beside those in use, those that were asked for last."""
        pipelines = self._parts.pipelines
        pipelines.hold(count)
        self.stats.live_kernels = pipelines.held

    def record(self, commands: Sequence[Command], profile: bool = False) -> Recording:
        """Return the commands as a command buffer that can be submitted many times."""
        parts = self._parts
        recording = Recording(parts.context, parts.memory, self.caps, commands, profile)
        with parts.lock:
            parts.recordings.add(recording)
        parts.context.count(live_recordings=1)
        return recording

    def submit(self, recording: Any) -> None:
        """Start a recording; returns before it is done."""
        if not self._finalizer.alive:
            raise self._closed()
        recording.submit()

    def wait(self, recording: Any) -> None:
        """Wait until the last submit of the recording is done; DeviceLost if the device gave up.

        In a forked process it would never be: nothing is waited for there.
        """
        if self._finalizer.alive and not fork_guard.why_not():  # closing waited for everything
            recording.wait()

    def release(self, recording: Any) -> None:
        """Free a recording; it is waited for if it still runs. A second release does nothing.

        Of a lost device nothing runs any more, so that its loss is no error here; of one whose process was forked
        nothing is there.
        """
        if fork_guard.why_not():
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
        """Return seconds from the start of one command to the end of another in the last run, if they are known."""
        if not self._finalizer.alive:
            raise self._closed()
        span: float | None = recording.span(first, last)
        return span

    def keep(self, *, at_the_end: bool = False) -> None:
        """Save the driver's cache of kernels if it has grown enough, or at the end at all; closing does so, too."""
        with suppress(WeftError):
            if self._finalizer.alive and not fork_guard.why_not():
                self._held.pipelines.save(at_the_end=at_the_end)

    def close(self) -> None:
        """Destroy everything the device holds, buffers and recordings included; closing twice is fine."""
        self._finalizer()


def enumerate_devices() -> list[DeviceInfo]:
    """Return the Vulkan devices, the best kind first; empty if Vulkan has no usable driver."""
    try:
        return [physical.info(index) for index, physical in enumerate(physical_devices())]
    except NoDevice:
        return []


def open_device(index: int, dialect: Dialect) -> VulkanDevice:
    """Open the device that `enumerate_devices` lists under `index`; NoDevice says what there is."""
    found = physical_devices()
    if not 0 <= index < len(found):
        listed = ", ".join(f"vulkan:{i} {p.name}" for i, p in enumerate(found)) or "there is none"
        raise NoDevice(
            f"there is no Vulkan device {index}",
            why=f"found: {listed}",
            fix="choose one of these" if found else NO_DRIVER_FIX,
        )
    context = Context(found[index])
    try:
        memory = Memory(context)
        parts = _Parts(context, memory, Pipelines(context), Transfer(context, memory))
    except Exception:
        context.destroy()
        raise
    return VulkanDevice(found[index].info(index), parts, dialect)
