"""Finds the kernels that a network needs on some device, without the device: compiles and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device.device import Command, DeviceCaps, GpuBuffer, GpuDevice, MemoryKind
from weft.backends.gpu.lowering.launches import builder as launch_builder
from weft.backends.vulkan.dialect import GlslDialect
from weft.core.contract.backend import BackendConfig, DeviceInfo, Precision
from weft.core.contract.profile import Profiled
from weft.core.graph.graph import Graph, bind
from weft.core.graph.layout import Array, Shape
from weft.core.placement.optimizer import OptimizerOptions, optimize
from weft.core.placement.prepare import PreparedNetwork, prepare_network
from weft.core.registry.backend_registry import registry
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.loader import opened
from weft.kernels.dialect import Dialect
from weft.kernels.source import KernelSource
from weft.kernels.template import KernelRequest, render


class PlanningDevice(GpuDevice):
    """A device with given capabilities that accepts every command and does nothing."""

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> GpuBuffer:
        """Return a buffer; host kinds have memory, DEVICE ones have none."""
        host = None if kind is MemoryKind.DEVICE else np.empty(nbytes, np.uint8)
        return GpuBuffer(nbytes, kind, None, host)

    def free(self, buffer: GpuBuffer) -> None:
        """Do nothing."""

    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Do nothing."""

    def download(self, buffer: GpuBuffer, offset: int, out: Array) -> None:
        """Do nothing."""

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Any:
        """Return the name of the kernel."""
        return source.entry

    def record(self, commands: Sequence[Command], profile: Profiled = False) -> Any:
        """Return the commands."""
        return list(commands)

    def submit(self, recording: Any) -> None:
        """Do nothing."""

    def wait(self, recording: Any) -> None:
        """Do nothing."""

    def release(self, recording: Any) -> None:
        """Do nothing."""


class PlanningCreator(GpuCreator):
    """Makes backends on a `PlanningDevice`; it is not registered."""

    id = "planning"

    def __init__(self, caps: DeviceCaps) -> None:
        super().__init__()
        self._caps = caps

    def open(self, index: int) -> GpuDevice:
        """Return the device."""
        return PlanningDevice(DeviceInfo(self.id, index, "planning"), self._caps, GlslDialect())


@contextmanager
def _recorded() -> Iterator[set[KernelRequest]]:
    """Yield the set of requests that are rendered in the block."""
    requests: set[KernelRequest] = set()

    def record(request: KernelRequest, dialect: Dialect) -> KernelSource:
        requests.add(request)
        return render(request, dialect)

    with patch.object(launch_builder, "render", record):
        yield requests


def plan_kernels(
    graph: Graph,
    caps: DeviceCaps,
    precision: Precision,
    shapes: Mapping[str, Shape] | None = None,
    *,
    prepared: PreparedNetwork | None = None,
) -> set[KernelRequest]:
    """Return the kernels that this network needs on a device with these capabilities, without packing its weights.

    `prepared` is the result of `prepare` at this precision, if it was called before. Raise UnsupportedOps if such a
    device does not run the whole network.
    """
    choices, config = [DeviceChoice(PlanningCreator(caps), 0)], BackendConfig(precision=precision)
    host = DeviceChoice(registry.find("cpu"), 0).device
    prepared = prepared or prepare(graph, precision, shapes)
    options = OptimizerOptions(config, fallback="error")
    with _recorded() as requests, opened(choices, config) as backends:
        optimize(prepared.graph, backends, options, host=host, prepared=prepared)
    return requests


def prepare(graph: Graph, precision: Precision, shapes: Mapping[str, Shape] | None = None) -> PreparedNetwork:
    """Return the network as every device gets it: bound to these shapes and rewritten."""
    return prepare_network(bind(graph, shapes or {}), precision)
