"""The OpenCL device: memory, transfers, kernels and replays through pyopencl."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial

import numpy as np
import pyopencl as cl

from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.device import Command, DeviceCaps, GpuBuffer, GpuDevice, MemoryKind
from weft.backends.gpu.device.limits import check_kernel
from weft.backends.gpu.device.profiles import DeviceProfile
from weft.backends.opencl import forked, native
from weft.backends.opencl.capabilities import caps_of
from weft.backends.opencl.cl_errors import failure, listed, words
from weft.backends.opencl.compilers import facts_of, process_count, shared
from weft.backends.opencl.discovery import absent_reason, describe, enumerate_devices, raw_device
from weft.backends.opencl.known_drivers import driver_of
from weft.backends.opencl.programs import OpenCLKernel, Programs
from weft.backends.opencl.queue_timer import QueueTimer
from weft.backends.opencl.queues import QueuePool
from weft.backends.opencl.recording import Recorder, Recording
from weft.core.contract.backend import DeviceInfo
from weft.core.contract.profile import Profiled
from weft.core.graph.layout import Array
from weft.errors import LESS_MEMORY, ClosedError, CompileError, DeviceError, OutOfMemory
from weft.kernels.dialect import Dialect
from weft.kernels.source import KernelSource

__all__ = ["OpenCLDevice", "absent_reason", "enumerate_devices", "open_device"]

_GRANULE = 16
_TOUCH_FROM = 1 << 20


def open_device(index: int, dialect: Dialect, *, few: bool = False) -> OpenCLDevice:
    """Open and return the OpenCL device with this index; NoDevice lists the present ones.

    For `few` kernels no processes are started: they take longer to come than the kernels.
    """
    device = raw_device(index)
    info = describe(device, index)
    forked.guard()
    try:
        return OpenCLDevice(info, caps_of(device), dialect, device, few=few)
    except cl.Error as e:
        raise failure(e.code, f"opencl:{index} cannot be opened", info.name) from e


class OpenCLDevice(GpuDevice):
    """An OpenCL device with one context. Each thread has one in-order queue, and a second queue for uploads.

    One thread's work and copies run in the order in which it sent them. Another thread must wait for a recording before
    it uses its results. An upload is finished when it returns; a download waits for the work of all threads.
    """

    def __init__(
        self, info: DeviceInfo, caps: DeviceCaps, dialect: Dialect, device: cl.Device, *, few: bool = False
    ) -> None:
        super().__init__(info, caps, dialect)
        self._few = few
        self.launches_overlap = False  # the queue is in order
        self.shares_kernels = True
        self.longest_chained = 12.0  # each launch costs the host 5 us
        self._learn()
        self._device = device
        self._context = cl.Context([device])
        self._queues = QueuePool(self._context, device)
        self._native = native.load(device)
        self._lock = threading.Lock()
        self._profile_lock = threading.Lock()
        self._profile_queue: cl.CommandQueue | None = None
        self._timer: QueueTimer | None = None
        self._buffers: set[GpuBuffer] = set()
        self._recordings: set[Recording] = set()
        self._closed = False
        self._device_bytes = 0
        self._where = f"opencl:{info.index} ({info.name})"
        processes = process_count() if driver_of(device).compiles_one_at_a_time else 0
        self.compilers = shared(facts_of(info), processes)
        self.programs = Programs(self._context, device, self.compilers)
        self.reads_all_sizes = self.programs.all_late

    def _learn(self) -> None:
        """Set what pays on such a device: on a CPU, overlap takes cores from the copies."""
        self.uploads_directly = self.divides = True
        self.sends_ahead = self.computes_ahead = not self.caps.software

    def pretend(self, profile: DeviceProfile) -> None:
        """Pretend to have less than the device has."""
        super().pretend(profile)
        self._learn()

    # -- memory ----------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return a buffer of `nbytes`; host kinds are pinned and stay mapped until they are freed."""
        self._need_open()
        size = _rounded(nbytes)
        self._need_room(nbytes, size, kind)
        try:
            if kind is MemoryKind.DEVICE:
                buffer = GpuBuffer(nbytes, kind, self._device_memory(size))
            else:
                handle, host = self._host_memory(size)
                buffer = GpuBuffer(nbytes, kind, handle, host[:nbytes])
        except cl.Error as e:
            raise self._no_memory(nbytes, words(e.code)) from e
        except MemoryError as e:
            raise self._no_memory(nbytes, "the host has no memory left") from e
        with self._lock:
            self._buffers.add(buffer)
            self.stats.allocations += 1
            self.stats.live_buffers += 1
            self.stats.live_bytes += nbytes
            self._device_bytes += size if kind is MemoryKind.DEVICE else 0
        return buffer

    def adopt(self, memory: Array) -> GpuBuffer | None:
        """Return a buffer whose `host` is the caller's memory, which the driver pins; None if it refuses."""
        self._need_open()
        if not fork_guard.keeps_pages():
            return None
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        try:
            handle = cl.Buffer(self._context, flags, hostbuf=memory)
            mapped = self._mapped(handle, memory.nbytes)
        except (cl.Error, MemoryError):
            return None
        if mapped.ctypes.data != memory.ctypes.data:
            return None
        buffer = GpuBuffer(memory.nbytes, MemoryKind.DOWNLOAD, mapped, memory, adopted=True)
        with self._lock:
            self._buffers.add(buffer)
            self.stats.allocations += 1
            self.stats.live_buffers += 1
            self.stats.live_bytes += memory.nbytes
        return buffer

    def free(self, buffer: GpuBuffer) -> None:
        """Release a buffer; a second time, or in a forked process, this does nothing.

        It only drops references: the driver frees the memory with the last one, so a numpy
        view of pinned memory or an unreleased recording never points to freed memory.
        """
        if fork_guard.is_forked():
            return
        with self._lock:
            if buffer not in self._buffers:
                return
            self._buffers.discard(buffer)
            self.stats.live_buffers -= 1
            self.stats.live_bytes -= buffer.nbytes
            self._device_bytes -= _rounded(buffer.nbytes) if buffer.kind is MemoryKind.DEVICE else 0
        if buffer.adopted:
            with suppress(cl.Error):  # of a lost device
                buffer.handle.base.release(self._queues.current()).wait()  # then the caller may free the memory
        buffer.handle = None
        buffer.host = None

    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Copy an array's bytes into a DEVICE buffer, after the calling thread's earlier work."""
        self._upload(buffer, offset, data, self._queues.current)

    def upload_beside(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Do the same on the queue for uploads, so that it does not wait for the thread's earlier work."""
        self._upload(buffer, offset, data, partial(self._queues.uploads, awaited=True))

    def download(self, buffer: GpuBuffer, offset: int, out: Array) -> None:
        """Copy bytes of a DEVICE buffer into the contiguous array `out`, after the work of all threads."""
        handle = self._checked(buffer, offset, out.nbytes)
        if not out.flags.c_contiguous:
            raise DeviceError("a download needs a contiguous array", where=self._where, fix="copy it afterwards")
        try:
            self._queues.finish()
            if out.nbytes:
                raw = out.reshape(-1).view(np.uint8)
                cl.enqueue_copy(self._queues.current(), raw, handle, src_offset=offset, is_blocking=True)
        except cl.Error as e:
            raise failure(e.code, f"a download of {out.nbytes} bytes failed", self._where, waiting=True) from e

    # -- kernels and recordings ------------------------------------------------------------------------

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> OpenCLKernel:
        """Return the kernel with these constants, from memory, from the disk cache, or newly built."""
        return self.compile_for_shapes(source, values, frozenset())

    def compile_for_shapes(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> OpenCLKernel:
        """Return the kernel with these constants, of which those that vary are arguments."""
        self._need_open()
        check_kernel(source, values, self.caps, self._where)
        kernel = self.programs.get(source, values, varying)
        with self._lock:
            self.stats.compiles, self.stats.live_kernels = self.programs.built, self.programs.held
        return kernel

    def to_be_built(self, kernels: Iterable[tuple[KernelSource, Mapping[str, int | float]]]) -> int:
        """Return how many kernels are neither built nor kept on disk."""
        return self.programs.missing(kernels)

    def compile_together(self, kernels: Iterable[tuple[KernelSource, Mapping[str, int | float]]]) -> object:
        """On a CPU, build what is missing of these kernels, several in a program."""
        self._need_open()
        held = self.programs.build_together(filter(self._is_within_limits, kernels))
        with self._lock:
            self.stats.compiles, self.stats.live_kernels = self.programs.built, self.programs.held
        return held

    def _is_within_limits(self, kernel: tuple[KernelSource, Mapping[str, int | float]]) -> bool:
        try:
            check_kernel(*kernel, self.caps, self._where)
        except CompileError:
            return False
        return True

    def hold_kernels(self, count: int) -> None:
        """Keep the `count` most recently used programs, besides those in use."""
        self.programs.hold(count)
        with self._lock:
            self.stats.live_kernels = self.programs.held

    def building(self) -> AbstractContextManager[None]:
        """Let child processes compile in parallel where the driver does not."""
        return self.compilers.hold(starts=not self._few)

    def expect_building(self) -> None:
        """Start the processes that compile, which takes a second or two."""
        self.compilers.expect()

    def record(self, commands: Sequence[Command], profile: Profiled = False) -> Recording:
        """Return the commands with everything bound; with `profile`, a submit takes timestamps and waits."""
        return self.record_divided(commands, (), profile)

    def record_divided(self, commands: Sequence[Command], cuts: Sequence[int], profile: Profiled = False) -> Recording:
        """Return the commands with everything bound; a submit flushes its queue before each command in `cuts`."""
        self._need_open()
        recorder = Recorder(self._context, self._where, self.caps, self._native)
        try:
            recording = recorder.record(commands, cuts, profile)
        except cl.Error as e:
            raise failure(e.code, "the commands cannot be recorded", self._where) from e
        recording.prepare(self._native)
        if recording.chained:
            recording.start = partial(self._queues.start_alone, start=recording.start)
        with self._lock:
            self._recordings.add(recording)
            self.stats.live_recordings += 1
        return recording

    def submit(self, recording: Recording) -> None:
        """Enqueue a recording on the calling thread's queue and start the device."""
        if recording.profile:
            self._submit_profiled(recording)
        else:
            self._start(recording, self._queues.current)

    def send(self, recording: Recording) -> None:
        """Enqueue uploads on the upload queue; the device computes meanwhile."""
        self._start(recording, self._queues.uploads)

    def wait(self, recording: Recording) -> None:
        """Wait until the last submit of the recording is done; do nothing in a forked process, where it never ends."""
        queue = recording.queue
        if queue is None or fork_guard.is_forked():
            return
        code = 0
        try:
            if self._native is not None:
                code = self._native.finish(queue.int_ptr)
            else:
                queue.finish()
        except cl.Error as e:
            code = e.code
        if code:
            what = f"the device gave up while it ran: {listed(recording.labels)}"
            raise failure(code, what, self._where, waiting=True)

    def queued_seconds(self, commands: Sequence[Command]) -> float | None:
        """Return the duration of commands enqueued as a whole; None on a CPU, whose event times are right."""
        if self.caps.software or self._native is None:
            return None
        recording = self.record(commands)
        try:
            with self._profile_lock:
                if self._timer is None:
                    self._timer = QueueTimer(self._context, self._device)
                self._queues.current().finish()
                return self._timer.seconds(recording.start)
        except cl.Error as e:
            what = f"the device gave up while it ran: {listed(recording.labels)}"
            raise failure(e.code, what, self._where, waiting=True) from e
        finally:
            self.release(recording)

    def release(self, recording: Recording) -> None:
        """Free a recording's kernels and sub-buffers; a second time, or in a forked process, this does nothing."""
        if fork_guard.is_forked():
            return
        with self._lock:
            if recording not in self._recordings:
                return
            self._recordings.discard(recording)
            self.stats.live_recordings -= 1
        recording.give_back()
        _empty(recording)

    def timings(self, recording: Recording) -> list[float]:
        """Return seconds per command of the last run of a recording made with `profile=True`; else nothing."""
        try:
            return recording.timings()
        except cl.Error as e:
            raise failure(e.code, "the driver gives no timestamps", self._where) from e

    def span(self, recording: Recording, first: int, last: int) -> float | None:
        """Return seconds from the start of one command to the end of another in the last run; None if unknown."""
        try:
            return recording.span(first, last)
        except cl.Error as e:
            raise failure(e.code, "the driver gives no timestamps", self._where) from e

    def close(self) -> None:
        """Wait for all work and free everything; later calls raise ClosedError. Does nothing in a forked process."""
        if fork_guard.is_forked():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            buffers, recordings = list(self._buffers), list(self._recordings)
        with suppress(cl.Error):  # close a lost device too
            self._queues.finish()
        for recording in recordings:
            self.release(recording)
        for buffer in buffers:
            self.free(buffer)
        self.programs.close()
        self.compilers.close()
        self._queues.close()
        self._profile_queue = self._timer = None

    # -- parts -----------------------------------------------------------------------------------------

    def _upload(self, buffer: GpuBuffer, offset: int, data: Array, choose: Callable[[], cl.CommandQueue]) -> None:
        handle = self._checked(buffer, offset, data.nbytes)
        if not data.nbytes:
            return
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        code = 0
        try:
            queue = choose()
            if self._native is not None:
                code = self._native.write_now(queue.int_ptr, handle.int_ptr, offset, raw.nbytes, raw.ctypes.data)
            else:
                cl.enqueue_copy(queue, handle, raw, dst_offset=offset, is_blocking=True)
                queue.finish()
        except cl.Error as e:
            code = e.code
        if code:
            raise failure(code, f"an upload of {data.nbytes} bytes failed", self._where, waiting=True)

    def _start(self, recording: Recording, choose: Callable[[], cl.CommandQueue]) -> None:
        if self._closed or recording not in self._recordings:
            raise self._gone()
        try:
            queue = recording.queue = choose()
        except cl.Error as e:
            raise failure(e.code, "the device takes no more work", self._where) from e
        try:
            recording.start(queue)
        except (DeviceError, cl.Error) as e:
            with suppress(cl.Error):
                queue.finish()  # earlier commands may use what the caller frees now
            if isinstance(e, cl.Error):
                raise failure(e.code, "the device takes no more work", self._where) from e
            raise
        with self._lock:
            self.stats.submits += 1 + len(recording.cuts)

    def _submit_profiled(self, recording: Recording) -> None:
        """Run on the profiling queue, between the calling thread's earlier and later work."""
        with self._profile_lock:
            if self._profile_queue is None:
                flags = cl.command_queue_properties.PROFILING_ENABLE
                self._profile_queue = cl.CommandQueue(self._context, self._device, flags)
            queue = self._profile_queue
            try:
                self._queues.current().finish()
            except cl.Error as e:
                raise failure(e.code, "earlier work of this thread failed", self._where, waiting=True) from e
            self._start(recording, lambda: queue)
            self.wait(recording)

    def _device_memory(self, size: int) -> cl.Buffer:
        handle = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)
        if size >= _TOUCH_FROM:
            # Drivers allocate at first use. Use it now, so that a lack of memory shows here and not in a run.
            cl.enqueue_copy(self._queues.current(), handle, np.zeros(_GRANULE, np.uint8), is_blocking=True)
        return handle

    def _host_memory(self, size: int) -> tuple[cl.Buffer, Array]:
        handle = cl.Buffer(self._context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, size)
        host = self._mapped(handle, size)
        host[:] = 0
        return handle, host

    def _mapped(self, handle: cl.Buffer, size: int) -> Array:
        """Return the bytes of a buffer in host memory; it stays mapped as long as the array lives."""
        queue, kind = self._queues.current(), np.dtype(np.uint8)
        mapped = cl.enqueue_map_buffer(queue, handle, cl.map_flags.WRITE, 0, (size,), kind, is_blocking=True)
        host: Array = mapped[0]
        return host

    @property
    def _total(self) -> int:
        """Return the bytes of the device's memory."""
        return int(self._device.global_mem_size)

    def _need_room(self, nbytes: int, size: int, kind: MemoryKind) -> None:
        most, total = self.caps.max_allocation, self._total
        with self._lock:
            held = self._device_bytes
        if nbytes < 0:
            raise DeviceError(f"{nbytes} bytes cannot be allocated", where=self._where, fix="ask for 0 or more")
        if size > most:
            raise self._no_memory(nbytes, f"one allocation has at most {most:,} bytes")
        if kind is MemoryKind.DEVICE and held + size > total:
            raise self._no_memory(nbytes, "that is more than what is left")

    def _no_memory(self, nbytes: int, reason: str) -> OutOfMemory:
        with self._lock:
            held = self._device_bytes
        total = self._total
        return OutOfMemory(
            f"{nbytes:,} bytes cannot be allocated",
            where=self._where,
            why=f"{reason}; {held:,} of the device's {total:,} bytes are in use by Weft",
            fix=f"{LESS_MEMORY}, or close other sessions",
        )

    def _checked(self, buffer: GpuBuffer, offset: int, nbytes: int) -> cl.Buffer:
        self._need_open()
        handle: cl.Buffer | None = buffer.handle
        if handle is None or buffer.kind is not MemoryKind.DEVICE:
            why = "it was freed" if handle is None else f"its kind is {buffer.kind.name}"
            fix = "allocate another" if handle is None else "read or write its `host` array"
            raise DeviceError("the buffer cannot be copied to or from", where=self._where, why=why, fix=fix)
        if offset < 0 or offset + nbytes > buffer.nbytes:
            why = f"bytes {offset} to {offset + nbytes} are outside of its {buffer.nbytes}"
            fix = "copy to and from bytes inside it"
            raise DeviceError("the buffer cannot be copied to or from", where=self._where, why=why, fix=fix)
        return handle

    def _need_open(self) -> None:
        if self._closed:
            raise self._gone()

    def _gone(self) -> ClosedError:
        what = "the device was closed" if self._closed else "the recording was released"
        fix = "open the device again" if self._closed else "record again"
        return ClosedError(what, where=self._where, fix=fix)


def _rounded(nbytes: int) -> int:
    """Return the size to request from the driver, never 0, which it refuses."""
    return max(-(-nbytes // _GRANULE), 1) * _GRANULE


def _empty(recording: Recording) -> None:
    def refuse(queue: cl.CommandQueue) -> None:
        raise ClosedError("the recording was released", where=recording.where, fix="record again")

    recording.start = refuse
    recording.steps, recording.pieces, recording.events, recording.queue = [], [], {}, None
