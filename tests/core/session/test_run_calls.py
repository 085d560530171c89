"""What a run costs in Python: on a GPU, where a part is one recording, as much for many nodes as for few (M3, M11)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import ClassVar

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, feeds
from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.execution import GpuExecution
from weft.backends.opencl.backend import OpenCLBackend
from weft.backends.vulkan.backend import VulkanBackend
from weft.backends.vulkan.recording import Recording
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.session.arguments import Given, Outputs

BACKENDS: dict[str, type[GpuBackend]] = {"opencl": OpenCLBackend, "vulkan": VulkanBackend}

MOST_CALLS = 90
"""Calls of a run with plain arrays: each takes some 0.1 us, and a small network 150 us in all."""
MORE_WITH_ARRAYS = 55
"""Calls that a run makes beside these where the caller gives arrays for the outputs, his own or the session's."""
MORE_WITH_BUFFERS = 110
"""The same where he gives buffers."""
MORE_WITH_NEW_BUFFERS = 200
"""The same where each run makes a buffer."""


def products(count: int) -> Graph:
    """Return a chain of products, which nothing fuses."""
    net = Net()
    x = net.input("x", 2, 16)
    for _ in range(count):
        x = net.add("MatMul", x, net.random(16, 16, scale=0.25))
    return net.finish(x)


def waits(frame: FrameType | None) -> bool:
    """Tell whether a function waits for the device; what it calls depends on whether the device is done by then."""
    while frame is not None and frame.f_code is not Recording.wait.__code__:
        frame = frame.f_back
    return frame is not None


def calls(session: weft.Session, given: Mapping[str, Given], into: Outputs | None = None) -> tuple[int, int]:
    """Return the calls of Python functions, and of built-in ones, that a run makes but to see if the device is done."""
    made = {"call": 0, "c_call": 0}

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event in made and not waits(frame.f_back if event == "call" else frame):
            made[event] += 1

    for _ in range(3):  # the first runs import and allocate
        session.run(given, outputs=into)
    gc.disable()  # what it frees may have to be told
    sys.setprofile(count)
    try:
        session.run(given, outputs=into)
    finally:
        sys.setprofile(None)
        gc.enable()
    return made["call"], made["c_call"]


@pytest.mark.parametrize("device", BACKENDS)
def test_M11_a_run_on_a_gpu_makes_as_many_calls_for_200_nodes_as_for_10(device: str) -> None:
    made = []
    for count in (10, 200):
        graph = products(count)
        with weft.load(graph, device, fallback="error") as session:
            assert session.report.nodes_by_device == {device: count}
            np.testing.assert_allclose(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0], 1e-3, 1e-3)
            made.append(calls(session, feeds(graph)))
    assert made[0] == made[1]
    assert sum(made[0]) <= MOST_CALLS


@pytest.mark.parametrize("device", BACKENDS)
def test_a_run_with_arrays_for_the_outputs_makes_few_calls_more(device: str) -> None:
    with weft.load(products(3), device, fallback="error") as session:
        (given,), mine = session.input_arrays().values(), [np.empty((2, 16), np.float32)]
        for into in (mine, session.output_arrays()):
            made = calls(session, {"x": given}, into)
            assert sum(made) <= MOST_CALLS + MORE_WITH_ARRAYS
        (output,) = session.outputs
        buffers: list[tuple[Outputs, int]] = [
            ([session.buffer(output)], MORE_WITH_BUFFERS), (weft.Buffer, MORE_WITH_NEW_BUFFERS)
        ]
        for results, more in buffers:
            assert sum(calls(session, {"x": session.buffer("x", given)}, results)) <= MOST_CALLS + more


class Told(GpuExecution):
    """Is recorded as others are, and notes that a run called it."""

    ran: ClassVar[list[str]] = []

    def onExecute(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Note the node."""
        Told.ran.append(outputs[0].name)


@pytest.fixture(params=BACKENDS)
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    backend, make = BACKENDS[request.param], BACKENDS[request.param].onCreate

    def onCreate(
        self: GpuBackend, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op
    ) -> weft.Execution | None:
        made = make(self, inputs, outputs, op)
        name = outputs[0].name
        if name == "first":
            return Told(op, self._shared, name)
        if made is not None and name == "third":
            vars(made)["onExecute"] = lambda *_: Told.ran.append(name)
        return made

    monkeypatch.setattr(backend, "onCreate", onCreate)
    Told.ran.clear()
    yield request.param
    Told.ran.clear()


def test_M11_whoever_has_an_onExecute_of_its_own_on_a_gpu_is_called_in_its_turn(told: str) -> None:
    net = Net()
    x = net.input("x", "N", 16)
    for name in ("first", "second", "third"):
        x = net.add("MatMul", x, net.random(16, 16, scale=0.25), name=name)
    graph = net.finish(x)
    with weft.load(graph, told, fallback="error") as session:
        for rows in (2, 3):
            given = {"x": np.ones((rows, 16), np.float32)}
            np.testing.assert_allclose(session.run(given)[0], outputs(graph, given)[0], 1e-4, 1e-4)
    assert Told.ran == ["first", "third", "first", "third"]
