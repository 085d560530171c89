"""Transposed convolutions as convolutions to sub-pixels: by value, wherever and with whatever they are stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.cards import OPENCL
from tests.helpers.conv_problems import conv_problem, take
from tests.helpers.convolutions import launched_in_halves
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.nets import Net, feeds
from tests.helpers.run_length import examples
from weft.backends.gpu.lowering.target import Target
from weft.backends.opencl.dialect import OpenCLDialect
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Layout
from weft.errors import CompileError, ModelError
from weft.kernels.chooser import Algorithm
from weft.kernels.source import Arg
from weft.kernels.template import KernelRequest, render
from weft.ops.gpu.conv.gemm.split_k import InParts
from weft.ops.gpu.conv.gemm.tiles import GemmTile, TiledConv
from weft.ops.gpu.conv.matrix.staged import MatrixConv, MatrixTile
from weft.ops.gpu.conv.matrix.unstaged import UnstagedConv, UnstagedTile
from weft.ops.gpu.conv.matrix.wgmma import WgmmaConv, WgmmaTile
from weft.ops.gpu.conv.transposed import subpixels as to_subpixels
from weft.ops.gpu.conv.transposed.subpixels import by_subpixel
from weft.ops.gpu.conv.winograd import WinogradConv, WinogradTile

MOVES = {"relayout", "pool", "elementwise"}
TOLERANCES = {"high": 1e-5, "low": 4e-3}


def network(
    inside: int, channels: int, kernel: int, stride: int, pad: int, size: tuple[int, int] = (5, 7), images: int = 2
) -> Graph:
    """Return a transposed convolution that is joined with another value.

    Its steps have one operand a channel and one of the result's shape, and what is there before the last one is a
    result, too.
    """
    net = Net(seed=3)
    x = net.pool(net.input("x", images, inside, *size))
    weight, bias = net.random(inside, channels, kernel, kernel), net.random(channels)
    made = net.add("ConvTranspose", x, weight, bias, strides=(stride,) * 2, pads=(pad,) * 4)
    steep = net.add("PRelu", made, net.random(channels, 1, 1))
    residual = net.input("residual", *net.shape(made))
    total = net.add("Add", steep, net.pool(residual), name="total")
    y = net.add("Sigmoid", total, name="y")
    return net.finish(net.add("Concat", net.add("Relu", residual), y, axis=1, name="joined"), total)


def check(graph: Graph, device: str, wanted: set[str], tolerance: float, **options: Any) -> None:
    """Fail unless a device computes what the CPU does, by these kernels beside those that move or need no other."""
    assert launched_in_halves(graph, device, tolerance, **options).keys() - MOVES == wanted


@pytest.mark.covering(2)
@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize("layout", [Layout.NC4HW4, Layout.NHWC4])
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "pad"), [(12, 2, 2, 0), (8, 4, 2, 1), (8, 3, 2, 1), (12, 5, 3, 2)]
)
def test_subpixels_are_stored_where_they_belong(
    device: str,
    layout: Layout,
    precision: str,
    channels: int,
    kernel: int,
    stride: int,
    pad: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Target, "packed_layout", layout)
    graph = network(10, channels, kernel, stride, pad)
    check(graph, device, {"conv_gemm"}, TOLERANCES[precision], precision=precision)


@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize(
    ("algorithm", "tile", "kernel", "wanted"),
    [
        (TiledConv(), InParts(GemmTile(2, 1, 8, 8, 4), 3), 4, ("conv_gemm", "sum_parts")),
        (
            WinogradConv(), WinogradTile(GemmTile(4, 1, 8, 8, 1)), 6,
            ("conv_winograd_input", "conv_winograd_gemm", "conv_winograd_output"),
        ),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_any_convolution_computes_them(
    device: str,
    algorithm: Algorithm[Any, Any, Any],
    tile: Any,
    kernel: int,
    wanted: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take(monkeypatch, algorithm, tile)
    check(network(24, 8, kernel, 2, 1), device, set(wanted), 2e-5)


# Sixteen bytes can be stored at once, or not; all sub-pixels have as many taps, or they take four convolutions.
@pytest.mark.parametrize(("channels", "taps"), [(16, 4), (12, 3)])
@pytest.mark.parametrize(
    ("algorithm", "tile", "kernel", "api"),
    [
        (WgmmaConv(), WgmmaTile(1, 16, 3), "conv_wgmma", "opencl"),
        (MatrixConv(), MatrixTile(2, 1, 2, 2), "conv_matrix", "opencl"),
        (UnstagedConv(), UnstagedTile(1, 1, 1, 4), "conv_unstaged", "vulkan"),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_matrix_units_compute_them(
    channels: int,
    taps: int,
    algorithm: Algorithm[Any, Any, Any],
    tile: Any,
    kernel: str,
    api: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take(monkeypatch, algorithm, tile)
    with emulated_gpu(api, channels_last=True, warpgroups=kernel == "conv_wgmma"):
        check(network(24, channels, taps, 2, 1), "emulated", {kernel}, TOLERANCES["low"], precision="low")


def test_what_would_be_mostly_zeros_keeps_its_kernel() -> None:
    net = Net()
    x = net.input("x", 1, 8, 6, 6)
    y = net.add("ConvTranspose", x, net.random(8, 4, 1, 1), strides=(2, 2))
    assert "conv_transpose" in planned_kernels(net.finish(y))


GEOMETRIES: list[tuple[int, int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (5, 7, (2, 2), (2, 2), {}),
    (3, 5, (4, 4), (2, 2), {"pads": (1, 1, 1, 1)}),
    (5, 3, (3, 4), (3, 2), {"output_padding": (2, 1)}),
    (6, 1, (3, 3), (1, 1), {"pads": (1, 0, 1, 2)}),
    (5, 7, (3, 3), (2, 2), {"pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
    (6, 3, (5, 4), (3, 3), {"pads": (2, 1, 1, 0)}),
    (5, 6, (5, 3), (2, 3), {"pads": (2, 0, 1, 2)}),
    (5, 3, (2, 3), (3, 2), {}),  # sub-pixels without taps
    (4, 3, (3, 3, 3), (2, 2, 2), {"pads": (1, 1, 1, 1, 1, 1)}),
    (6, 5, (3, 3), (2, 2), {"group": 2, "pads": (1, 1, 1, 1)}),
    (5, 3, (3, 3), (2, 2), {"dilations": (2, 1)}),
]
"""Channels in and out of a group, taps, strides and what else says where a transposed convolution puts its results."""


@pytest.mark.covering(2)
@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["image", "weight"])
@pytest.mark.parametrize(("inside", "channels", "taps", "strides", "options"), GEOMETRIES)
def test_what_is_not_finite_reaches_what_its_taps_reach(
    device: str,
    special: float,
    where: str,
    inside: int,
    channels: int,
    taps: tuple[int, ...],
    strides: tuple[int, ...],
    options: dict[str, Any],
) -> None:
    """Alone and with what is fused behind it: neither taps that do not exist nor the edges make a NaN of it."""
    net = Net(seed=4)
    x = net.input("x", 1, inside, *(5, 6, 4)[: len(taps)])
    weight = net.random(inside, channels, *taps)
    if where == "weight":
        weight[(inside - 1, 0, *[n - 1 for n in taps])] = special
    y = net.add("ConvTranspose", x, weight, strides=strides, name="y", **options)
    graph = net.finish(y, net.add("Relu", net.add("Add", y, net.random(net.shape(y)[1], *[1] * len(taps)))))
    (image,) = feeds(graph).values()
    if where == "image":
        image[(0, inside - 1, *(2, 3, 1)[: len(taps)])] = special
    with weft.load(graph, "cpu") as cpu, weft.load(graph, device, fallback="error") as session:
        for made, expected in zip(session.run(image), cpu.run(image), strict=True):
            np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", APIS)
@pytest.mark.parametrize("wrong", ["conv_subpixels", "conv_gemm"])
def test_where_a_kernel_is_wrong_the_other_one_runs(device: str, wrong: str) -> None:
    with emulated_gpu(device, without=frozenset({wrong})):
        check(network(10, 6, 4, 2, 1), "emulated", {"conv_transpose"}, 1e-5)


@pytest.mark.parametrize("channels", [1, 6, 7])
@pytest.mark.parametrize("device", APIS)
def test_channels_that_fill_no_block(device: str, channels: int) -> None:
    net = Net(seed=4)
    made = net.add("ConvTranspose", net.input("x", 2, 9, 4, 5), net.random(9, channels, 4, 4), strides=(2, 2))
    steep = net.add("PRelu", net.add("Exp", net.add("Neg", net.add("Abs", made))), net.random(channels, 1, 1))
    check(net.finish(net.add("Relu", steep, name="y"), made), device, {"conv_gemm"}, 1e-5)


def test_a_size_may_take_the_other_kernel_and_the_next_one_this() -> None:
    """What is cut off follows from the size: all that the taps reach, so that sub-pixels do not apply, or less."""
    net = Net(seed=6)
    x = net.input("x", 1, 8, "height", "width")
    y = net.add("ConvTranspose", x, net.random(8, 20, 4, 4), net.random(20), strides=(2, 2), output_shape=(16, 16))
    graph = net.finish(y)
    with weft.load(graph, "opencl", fallback="error") as session, weft.load(graph, "cpu") as right:
        ran = []
        for size in (11, 8, 11, 10):
            image = np.random.default_rng(size).standard_normal((1, 8, size, size)).astype(np.float32)
            (got,), (want,) = session.run(image), right.run(image)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
            ran.append("conv_gemm" in kernels(session))
    assert ran == [False, True, False, True]


def test_weights_are_put_in_order_when_they_are_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    times = []

    def counted(*given: Any) -> Any:
        times.append(given)
        return by_subpixel(*given)

    monkeypatch.setattr(to_subpixels, "by_subpixel", counted)
    net = Net(seed=7)
    x = net.input("x", 1, 8, "height", 6)
    graph = net.finish(net.add("ConvTranspose", x, net.random(8, 4, 2, 2), strides=(2, 2)))
    with weft.load(graph, "opencl", fallback="error") as session:
        for height in (5, 6, 7, 5):
            session.run(np.ones((1, 8, height, 6), np.float32))
    assert len(times) == 1


def test_other_sizes_do_not_look_at_weights_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(seed=8)
    weight = net.random(64, 32, 3, 3)  # of small ones nothing is kept
    x = net.input("x", 1, 64, "height", 6)
    graph = net.finish(net.add("ConvTranspose", x, weight, strides=(2, 2)))
    looked, plain = list[int](), np.isfinite

    def watched(value: Any, *given: Any, **more: Any) -> Any:
        looked.extend([1] if np.shape(value) == weight.shape else [])
        return plain(value, *given, **more)

    monkeypatch.setattr(np, "isfinite", watched)
    with weft.load(graph, "opencl", fallback="error") as session:
        for height in (5, 6, 7):
            session.run(np.ones((1, 64, height, 6), np.float32))
        assert "conv_gemm" in kernels(session)
    assert len(looked) == 1


def test_a_convolution_of_as_many_channels_is_another_problem_to_tuning() -> None:
    problem = conv_problem((1, 8, 6, 6), (64, 8, 1, 1), OPENCL)
    stored = replace(problem, subpixel_channels=16)
    for facts in (type(problem).facts_by_blocks, type(problem).facts_by_channels):
        assert facts(stored) == {**facts(problem), "subpixels": 16} != facts(problem)


def test_a_template_must_store_them() -> None:
    words: dict[str, str | int | bool | tuple[str, ...]]
    words = {"term": "v", "finish": "acc", "join": "{0} + {1}", "start": "0.0", "shifted": False, "short": True}
    words |= {"adjacent": 1, "ahead": 1}
    x, y = Arg("x", DType.FLOAT32, "linear"), Arg("y", DType.FLOAT32, "linear", written=True)
    request = KernelRequest("reduce", tuple(sorted(words.items())), (x, y), ("OUTPUTS",))
    assert "OUTPUTS" in render(request, OpenCLDialect()).text
    with pytest.raises(CompileError, match="it does not store y with `store4` or `store8`, which find its places"):
        render(replace(request, args=(x, replace(y, output_map="subpixels"))), OpenCLDialect())


AXIS = st.tuples(st.integers(1, 5), st.integers(1, 5), *[st.integers(0, 3)] * 3)
"""Taps, steps, what is cut off at both ends, and what is added behind."""


@given(st.lists(AXIS, min_size=1, max_size=3), st.integers(1, 6))
@settings(max_examples=examples(60), deadline=None)
def test_any_geometry_gives_what_the_reference_gives(
    axes: list[tuple[int, int, int, int, int]], channels: int
) -> None:
    kernel, strides, begin, end, more = zip(*axes, strict=True)
    assume(all(extra < stride for extra, stride in zip(more, strides, strict=True)))
    net = Net(seed=1)
    x = net.input("x", 1, 5, *[4 + a for a in range(len(axes))])
    weight = net.random(5, channels, *kernel)
    try:
        y = net.add("ConvTranspose", x, weight, strides=strides, pads=(*begin, *end), output_padding=more)
    except ModelError:  # nothing is left behind the pads
        assume(False)
    graph = net.finish(y)
    fed = feeds(graph)
    (want,) = weft.load(graph, device="cpu").run(fed)
    with weft.load(graph, device="opencl", fallback="error") as session:
        (got,) = session.run(fed)
        assert session.report.nodes_by_device.keys() == {"opencl"}
        assert {"conv_gemm", "conv_transpose"} & set(kernels(session))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
