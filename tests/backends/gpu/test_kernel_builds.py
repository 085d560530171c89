"""Kernels are built in threads: errors name their node, the first one counts, and nothing is left running."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import weft
from benchmarks.decoders import decoder
from tests.helpers.cards import CHAINED
from tests.helpers.nets import Net, branching, feeds
from tests.helpers.null_gpu import NullCreator, NullDevice, null_gpu
from tests.helpers.timed_gpu import GEMM, TimedDevice, convolutions, timed_gpu
from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.device import kernel_builds
from weft.core.contract.lowered import Lowered
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.interpreter import outputs
from weft.core.registry.backend_registry import registry
from weft.errors import CompileError
from weft.kernels.source import KernelSource


@pytest.fixture
def device() -> Iterator[TimedDevice]:
    with timed_gpu() as made:
        yield made


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_builds, "thread_count", lambda device: 4)


def test_kernels_of_different_nodes_are_built_at_the_same_time(
    device: TimedDevice, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3, timeout=60)
    compile_ = device.compile

    def meets(source: KernelSource, values: Mapping[str, int | float]) -> Any:
        if source.entry == GEMM:
            together.wait()  # broken, and so an error, unless three are here at once
        return compile_(source, values)

    monkeypatch.setattr(device, "compile", meets)
    with weft.load(convolutions((6, 7, 8)), device="null", fallback="error") as session:
        assert session.report.statistics["null"]["launches"] == 9


@pytest.mark.parametrize("count", [1, 4])
def test_of_several_failures_that_of_the_first_node_is_raised(
    device: TimedDevice, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(kernel_builds, "thread_count", lambda device: count)
    later_failed = threading.Event()

    def fails(source: KernelSource, values: Mapping[str, int | float]) -> Any:
        if source.entry != GEMM:
            return source.digest
        if values["IH"] == 8:
            later_failed.set()
        elif count > 1:
            assert later_failed.wait(60)
        raise CompileError(f"an image of {values['IH']} is refused")

    monkeypatch.setattr(device, "compile", fails)
    for _ in range(2):
        later_failed.clear()
        with pytest.raises(CompileError, match="an image of 7 is refused") as caught:
            weft.load(convolutions((7, 8)), device="null", fallback="error")
        assert caught.value.where == "node 'n_c0' (Conv + Relu) on null:0"
    assert device.stats.live_buffers == 0
    assert not any(t.name.startswith("weft-build") for t in threading.enumerate())


def test_a_failure_in_planning_waits_for_what_is_being_built(
    device: TimedDevice, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: object, *_: object, **__: object) -> None:
        raise CompileError("a later node is refused")

    monkeypatch.setattr("weft.ops.gpu.softmax.SoftmaxOnGpu.launches", refuses)
    with pytest.raises(CompileError, match="a later node is refused"):
        weft.load(branching(), device="null", fallback="error")
    assert not any(t.name.startswith("weft-build") for t in threading.enumerate())


def test_no_thread_is_left_after_a_load(device: TimedDevice, threads: None) -> None:
    with weft.load(convolutions(), device="null", fallback="error"):
        assert not any(t.name.startswith("weft-build") for t in threading.enumerate())


@pytest.mark.parametrize("name", ["opencl", "vulkan"])
def test_drivers_build_in_threads(name: str, threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.find(name).close()  # so that nothing is in memory
    monkeypatch.setenv("WEFT_CACHE", "0")
    graph = branching(10, 7)
    with weft.load(graph, device=name, fallback="error") as session:
        (y,) = session.run(feeds(graph))
    np.testing.assert_allclose(y, outputs(graph, feeds(graph))[0], rtol=1e-4, atol=1e-6)
    registry.find(name).close()


def test_kernels_are_built_while_the_network_is_planned(
    device: TimedDevice, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, built = threading.Event(), []
    compile_, on_lowered = device.compile, GpuBackend.onLowered

    def notes(source: KernelSource, values: Mapping[str, int | float]) -> Any:
        built.append(source.entry)
        begun.set()
        return compile_(source, values)

    def planned(backend: GpuBackend, lowered: Lowered) -> None:
        assert begun.wait(60), "no build had begun when the plan was done"
        on_lowered(backend, lowered)

    monkeypatch.setattr(device, "compile", notes)
    monkeypatch.setattr(GpuBackend, "onLowered", planned)
    with weft.load(convolutions((6, 7, 8)), device="null", fallback="error") as session:
        assert len(built) == session.report.statistics["null"]["launches"], "each launch asked for its kernel once"


def test_layers_that_are_alike_share_a_build(device: TimedDevice, threads: None) -> None:
    with weft.load(convolutions((7,) * 8), device="null", fallback="error") as session:
        assert session.report.statistics["null"]["launches"] > 8
    compiled = [kernel for kernel in device.compiled if kernel.entry == GEMM]
    assert len(compiled) == 1


def test_a_plan_is_given_up_as_soon_as_it_is_known_to_take_long(
    device: TimedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `wait="first"` a network of many layers is then planned with general kernels."""
    asked = list[int]()

    def to_be_built(kernels: Iterable[Any]) -> int:
        asked.append(count := len(list(kernels)))
        return count

    monkeypatch.setattr(device, "to_be_built", to_be_built)
    with weft.load(convolutions(tuple(range(6, 46))), device="null", fallback="error", wait="first") as session:
        before = sum(asked)
        assert any("4 kernels or more are to be built" in note for note in session.report.notes)
    assert 4 <= before < 12


def test_launches_that_share_one_are_a_kernel_to_be_built(device: TimedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def to_be_built(kernels: Iterable[Any]) -> int:
        asked.extend(source.entry for source, _ in kernels)
        return len(asked)

    monkeypatch.setattr(device, "to_be_built", to_be_built)
    monkeypatch.setattr(device, "caps", CHAINED)
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    net = Net()
    x = net.input("x", 1, 64, 14, 14)
    for size in (1, 3, 1, 3, 1):
        x = net.add("Relu", net.conv(x, 64, size, pads=[size // 2] * 4))
    with weft.load(net.finish(x), device="null", fallback="error", precision="low", wait="first") as session:
        assert asked == ["chain"] and session.report.final


def test_a_text_opens_a_device_once_for_general_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[NullDevice]()

    class Untested(NullDevice):
        def to_be_built(self, kernels: Iterable[Any]) -> int:
            return len(list(kernels))

    class Opening(NullCreator):
        def open(self, index: int) -> NullDevice:
            opened.append(Untested())
            return opened[-1]

    registry.insert("null", Opening())
    try:
        with weft.load(decoder("tiny", "genai"), "null", state=True, precision="low", wait="first") as session:
            session.run({"input_ids": np.ones((1, 5), np.int64), "attention_mask": np.ones((1, 5), np.int64)})
            assert len(opened) == 2
            session.wait_all()
    finally:
        registry.remove("null")


def test_nothing_is_divided_in_vain_on_a_device_that_was_never_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()
    optimize = GpuBackend.OptimizeSubgraph

    def counted(backend: GpuBackend, view: SubgraphView) -> OptimizationViews:
        asked.append(backend.runtime.general)
        return optimize(backend, view)

    monkeypatch.setattr(GpuBackend, "OptimizeSubgraph", counted)
    monkeypatch.setenv("WEFT_SELFTEST", "child")
    with null_gpu(), weft.load(decoder("tiny", "genai"), "null", state=True, precision="low", wait="first") as session:
        session.run({"input_ids": np.ones((1, 5), np.int64), "attention_mask": np.ones((1, 5), np.int64)})
        assert any("some kernels are to be tested" in note for note in session.report.notes)
        assert asked == [True]
