"""The recording of a pipeline: uploads, launches by level, downloads; sealed once, submitted every run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.backends.gpu.device.device import (
    BarrierCommand,
    Binding,
    CopyCommand,
    GpuBuffer,
    GpuDevice,
    LaunchCommand,
    MemoryKind,
)
from weft.backends.gpu.device.device_lost import NotingLoss
from weft.backends.gpu.memory.heap import DeviceHeap
from weft.backends.gpu.memory.slots import Region, touched
from weft.backends.gpu.recording.batch_front import NO_FRONT, Front
from weft.backends.gpu.recording.chunked_upload import Job, Stream, chunks, worthwhile
from weft.backends.gpu.recording.launches import BoundLaunch
from weft.backends.gpu.recording.schedule import Access, schedule
from weft.core.contract.backend import StorageType
from weft.core.contract.error_context import is_error
from weft.core.contract.profile import ProfilingContext, Work
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor
from weft.errors import DeviceError

log = logging.getLogger("weft.gpu")

SPAN = "span"
"""The profile's counter of seconds from the start of a run's first launch to the end of its last."""


@dataclass
class PipelineRecording:
    """What one pipeline does on the device in every run."""

    heap: DeviceHeap
    profiling: ProfilingContext | None = None
    """Receives the device's times of each run; taking them makes a run slower."""
    launches: list[BoundLaunch] = field(default_factory=list)
    imports: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Pairs of tensors: one of another pipeline on the device, and the one to which every run copies it first."""
    work: dict[str, Work] = field(default_factory=dict)
    """Each node's work, for profiles. Keys are launch labels without the last part, which names the template."""
    tuned: int = 0
    """How many launches' kernels a tuning table chose."""
    front: Front = NO_FRONT
    """The nodes that run on parts of the batch while the rest is copied."""
    front_launches: dict[int, list[BoundLaunch]] = field(default_factory=dict)
    """The launches of the front, by part of the batch."""
    _staged: list[tuple[GpuBuffer, Tensor]] = field(default_factory=list)
    _lent: dict[str, tuple[GpuBuffer, Tensor]] = field(default_factory=dict)
    """Inputs and outputs in host memory that kernels access directly."""
    _streams: dict[str, Stream] = field(default_factory=dict)
    """Work that begins before the run is submitted, by the names of the inputs."""
    _handle: Any = None
    _labels: list[str] = field(default_factory=list)
    _launched: list[int] = field(default_factory=list)
    """The indices of the launches among the commands."""
    _running: bool = False
    _noting_loss: NotingLoss = field(init=False)

    def __post_init__(self) -> None:
        self._noting_loss = NotingLoss(self.device)

    @property
    def device(self) -> GpuDevice:
        """Return the device that runs it."""
        return self.heap.device

    @property
    def staging_bytes(self) -> int:
        """Return the bytes of staging buffers, and of host memory that kernels access."""
        return sum(buffer.nbytes for buffer, _ in (*self._lent.values(), *self._staged))

    @property
    def planned(self) -> list[BoundLaunch]:
        """Return all launches of a run, in the order of their submits."""
        front = (launch for part in sorted(self.front_launches) for launch in self.front_launches[part])
        return [*front, *self.launches]

    @property
    def handles(self) -> list[Any]:
        """Return the device's recordings of a run, in the order of their submits."""
        return [*(r for stream in self._streams.values() for r in stream.recordings), self._handle]

    def stage(self, tensor: Tensor, kind: MemoryKind) -> Array:
        """Return a staging buffer that every run copies to the tensor (UPLOAD) or from it (DOWNLOAD).

        A large input is uploaded in chunks if that is faster and no times are taken.
        """
        if kind is MemoryKind.UPLOAD and self.profiling is None and worthwhile(self.device, tensor.nbytes):
            kind = MemoryKind.STREAM
        buffer = self.heap.allocate(tensor.nbytes, kind)
        self._staged.append((buffer, tensor))
        return _mapped(buffer, tensor)

    def lend(self, tensor: Tensor, kind: MemoryKind, least: int) -> tuple[Array, GpuBuffer]:
        """Return the array and buffer of host memory, at least `least` bytes, in which kernels access the tensor."""
        buffer = self.heap.allocate(max(tensor.nbytes, least), kind)
        self._lent[tensor.name] = buffer, tensor
        return _mapped(buffer, tensor), buffer

    def seal(self) -> None:
        """Record everything, now that the tensors have addresses."""
        self._begin_streams()
        accesses = [_staging(b, t) for b, t in self._staged if b.kind is MemoryKind.UPLOAD]
        accesses += [_inside(source, target) for source, target in self.imports]
        begun = self.front.input in self._streams
        accesses += [access(launch) for launch in (self.launches if begun else self.planned)]
        accesses += [_staging(b, t) for b, t in self._staged if b.kind is MemoryKind.DOWNLOAD]
        commands = schedule(accesses)
        self._labels = ["" if isinstance(c, BarrierCommand) else c.label for c in commands]
        self._launched = [i for i, c in enumerate(commands) if isinstance(c, LaunchCommand) and 0 not in c.grid]
        self._handle = self.device.record(commands, profile=self.profiling is not None)

    def _begin_streams(self) -> None:
        """Record the work that overlaps the copy of inputs: uploads in chunks, and the front in parts."""
        inputs: dict[str, tuple[Array, list[Job]]] = {}
        for buffer, tensor in self._staged:
            if buffer.kind is MemoryKind.STREAM:
                copy = _staging(buffer, tensor).command
                assert isinstance(copy, CopyCommand)
                parts = self.front.parts if tensor.name == self.front.input else 1
                uploads = chunks(copy.source, copy.target, copy.label, parts)
                inputs[tensor.name] = _mapped(buffer, tensor), uploads
        if self.front_launches and self.front.input in self._lent:
            inputs[self.front.input] = _mapped(*self._lent[self.front.input]), []
        if self.front_launches and self.front.input in inputs:
            host, jobs = inputs[self.front.input]
            for part, launches in self.front_launches.items():
                end = host.nbytes * (part + 1) // self.front.parts
                jobs.append(Job(end, schedule([access(launch) for launch in launches])))
        self._streams = {name: Stream(self.device, host, jobs) for name, (host, jobs) in inputs.items()}

    def fill(self, tensor: Tensor, source: Array) -> bool:
        """Copy an array to the tensor's staging buffer and upload it in chunks; False if the run uploads it."""
        stream = self._streams.get(tensor.name)
        if stream is None:
            return False
        with self._noting_loss:
            stream.fill(source)
        return True

    def submit(self) -> None:
        """Start the run."""
        with self._noting_loss:
            try:
                for stream in self._streams.values():
                    stream.finish()
                self._running = True  # before the call: an interrupt during it must not leave the run without a wait
                self.device.submit(self._handle)
            except Exception as e:
                if is_error(e):
                    self._running = False
                    for stream in self._streams.values():
                        stream.break_off()
                raise

    def wait(self) -> None:
        """Wait for the last run, once: a lost device is not waited for again."""
        if not self._running:
            return
        try:
            with self._noting_loss:
                self.device.wait(self._handle)
        except Exception as e:
            if is_error(e):  # after an interrupt the run must still be waited for
                self._end()
            raise
        self._end()
        if self.profiling is not None:
            self._report(self.profiling)

    def _end(self) -> None:
        self._running = False
        for stream in self._streams.values():
            stream.end()

    def _report(self, profiling: ProfilingContext) -> None:
        for label, seconds in zip(self._labels, self.device.timings(self._handle), strict=False):
            if label:
                profiling.event(label, seconds, self.work.get(label.rpartition("/")[0]))
        if self._launched:
            span = self.device.span(self._handle, self._launched[0], self._launched[-1])
            if span is not None:
                profiling.counter(SPAN, span)

    def drop(self) -> None:
        """Free the recording and its staging buffers, also on a device that was lost during a run."""
        streams, self._streams = self._streams, {}
        try:
            self.wait()
            for stream in streams.values():
                stream.settle()
        except DeviceError as e:
            log.warning("a run was given up when its session was closed or resized: %s", e)
        if self._handle is not None:
            self.device.release(self._handle)
        for stream in streams.values():
            stream.release()
        for buffer, _ in (*self._lent.values(), *self._staged):
            self.heap.free(buffer)
        self._handle, self._staged, self.launches, self.imports, self.tuned = None, [], [], [], 0
        self._lent, self.front_launches, self.work = {}, {}, {}


def run_once(device: GpuDevice, accesses: Sequence[Access]) -> None:
    """Record, run and wait for some commands."""
    handle = device.record(schedule(accesses))
    try:
        device.submit(handle)
        device.wait(handle)
    finally:
        device.release(handle)


def access(launch: BoundLaunch) -> Access:
    """Return a launch as a command with the bytes that it reads and writes."""
    bindings = tuple(t.memory.binding() for t in (*launch.reads, *launch.writes))
    command = LaunchCommand(launch.kernel, bindings, launch.grid, launch.label)
    # No launch writes STATIC memory, so it cannot cause hazards.
    reads = tuple(touched(t) for t in launch.reads if t.memory.slot.storage is not StorageType.STATIC)
    return Access(command, reads, tuple(touched(t) for t in launch.writes))


def _inside(source: Tensor, target: Tensor) -> Access:
    a, b = touched(source), touched(target)
    return Access(CopyCommand(a, b, f"copy {source.name}"), (a,), (b,))


def _mapped(buffer: GpuBuffer, tensor: Tensor) -> Array:
    assert buffer.host is not None
    return buffer.host[: tensor.nbytes].view(tensor.dtype.numpy).reshape(tensor.shape)


def _staging(buffer: GpuBuffer, tensor: Tensor) -> Access:
    region: Region = tensor.memory
    host, device = Binding(buffer, 0, tensor.nbytes), Binding(region.slot.buffer, region.slot.offset, tensor.nbytes)
    if buffer.kind is not MemoryKind.DOWNLOAD:
        return Access(CopyCommand(host, device, f"upload {tensor.name}"), (host,), (device,))
    return Access(CopyCommand(device, host, f"download {tensor.name}"), (device,), (host,))
