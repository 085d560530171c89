"""A GPU without kernels that tells whatever times, results and failures a test wants of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.helpers.nets import Net
from tests.helpers.null_gpu import CAPS, NullCreator, NullDevice
from weft.backends.gpu.device.device import Command, LaunchCommand
from weft.core.contract.backend import DeviceInfo
from weft.core.graph.graph import Graph
from weft.core.registry.backend_registry import registry
from weft.errors import CompileError, DeviceLost
from weft.kernels.source import KernelSource

GEMM = "conv_gemm"


@dataclass(frozen=True)
class FakeKernel:
    entry: str
    slices: int
    """LZ, by which the tests tell tiles apart."""


@dataclass(eq=False)
class Behaviour:
    """What the device does with the GEMM of so many slices."""

    microseconds: dict[int, float] = field(default_factory=lambda: {1: 100.0, 2: 60.0, 4: 80.0})
    wrong: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)
    deadly: set[int] = field(default_factory=set)
    cold: int = 0
    """How many submits take five times as long from now on, as if the clock were low."""


class TimedDevice(NullDevice):
    def __init__(self, driver: str = "1.0") -> None:
        super().__init__()
        self.info = DeviceInfo("null", 0, "Null GPU", driver)
        self.caps = replace(CAPS, max_local_items=256, local_memory=49152)
        self.does = Behaviour()
        self.ran: list[int] = []
        """The slices of every GEMM that was run, in order."""
        self.computed: list[tuple[int, int]] = []
        """The bytes of its output, by which the tests tell problems apart, and its slices."""
        self.compiled: list[FakeKernel] = []

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Any:
        kernel = FakeKernel(source.entry, int(values["LZ"]))
        if kernel.entry == GEMM and kernel.slices in self.does.broken:
            raise CompileError(f"{kernel.slices} slices are refused")
        super().compile(source, values)
        self.compiled.append(kernel)
        return kernel

    def compile_for_shapes(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> Any:
        return self.compile(source, values)

    def submit(self, recording: Any) -> None:
        super().submit(recording)
        self.does.cold -= 1
        for kernel, output in _gemms(recording):
            self.ran.append(kernel.slices)
            self.computed.append((output.nbytes, kernel.slices))
            value = 2.0 if kernel.slices in self.does.wrong else 1.0
            memory = output.buffer.handle[output.offset : output.offset + output.nbytes]
            memory.view(np.float32)[:] = value

    def wait(self, recording: Any) -> None:
        super().wait(recording)
        if any(kernel.slices in self.does.deadly for kernel, _ in _gemms(recording)):
            raise DeviceLost("the device stopped answering")

    def timings(self, recording: Any) -> list[float]:
        return [self._time(command) for command in recording]

    def _time(self, command: Command) -> float:
        if not isinstance(command, LaunchCommand) or command.kernel.entry != GEMM:
            return 0.0
        return self.does.microseconds[command.kernel.slices] * (5e-6 if self.does.cold >= 0 else 1e-6)


def _gemms(recording: Sequence[Command]) -> Iterator[tuple[FakeKernel, Any]]:
    for command in recording:
        if isinstance(command, LaunchCommand) and command.kernel.entry == GEMM:
            yield command.kernel, command.bindings[-1]


@contextmanager
def timed_gpu(driver: str = "1.0", name: str = "null") -> Iterator[TimedDevice]:
    """Register such a device under a name for the time of a test."""
    creator = NullCreator()
    device = TimedDevice(driver)
    creator.device = device
    registry.insert(name, creator)
    try:
        yield device
    finally:
        registry.remove(name)


def convolutions(sizes: Sequence[int] = (8,), relu: bool = True) -> Graph:
    """Return convolutions of 16 channels, one on each input of these sizes."""
    net = Net()
    made = []
    for k, size in enumerate(sizes):
        x = net.input(f"x{k}", 1, 16, size, size)
        conv = net.conv(x, 16, 3, pads=(1, 1, 1, 1), name=f"c{k}")
        made.append(net.add("Relu", conv, name=f"y{k}") if relu else conv)
    return net.finish(*made)
