"""Quantised networks in integers: where values are stored so, which kernels run, and the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import feeds
from tests.helpers.quantised import SCALE, QuantisedNet, residual_network
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.ops.gpu.conv.integers.tiles import TILES, pack_words

INT8 = "conv_int8"


@contextmanager
def integers(api: str = "opencl", **caps: Any) -> Iterator[str]:
    """Register a device that is said to multiply four bytes at once."""
    with emulated_gpu(api, **{"dot8": True, "matrices": (), "subgroup_sizes": (), **caps}) as gpu:
        yield gpu.id


@pytest.fixture
def opencl() -> Iterator[str]:
    with integers() as device:
        yield device


def run(graph: Graph, device: str, fed: dict[str, Array], **options: Any) -> tuple[list[Array], list[str]]:
    """Return what a network computes, and the kernels that it launches."""
    with weft.load(graph, device, fallback="error", **options) as session:
        return session.run(fed), kernels(session) if device != "cpu" else []


def assert_steps(graph: Graph, device: str, step: float, **options: Any) -> list[str]:
    """Fail unless the results are within a step of the CPU's, and almost all are equal; return the kernels."""
    fed = {name: 2 * value for name, value in feeds(graph).items()}
    expected, _ = run(graph, "cpu", fed)
    actual, launched = run(graph, device, fed, **options)
    for mine, theirs in zip(actual, expected, strict=True):
        apart = np.abs(mine - theirs) / step
        assert apart.max(initial=0) < 1.01
        assert (apart < 0.1).mean() > 0.97
    return launched


@pytest.mark.parametrize("api", APIS)
def test_a_network_stays_in_integers(api: str) -> None:
    """Its image is quantised as it is packed, its result dequantised as it is stored; nothing is between."""
    with integers(api) as device:
        launched = assert_steps(residual_network(), device, 0.02)
    assert launched == ["relayout", INT8, "conv_depthwise_tile", INT8, "pool", INT8, "pool_global", INT8]


def layers(shape: tuple[int, ...], channels: int, kernel: int, stride: int, zero: int, pads: int) -> Graph:
    net = QuantisedNet(sum(shape))
    x = net.pair(net.input("x", *shape), zero=np.int8(zero))
    w = net.weights(channels, shape[1], kernel, kernel)
    y = net.add("Conv", x, w, net.random(channels), pads=(pads,) * 4, strides=(stride, stride))
    return net.finish(net.pair(y, 0.05, np.int8(5)))


def test_shapes(opencl: str) -> None:
    @settings(deadline=None)
    @given(
        shape=st.tuples(st.integers(1, 3), st.integers(1, 37), st.integers(3, 9), st.integers(3, 9)),
        channels=st.integers(1, 21), kernel=st.sampled_from([1, 3]), stride=st.integers(1, 2),
        zero=st.integers(-128, 127), pads=st.integers(0, 1),
    )
    def check(shape: tuple[int, ...], channels: int, kernel: int, stride: int, zero: int, pads: int) -> None:
        assert INT8 in assert_steps(layers(shape, channels, kernel, stride, zero, pads), opencl, 0.05)

    check()


def test_long_sums_are_shared_by_groups() -> None:
    with integers(software=False, compute_units=64) as device:
        graph = layers((1, 1200, 3, 3), 4, 3, 1, -7, 0)
        assert assert_steps(graph, device, 0.05)[1:3] == [INT8, "sum_parts"]


@pytest.mark.parametrize("precision", ["high", "low"])
def test_rows_of_a_sequence(opencl: str, precision: str) -> None:
    net = QuantisedNet()
    x = net.pair(net.input("x", 2, 3, 8))
    y = net.add("Add", net.add("MatMul", x, net.weights(8, 12, axis=1)), net.random(12))
    assert INT8 in assert_steps(net.finish(net.pair(y, 0.05)), opencl, 0.05, precision=precision)


@pytest.mark.parametrize("activation", ["int8", "uint8"])
@pytest.mark.parametrize("weights", ["int8", "uint8", "single"])
def test_types_of_integers(opencl: str, activation: str, weights: str) -> None:
    net = QuantisedNet()
    zero = np.int8(-9) if activation == "int8" else np.uint8(120)
    x = net.pair(net.input("x", 1, 6, 4, 4), zero=zero)
    kind, middle, count = (np.uint8, 128, 5) if weights == "uint8" else (np.int8, 0, 1 if weights == "single" else 5)
    q = net.rng.integers(middle - 120, middle + 121, (5, 6, 1, 1)).astype(kind)
    scale, zeros = np.full(count, 0.01, np.float32), np.full(count, middle, kind)
    parameters = [net.constant(v.reshape(()) if count == 1 else v) for v in (scale, zeros)]
    w = net.add("DequantizeLinear", net.constant(q), *parameters, axis=0)
    y = net.add("Conv", x, w)
    assert INT8 in assert_steps(net.finish(net.pair(y, 0.05, zero)), opencl, 0.05)


def test_ops_of_quantised_values(opencl: str) -> None:
    """They are taken apart into what other files write, and launch the same."""
    net = QuantisedNet()
    zero = net.constant(np.asarray(-7, np.int8))
    q = net.quantised(net.input("x", 1, 6, 5, 5))
    for channels, kernel in ((8, 3), (5, 1)):
        w = net.constant(net.rng.integers(-127, 128, (channels, net.shape(q)[1], kernel, kernel)).astype(np.int8))
        scales = net.constant(net.rng.uniform(0.002, 0.01, channels).astype(np.float32))
        zeros, bias = np.zeros(channels, np.int8), net.rng.integers(-99, 99, channels).astype(np.int32)
        q = net.add("QLinearConv", q, net.scale(), zero, w, scales, zeros, net.scale(), zero, bias)
    launched = assert_steps(net.finish(net.read(q)), opencl, float(SCALE))
    assert launched.count(INT8) == 2 and not {"conv_integer", "quantize"} & set(launched)


@pytest.mark.parametrize("why", ["zero point of weights", "weights of floats", "a pair that is left", "no instruction"])
def test_what_is_computed_in_floats(why: str) -> None:
    net = QuantisedNet()
    x = net.input("x", 1, 8, 5, 5)
    image = x if why == "a pair that is left" else net.pair(x)
    w = net.weights(6, 8, 1, 1)
    if why == "zero point of weights":
        q = net.constant(net.rng.integers(-128, 128, (6, 8, 1, 1)).astype(np.int8))
        w = net.add("DequantizeLinear", q, net.scale(0.01), net.constant(np.asarray(9, np.int8)))
    elif why == "weights of floats":
        w = net.constant(net.random(6, 8, 1, 1))
    graph = net.finish(net.pair(net.add("Conv", image, w), 0.05))
    with integers(dot8=why != "no instruction") as device:
        assert INT8 not in assert_steps(graph, device, 0.05)


def test_a_value_that_floats_are_read_of_is_stored_as_floats(opencl: str) -> None:
    net = QuantisedNet()
    x = net.layer(net.pair(net.input("x", 1, 8, 5, 5)), 8)
    y = net.add("Softmax", x, axis=1)
    graph = net.finish(net.layer(x, 4), y)
    assert INT8 in assert_steps(graph, opencl, 0.04)


@pytest.mark.parametrize("tile", TILES, ids=repr)
def test_a_tile_is_shared_out_evenly(tile: Any) -> None:
    items = tile.lx * tile.ly
    assert 8 * tile.rows % items == 0 and 8 * tile.columns % items == 0 and tile.items <= 256


def test_weights_lie_as_words_of_four_input_channels() -> None:
    weight = np.random.default_rng(0).integers(-127, 128, (5, 6, 2, 3)).astype(np.int8)
    words = pack_words(weight, 8, 4).view(np.int8).reshape(-1, 8, 4)
    assert words.shape[0] == 16
    found = words[:12].reshape(6, 2, 8, 4)
    np.testing.assert_array_equal(found[:, 0, :5], weight[:, :4].reshape(5, 4, 6).transpose(2, 0, 1))
    np.testing.assert_array_equal(found[:, 1, :5, :2], weight[:, 4:].reshape(5, 2, 6).transpose(2, 0, 1))
    assert np.count_nonzero(words) == np.count_nonzero(weight)


def test_values_of_more_than_eight_bits(opencl: str) -> None:
    """They are floats in memory."""
    net = QuantisedNet()
    x = net.pair(net.input("x", 1, 8, 5, 5), 0.01, np.int16(4))
    graph = net.finish(net.pair(net.add("Conv", x, net.weights(6, 8, 1, 1)), 0.01, np.int16(4)))
    assert INT8 not in assert_steps(graph, opencl, 0.01)
