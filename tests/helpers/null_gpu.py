"""A GPU device that runs no kernels: for plans, lifetimes and failures, without a compiler or a driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import Command, CopyCommand, DeviceCaps, GpuBuffer, GpuDevice, MemoryKind
from weft.backends.gpu.device.limits import check_kernel
from weft.backends.opencl.dialect import OpenCLDialect
from weft.core.contract.backend import DeviceInfo
from weft.core.contract.profile import Profiled
from weft.core.graph.layout import Array
from weft.core.registry.backend_registry import registry
from weft.errors import DeviceError, OutOfMemory
from weft.kernels.source import KernelSource

CAPS = DeviceCaps(fp16_storage=True, int8_storage=True, offset_alignment=64)


class NullDevice(GpuDevice):
    """Buffers are numpy arrays, copies happen, launches do nothing; memory and failures are as told."""

    def __init__(self, memory: int = 1 << 40) -> None:
        super().__init__(DeviceInfo("null", 0, "null"), CAPS, OpenCLDialect())
        self.memory = memory
        self.kernels: set[Any] = set()
        self.lost: Exception | None = None

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        if self.stats.live_bytes + nbytes > self.memory:
            raise OutOfMemory(
                f"{nbytes:,} bytes cannot be allocated",
                where="null:0",
                why=f"{self.stats.live_bytes:,} of {self.memory:,} bytes are in use",
            )
        data = np.zeros(nbytes, np.uint8)
        self.stats.allocations += 1
        self.stats.live_buffers += 1
        self.stats.live_bytes += nbytes
        return GpuBuffer(nbytes, kind, data, None if kind is MemoryKind.DEVICE else data)

    def free(self, buffer: GpuBuffer) -> None:
        assert buffer.handle is not None, "a buffer is freed twice"
        buffer.handle = buffer.host = None
        self.stats.live_buffers -= 1
        self.stats.live_bytes -= buffer.nbytes

    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        if buffer.handle is None:
            raise DeviceError("the buffer was freed", where="null:0")
        buffer.handle[offset : offset + data.nbytes] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def download(self, buffer: GpuBuffer, offset: int, out: Array) -> None:
        out.reshape(-1).view(np.uint8)[:] = buffer.handle[offset : offset + out.nbytes]

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Any:
        check_kernel(source, values, self.caps, self.info.name)
        self.kernels.add((source.digest, tuple(sorted(values.items()))))
        self.stats.compiles = len(self.kernels)
        return source.digest

    def compile_for_shapes(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> Any:
        check_kernel(source, values, self.caps, self.info.name)
        fixed = {name: value for name, value in values.items() if name not in varying}
        self.kernels.add((f"{source.digest} for shapes", tuple(sorted(fixed.items()))))
        self.stats.compiles = len(self.kernels)
        return source.digest

    def record(self, commands: Sequence[Command], profile: Profiled = False) -> Any:
        self.stats.live_recordings += 1
        return list(commands)

    def submit(self, recording: Any) -> None:
        self.stats.submits += 1
        for command in recording:
            if isinstance(command, CopyCommand):
                s, t = command.source, command.target
                t.buffer.handle[t.offset : t.offset + t.nbytes] = s.buffer.handle[s.offset : s.offset + s.nbytes]

    def wait(self, recording: Any) -> None:
        if self.lost is not None:
            raise self.lost

    def release(self, recording: Any) -> None:
        self.stats.live_recordings -= 1


class NullCreator(GpuCreator):
    """Makes GPU backends on a null device."""

    def __init__(self, memory: int = 1 << 40) -> None:
        super().__init__()
        self.device = NullDevice(memory)
        self.backends: list[GpuBackend] = []

    def devices(self) -> list[DeviceInfo]:
        return [self.device.info]

    def open(self, index: int) -> GpuDevice:
        return self.device


@contextmanager
def null_gpu(memory: int = 1 << 40) -> Iterator[NullDevice]:
    """Register a null device as "null" for the time of a test."""
    creator = NullCreator(memory)
    registry.insert("null", creator)
    try:
        yield creator.device
    finally:
        registry.remove("null")
