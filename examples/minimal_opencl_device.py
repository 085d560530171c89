"""A device that runs Weft's kernels, in its smallest form: OpenCL through pyopencl, without any cunning.

Nine methods and a dialect are all that a device needs; then every op with a kernel runs on it. Weft's own
OpenCL device does the same and adds a disk cache, pinned memory, counters and a faster replay.
docs/add-a-backend.md runs a network on this one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyopencl as cl

import weft
from weft.extend import (
    Array,
    Command,
    CompileError,
    CopyCommand,
    DeviceCaps,
    DeviceLost,
    GpuBuffer,
    GpuCreator,
    GpuDevice,
    KernelSource,
    LaunchCommand,
    MemoryKind,
    OpenCLDialect,
    OutOfMemory,
    Profiled,
    raw_device,
)

# Some drivers' logs say that all went well, which pyopencl takes for a warning.
warnings.filterwarnings("ignore", category=cl.CompilerWarning)

LOCAL = ("LX", "LY", "LZ")
Kernel = tuple[cl.Program, str, tuple[int, ...], list[np.int32 | np.float32]]
"""Program, entry, local size, and the values of the arguments behind the buffers."""


@dataclass
class Recording:
    """Calls that a submit makes, what they must find alive, and the events of the last submit."""

    steps: list[Callable[[], cl.Event]]
    pieces: list[cl.Buffer]
    events: list[cl.Event] = field(default_factory=list)


class MinimalDevice(GpuDevice):
    """The first OpenCL device, with one in-order queue: each command sees what those before it wrote."""

    def __init__(self) -> None:
        device = raw_device(0)
        caps = DeviceCaps(
            max_local_items=device.max_work_group_size, local_memory=device.local_mem_size,
            max_buffer_range=device.max_mem_alloc_size, max_allocation=device.max_mem_alloc_size,
            offset_alignment=device.mem_base_addr_align // 8, fp16_storage=True, int8_storage=True,
        )
        super().__init__(weft.DeviceInfo("minimal", 0, device.name), caps, OpenCLDialect())
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        self.programs: dict[str, cl.Program] = {}

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return device memory, or host memory that runs copy from or to."""
        if kind is not MemoryKind.DEVICE:
            return GpuBuffer(nbytes, kind, None, np.zeros(nbytes, np.uint8))
        try:
            return GpuBuffer(nbytes, kind, cl.Buffer(self.context, cl.mem_flags.READ_WRITE, nbytes))
        except cl.Error as e:
            raise OutOfMemory(f"{nbytes:,} bytes cannot be allocated", where="minimal:0", why=str(e)) from e

    def free(self, buffer: GpuBuffer) -> None:
        """Drop the buffer; OpenCL frees it with the last reference."""
        buffer.handle = buffer.host = None

    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Copy an array to the device and wait, so that the caller may change it."""
        if data.nbytes:
            cl.enqueue_copy(self.queue, buffer.handle, data, dst_offset=offset, is_blocking=True)

    def download(self, buffer: GpuBuffer, offset: int, out: Array) -> None:
        """Copy from the device into an array, after everything that was enqueued before."""
        if out.nbytes:
            cl.enqueue_copy(self.queue, out, buffer.handle, src_offset=offset, is_blocking=True)

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Kernel:
        """Return the kernel: the local size goes in as macros, all other constants as arguments."""
        late = [(name, kind) for name, kind in source.constants if name not in LOCAL]
        text = "".join(f"#define {name} {values[name]}\n" for name in LOCAL)
        text += f"#define LATE_CONSTANTS {''.join(f', {kind} {name}' for name, kind in late)}\n{source.text}"
        if text not in self.programs:
            try:
                self.programs[text] = cl.Program(self.context, text).build()
            except cl.Error as e:
                raise CompileError(f"kernel {source.entry} does not compile", why=str(e)) from e
        numbers = [np.int32(values[n]) if kind == "int" else np.float32(values[n]) for n, kind in late]
        return self.programs[text], source.entry, tuple(int(values[name]) for name in LOCAL), numbers

    def record(self, commands: Sequence[Command], profile: Profiled = False) -> Recording:
        """Bind everything. An in-order queue needs no barriers, so those are left out."""
        steps, pieces = [], list[cl.Buffer]()
        for command in commands:
            if isinstance(command, LaunchCommand):
                steps.append(self._launch(command, pieces))
            elif isinstance(command, CopyCommand):
                steps.append(self._copy(command))
        return Recording(steps, pieces)

    def _launch(self, command: LaunchCommand, pieces: list[cl.Buffer]) -> Callable[[], cl.Event]:
        program, entry, local, numbers = command.kernel
        kernel = cl.Kernel(program, entry)
        bound = [
            b.buffer.handle if b.nbytes == b.buffer.nbytes else b.buffer.handle.get_sub_region(b.offset, b.nbytes)
            for b in command.bindings
        ]
        pieces += bound  # a kernel does not keep its arguments alive
        kernel.set_args(*bound, *numbers)
        items = tuple(groups * size for groups, size in zip(command.grid, local, strict=True))
        return lambda: cl.enqueue_nd_range_kernel(self.queue, kernel, items, local)

    def _copy(self, command: CopyCommand) -> Callable[[], cl.Event]:
        a, b = command.source, command.target
        x, y = a.buffer.handle, b.buffer.handle
        if a.buffer.host is not None:
            x = a.buffer.host[a.offset : a.offset + a.nbytes]
            return lambda: cl.enqueue_copy(self.queue, y, x, dst_offset=b.offset, is_blocking=False)
        if b.buffer.host is not None:
            y = b.buffer.host[b.offset : b.offset + b.nbytes]
            return lambda: cl.enqueue_copy(self.queue, y, x, src_offset=a.offset, is_blocking=False)
        n, at, to = a.nbytes, a.offset, b.offset
        return lambda: cl.enqueue_copy(self.queue, y, x, byte_count=n, src_offset=at, dst_offset=to)

    def submit(self, recording: Recording) -> None:
        """Enqueue all and return. pyopencl waits where the event of a copy is dropped: keep them."""
        recording.events = [step() for step in recording.steps]
        self.queue.flush()

    def wait(self, recording: Recording) -> None:
        """Wait until the queue is empty."""
        try:
            self.queue.finish()
        except cl.Error as e:
            raise DeviceLost("the device gave up", where="minimal:0", why=str(e)) from e

    def release(self, recording: Recording) -> None:
        """Drop what the recording holds."""
        recording.steps, recording.pieces, recording.events = [], [], []


class MinimalCreator(GpuCreator):
    """Opens the device when the first session needs it; all sessions share it."""

    id = "minimal"

    def open(self, index: int) -> GpuDevice:
        """Return the opened device."""
        return MinimalDevice()

