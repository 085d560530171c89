"""Kernels of a network that changes its shape: the first shape knows its sizes, later ones share what reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from weft.core.graph.graph import Graph
from weft.core.host.background import Background
from weft.core.registry.backend_registry import registry
from weft.errors import CompileError
from weft.kernels.launch import FOR_SHAPES
from weft.kernels.source import KernelSource

SHAPES = [(2, 3, 16, 16), (3, 3, 20, 24), (2, 3, 24, 20), (4, 3, 20, 16), (3, 3, 16, 16)]


def network(channels: int = 3, sides: tuple[int | str, int | str] = ("h", "w")) -> Graph:
    """Return two branches of any number of images, and a pool of both; by default they are of any size, too."""
    net = Net()
    x, made = net.input("x", "n", channels, *sides), 2 * channels
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


def _quantized(net: Net, x: str, weights: tuple[int, ...], **how: Any) -> str:
    """Return a convolution of a value that is quantised before it, as exporters for mobile devices write them.

    No sum of integers times the scales lies in the middle of two numbers, which devices round to either of them.
    """
    scale, zero = np.array(0.02, np.float32), np.array(128, np.uint8)
    filters = np.random.default_rng(len(net.graph.nodes)).integers(-60, 60, weights).astype(np.int8)
    whole = net.add("QuantizeLinear", x, scale, zero)
    filter_scale, filter_zero = np.full(weights[0], np.pi / 1000, np.float32), np.zeros(weights[0], np.int8)
    made = net.add(
        op("QLinearConv", **how), whole, scale, zero, filters, filter_scale, filter_zero, scale, zero
    )
    return net.add("DequantizeLinear", made, scale, zero)


def classifier(quantized: bool) -> Graph:
    """Return a small CNN with a depthwise layer, pools and a dense head; batch and sizes are open."""
    net = Net()
    x = net.input("x", "n", 3, "h", "w")

    def layer(x: str, *weights: int, **how: Any) -> str:
        if quantized:
            return _quantized(net, x, weights, **how)
        return net.add("Relu", net.add(op("Conv", **how), x, net.random(*weights), net.random(weights[0])))

    same = {"pads": (1, 1, 1, 1)}
    y = layer(layer(x, 16, 3, 3, 3, strides=(2, 2), **same), 16, 1, 3, 3, group=16, **same)
    y = net.add(op("MaxPool", kernel_shape=(2, 2), strides=(2, 2)), layer(y, 32, 16, 1, 1))
    y = layer(y, 32, 1, 3, 3, group=32, strides=(2, 2), **same)
    flat = net.add(op("Flatten"), net.add("GlobalAveragePool", y))
    return net.finish(net.add("Gemm", flat, net.random(32, 10), net.random(10), name="y"))


def encoder() -> Graph:
    """Return a layer of a transformer; batch and length are open."""
    net = Net()
    x = net.input("x", "n", "t", 32)
    y = net.add(op("LayerNormalization", axis=-1), x, net.random(32), net.random(32))
    rows = (net.add("Reshape", net.add("MatMul", y, net.random(32, 32)), np.array([0, 0, 4, 8])) for _ in range(3))
    turns = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    heads = [net.add(op("Transpose", perm=perm), each) for perm, each in zip(turns, rows, strict=True)]
    weights = net.add(op("Softmax", axis=-1), net.add("MatMul", heads[0], heads[1]))
    joined = net.add(op("Transpose", perm=(0, 2, 1, 3)), net.add("MatMul", weights, heads[2]))
    y = net.add("Add", x, net.add("MatMul", net.add("Reshape", joined, np.array([0, 0, 32])), net.random(32, 32)))
    hidden = net.add("Relu", net.add("MatMul", y, net.random(32, 64)))
    y = net.add("Add", y, net.add("MatMul", hidden, net.random(64, 32)))
    mean = net.add(op("ReduceMean", keepdims=0), y, np.array([1]))
    return net.finish(net.add("MatMul", mean, net.random(32, 10), name="y"))


IMAGES = [
    (n, 3, h, w)
    for n, h, w in ((1, 32, 32), (2, 32, 32), (1, 64, 64), (3, 40, 56), (1, 96, 96), (4, 33, 65), (2, 128, 128),
                    (8, 64, 64), (1, 50, 50), (5, 80, 48), (16, 32, 32))
]
WORDS = [
    (n, t, 32)
    for n, t in ((1, 8), (2, 8), (1, 16), (3, 7), (1, 33), (4, 64), (1, 100), (8, 20), (2, 128), (5, 50))
]


@pytest.mark.parametrize(
    ("device", "graph", "shapes", "most"),
    [
        pytest.param("vulkan", classifier(False), IMAGES, 2, id="convolutions"),
        pytest.param("vulkan", classifier(True), IMAGES, 4, id="quantised", marks=pytest.mark.long),
        pytest.param("opencl", classifier(True), IMAGES, 2, id="quantised-opencl"),
        pytest.param("vulkan", encoder(), WORDS, 5, id="transformer"),
    ],
)
def test_shapes_after_the_second_hardly_need_a_kernel(
    device: str, graph: Graph, shapes: list[tuple[int, ...]], most: int
) -> None:
    """Some have two kernels: a batch of one has an axis less, and more rows may ask for another algorithm.

    Such a one is built twice if it comes only after the second shape. Here all constants of OpenCL's kernels are
    arguments anyway: what else differs by shape does so on Vulkan, too.
    """
    with (
        weft.load(graph, device, shapes={"x": shapes[0]}, fallback="error") as session,
        weft.load(graph, "cpu", shapes={"x": shapes[0]}) as expected,
    ):
        session.resize({"x": shapes[1]})
        before = compiles(device)
        for shape in shapes[2:]:
            found, wanted = session.run(image(shape))[0], expected.run(image(shape))[0]
            np.testing.assert_allclose(found, wanted, 1e-4, 1e-5 * np.abs(wanted).max())
        assert compiles(device) - before <= most


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


@pytest.mark.parametrize("sides", [("h", "w"), ("h", 16), (16, 16)])
def test_each_launch_of_a_later_shape_is_built_in_one_form_with_what_open_sizes_change(
    noting: Noting, sides: tuple[int | str, int | str]
) -> None:
    """The second shape may have another batch alone: what the other open dimensions change varies, too."""
    graph = network(sides=sides)
    with weft.load(graph, "null", shapes={"x": (1, 3, 16, 16)}, fallback="error") as session:
        launches = session.report.statistics["null"]["launches"]
        noting.asked.clear()
        session.resize({"x": (2, 3, 16, 16)})
        assert len(noting.asked) == launches
        (varying,) = {varying for entry, varying in noting.asked if entry == "conv_gemm"}
        assert varying is not None and {"PIXELS", "TILES"} <= varying and not {"KH", "C4", "SH"} & varying
        assert ("IH" in varying, "IW" in varying) == ("h" in sides, "w" in sides)


def test_a_table_that_is_too_short_for_twice_the_size_does_not_hide_what_varies(noting: Noting) -> None:
    """Half the size shows it: the second shape differs in nothing but its batch."""
    net = Net()
    x = net.input("x", "n", "t", 4)
    length = net.add("Slice", net.add("Shape", x), np.array([1]), np.array([2]))
    places = net.add("Slice", net.random(12, 4), np.array([0]), length, np.array([0]))
    graph = net.finish(net.add("Softmax", net.add("Add", x, places), axis=1, name="y"))
    with weft.load(graph, "null", shapes={"x": (1, 8, 4)}, fallback="error") as session:
        noting.asked.clear()
        session.resize({"x": (2, 8, 4)})
        (varying,) = {varying for entry, varying in noting.asked if entry == "softmax"}
        assert varying is not None and {"LINES", "LENGTH"} <= varying


def test_what_does_not_fit_at_twice_the_size_stays_on_the_device() -> None:
    """Only the sizes that were asked for decide where nodes run."""
    net = Net()
    x = net.input("x", "n", "t")
    graph = net.finish(net.add("Relu", net.add("Add", x, net.random(1)), name="y"))
    creator: Any = registry.find("vulkan")
    most = creator.runtime(0).device.caps.max_buffer_range // 4
    with weft.load(graph, "vulkan", shapes={"x": (8, 8)}, fallback="error") as session:
        session.resize({"x": (2, most // 3)})
        assert {*session.report.placement.values()} == {"vulkan"}
        session.resize({"x": (8, 9)})
        assert {*session.report.placement.values()} == {"vulkan"}


def test_a_shape_without_new_kernels_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second shape builds kernels that the third has, so only one more shape than that tells."""
    monkeypatch.setattr(kernel_builds, "thread_count", lambda device: 4)
    creator = registry.find("vulkan")
    assert isinstance(creator, GpuCreator)
    device = creator.runtime(0).device
    started = list[str]()

    def noted(threads: int, name: str, *more: Any) -> Background:
        started.append(name)
        return Background(threads, name, *more)

    monkeypatch.setattr(kernel_builds, "Background", noted)
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


# -- kernels for several sizes ---------------------------------------------------------------------------------


def _products(net: Net) -> tuple[str, ...]:
    """Return products of few rows: of constant weights in whole vectors or not, and of two computed matrices."""
    x, y = net.input("x", "b", "n", 12), net.input("y", "b", 12, 7)
    rows = net.add("Reshape", x, np.array([-1, 12]))
    bias = net.add("Slice", rows, np.array([0]), np.array([1]), np.array([1]))  # a number for each row
    odd = net.add("MatMul", net.add("MatMul", x, net.random(12, 9)), net.random(9, 5))
    return net.add("Gemm", rows, net.random(12, 6), bias), odd, net.add("MatMul", x, y)


def _lines(net: Net) -> tuple[str, ...]:
    """Return a normalization along an axis of any length, in which teams of items share lines."""
    return (net.add(op("Softmax", axis=-1), net.input("x", "n", "t")),)


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
@pytest.mark.parametrize(
    ("made", "shapes"),
    [
        (_products, [{"x": (b, n, 12), "y": (b, 12, 7)} for b, n in ((1, 1), (1, 3), (1, 2), (2, 2), (1, 4), (2, 4))]),
        (_lines, [{"x": shape} for shape in ((3, 20), (5, 100), (4, 300), (700, 36), (2, 1021), (900, 17))]),
    ],
)
def test_kernels_for_several_sizes_are_right(made: Any, shapes: list[dict[str, tuple[int, ...]]], device: str) -> None:
    net = Net()
    graph = net.finish(*made(net))
    with weft.load(graph, device, fallback="error") as session, weft.load(graph, "cpu") as expected:
        for shape in shapes:
            given = {name: image(each) for name, each in shape.items()}
            for found, wanted in zip(session.run(given), expected.run(given), strict=True):
                np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


Sizes = list[tuple[int, ...]]
ONE_PIXEL: dict[str, tuple[tuple[str, tuple[int, ...], dict[str, Any]], Sizes]] = {
    "transposed": (("ConvTranspose", (4, 4, 2, 2), {"strides": (2, 2)}), [(1, 8), (3, 8), (1, 8), (8, 1), (5, 5)]),
    "transposed, with a cut": (
        ("ConvTranspose", (4, 8, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}), [(1, 1), (1, 4), (4, 1), (3, 3)],
    ),
    "volumes": (
        ("Conv", (8, 4, 3, 1, 1), {"strides": (1, 2, 2), "pads": (1, 0, 0, 1, 0, 0)}),
        [(4, 1, 1), (4, 4, 4), (2, 1, 1)],
    ),
    "transposed volumes": (
        ("ConvTranspose", (4, 4, 2, 2, 2), {"strides": (2, 2, 2)}), [(1, 1, 4), (3, 1, 4), (3, 2, 4), (1, 1, 1)],
    ),
}
"""Along an axis with one pixel a window has a stride of 1, so weights are put in another order there."""


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
@pytest.mark.parametrize("case", ONE_PIXEL)
def test_weights_are_in_order_behind_a_size_of_one(case: str, device: str) -> None:
    (kind, weights, attributes), sizes = ONE_PIXEL[case]
    net = Net()
    axes = [f"axis{k}" for k in range(len(weights) - 2)]
    bias = net.random(weights[0 if kind == "Conv" else 1])
    x = net.input("x", 1, 4, *axes)
    graph = net.finish(net.add(op(kind, **attributes), x, net.random(*weights), bias, name="y"))
    with weft.load(graph, device, shapes={"x": (1, 4, *sizes[0])}, fallback="error") as session:
        for each in sizes:
            fed = image((1, 4, *each))
            with weft.load(graph, "cpu", shapes={"x": fed.shape}) as cpu:
                np.testing.assert_allclose(session.run(fed)[0], cpu.run(fed)[0], 1e-4, 1e-5)
