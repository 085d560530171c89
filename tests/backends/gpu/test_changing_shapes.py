"""Kernels of a network that changes its shape: the first shape knows its sizes, later ones share what reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.cards import OPENCL
from tests.helpers.nets import Net, op
from tests.helpers.null_gpu import NullCreator, NullDevice
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device import kernel_builds
from weft.backends.gpu.tuning_tables.tuning_table import Entry
from weft.core.graph.graph import Graph
from weft.core.registry.backend_registry import registry
from weft.errors import CompileError
from weft.kernels.launch import FOR_SHAPES
from weft.kernels.source import KernelSource

SHAPES = [(2, 3, 16, 16), (3, 3, 20, 24), (2, 3, 24, 20), (4, 3, 20, 16), (3, 3, 16, 16)]


def network(channels: int = 3) -> Graph:
    """Return two branches of images of any number and size, and a pool of both."""
    net = Net()
    x, made = net.input("x", "n", channels, "h", "w"), 2 * channels
    filters = net.random(made, channels, 3, 3), net.random(made, made, 1, 1)
    stem = net.add("Relu", net.add("Conv", x, filters[0], pads=(1, 1, 1, 1)), name="stem")
    left = net.add("Conv", stem, filters[1], name="left")
    joined = net.add("Concat", left, stem, axis=1, name="joined")
    pool = op("AveragePool", kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    return net.finish(net.add(pool, joined, name="y"))


def image(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(shape[0]).standard_normal(shape, dtype=np.float32)


def compiles(device: str) -> int:
    creator: Any = registry.find(device)
    return int(creator.runtime(0).device.stats.compiles)


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_third_shape_needs_no_new_kernel_and_every_shape_is_right(device: str) -> None:
    graph = network()
    built = list[int]()
    with (
        weft.load(graph, device, shapes={"x": SHAPES[0]}, fallback="error") as session,
        weft.load(graph, "cpu", shapes={"x": SHAPES[0]}) as expected,
    ):
        for shape in (*SHAPES, SHAPES[0]):
            before = compiles(device)
            found = session.run(image(shape))[0]
            built.append(compiles(device) - before)
            np.testing.assert_allclose(found, expected.run(image(shape))[0], 1e-4, 1e-6)
    assert built[2:] == [0] * (len(SHAPES) - 1)


class Noting(NullDevice):
    """A device without kernels that notes which ones it was asked for, and in which form."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, frozenset[str] | None]] = []
        self.refuses = False
        """Whether no kernel can be built with constants that vary."""

    def compile(self, source: KernelSource, values: Mapping[str, int | float]) -> Any:
        self.asked.append((source.entry, None))
        return super().compile(source, values)

    def compile_for_shapes(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> Any:
        self.asked.append((source.entry, varying))
        if self.refuses:
            raise CompileError("a constant must be known")
        return super().compile_for_shapes(source, values, varying)


@pytest.fixture(params=[1, 4])
def noting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Noting]:
    monkeypatch.setattr(kernel_builds, "thread_count", lambda device: request.param)
    creator = NullCreator()
    creator.device = device = Noting()
    registry.insert("null", creator)
    yield device
    registry.remove("null")


def test_the_first_shape_gets_kernels_that_know_every_constant(noting: Noting) -> None:
    for shape in SHAPES[:2]:  # another session begins anew
        with weft.load(network(), "null", shapes={"x": shape}, fallback="error"):
            assert {varying for _, varying in noting.asked} == {None}


def test_each_launch_of_a_later_shape_is_built_in_one_form_with_what_varied(noting: Noting) -> None:
    with weft.load(network(), "null", shapes={"x": (1, 3, 16, 16)}, fallback="error") as session:
        launches = session.report.statistics["null"]["launches"]
        noting.asked.clear()
        session.resize({"x": (2, 3, 16, 16)})
        assert len(noting.asked) == launches
        (batch,) = {varying for entry, varying in noting.asked if entry == "conv_gemm"}
        assert batch is not None and "IH" not in batch and "PIXELS" in batch
        noting.asked.clear()
        session.resize({"x": (2, 3, 20, 16)})
        (every,) = {varying for entry, varying in noting.asked if entry == "conv_gemm"}
        assert every is not None and every > batch and "IH" in every and "IW" not in every


def test_a_shape_without_new_kernels_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second shape builds kernels that the third has, so only one more shape than that tells."""
    monkeypatch.setattr(kernel_builds, "thread_count", lambda device: 4)
    creator = registry.find("vulkan")
    assert isinstance(creator, GpuCreator)
    device = creator.runtime(0).device
    started = list[str]()

    def noted(threads: int, name: str) -> ThreadPoolExecutor:
        started.append(name)
        return ThreadPoolExecutor(threads, name)

    monkeypatch.setattr(kernel_builds, "ThreadPoolExecutor", noted)
    with weft.load(growing(), "vulkan", shapes={"past": (3, 8)}, fallback="error") as session:
        session.resize({"past": (4, 8)})
        begun, built = len(started), device.stats.compiles
        session.resize({"past": (5, 8)})
        session.resize({"past": (6, 8)})
        assert device.stats.compiles == built and begun == len(started) > 0


def growing() -> Graph:
    """Return a cache that a word is added to, as in a language model: the product that makes it knows no size."""
    net = Net()
    word = net.add("MatMul", net.input("x", 1, 8), net.random(8, 8), name="word")
    kept = net.add("Concat", net.input("past", "n", 8), word, axis=0, name="kept")
    return net.finish(net.add("Softmax", kept, axis=0), kept)


def test_what_a_new_shape_leaves_as_it_is_is_neither_planned_nor_built_again(noting: Noting) -> None:
    with weft.load(growing(), "null", shapes={"past": (3, 8)}, fallback="error") as session:

        def launches(node: str) -> list[object]:
            (part,) = session.optimized.parts
            assert part.lowered is not None
            return [id(launch) for launch in part.lowered.launches if launch.node == node]

        seen = {name: launches(name) for name in ("n_word", "n_kept")}
        noting.asked.clear()
        session.resize({"past": (4, 8)})
        assert launches("n_word") == seen["n_word"] and launches("n_kept") != seen["n_kept"]
        total = session.report.statistics["null"]["launches"]
        assert seen["n_word"] and len(noting.asked) == total - len(seen["n_word"])
        creator: Any = registry.find("null")
        creator.runtime(0).tuning.note("of another problem", Entry())  # a choice may be another from now on
        session.resize({"past": (5, 8)})
        assert launches("n_word") != seen["n_word"]


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_cache_that_grows_holds_what_was_computed(device: str) -> None:
    graph, past = growing(), np.zeros((2, 8), np.float32)
    with (
        weft.load(graph, device, fallback="error") as session,
        weft.load(graph, "cpu") as expected,
    ):
        for step in range(5):
            x = np.random.default_rng(step).standard_normal((1, 8), dtype=np.float32)
            found, wanted = (each.run({"x": x, "past": past}) for each in (session, expected))
            for mine, theirs in zip(found, wanted, strict=True):
                np.testing.assert_allclose(mine, theirs, 1e-5, 1e-6)
            past = wanted[1]


def test_where_such_kernels_are_wrong_each_shape_has_its_own(noting: Noting) -> None:
    noting.caps = replace(noting.caps, without=frozenset({FOR_SHAPES}))
    with weft.load(network(), "null", shapes={"x": SHAPES[0]}, fallback="error") as session:
        session.resize({"x": SHAPES[1]})
    assert {varying for _, varying in noting.asked} == {None}


def test_a_kernel_that_a_compiler_refuses_in_that_form_is_built_for_each_shape(noting: Noting) -> None:
    noting.refuses = True
    with weft.load(network(), "null", shapes={"x": SHAPES[0]}, fallback="error") as session:
        for shape in SHAPES[1:4]:
            noting.asked.clear()
            session.resize({"x": shape})
            assert {entry for entry, varying in noting.asked if varying is None} >= {"conv_gemm", "pool"}
        assert {varying for _, varying in noting.asked} == {None}, "each kernel is tried once"


def test_kernels_for_special_hardware_know_every_constant(noting: Noting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "off")
    noting.caps = OPENCL
    shapes = [{"x": (n, 32, 32, 32)} for n in (1, 2, 3)]
    with weft.load(network(32), "null", shapes=shapes[0], precision="low", fallback="error") as session:
        noting.asked.clear()
        for each in shapes[1:]:
            session.resize(each)
        assert {entry for entry, varying in noting.asked if varying is None} == {"conv_wgmma"}
        assert "conv_wgmma" not in {entry for entry, varying in noting.asked if varying is not None}


# -- values that have another name or layout at another shape --------------------------------------------------


def _last_of_all(net: Net) -> tuple[str, ...]:
    """Return all of a convolution's values and the last ones; of one place, these are all."""
    y = net.add("Conv", net.input("x", "n", 6, "t"), np.ones((4, 6, 1), np.float32), name="y")
    return y, net.add("Slice", y, np.array([-1]), np.array([99]), np.array([2]), name="last")


def _expanded(net: Net) -> tuple[str, ...]:
    x = net.add("Relu", net.input("x", "n", 6, "t"))
    return (net.add("Expand", x, np.array([2, 6, 3]), name="y"),)


@pytest.mark.alike
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
@pytest.mark.parametrize("made", [_last_of_all, _expanded])
def test_a_move_may_come_to_nothing_at_a_later_shape(made: Any, device: str) -> None:
    net = Net()
    graph = net.finish(*made(net))
    with weft.load(graph, device, fallback="error") as session:
        for shape in ((2, 6, 3), (1, 6, 1), (2, 6, 3), (1, 6, 3)):
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            with weft.load(graph, device, shapes={"x": shape}, fallback="error") as fresh:
                for got, want in zip(session.run(x), fresh.run(x), strict=True):
                    np.testing.assert_array_equal(got, want)


def test_fp16_outputs_are_right_where_kernels_are_built_on_threads() -> None:
    """As on GPUs: the narrowed network names its last value differently, and kernels end in another thread."""
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", 2, 3), name="y"))
    own = {"opencl": {"device_profile": "units=16"}}
    with weft.load(graph, "opencl", precision="low", backend_options=own, fallback="error") as session:
        x = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
        for _ in range(2):
            (got,) = session.run(x, outputs=session.output_arrays())
            assert got.dtype == np.float16
            np.testing.assert_array_equal(got, np.maximum(x, 0))
            np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0))
