"""Weights that passes compute are stored as float16 at low precision: what that would cost stays as it was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.nets import Net, kinds
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.core.contract.backend import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.passes.precision import to_float16
from weft.core.placement.prepare import prepare_network

CHANNELS = 8
NORM = "BatchNormalization"


def of_size(net: Net, size: float, *shape: int) -> Array:
    """Return random numbers from a half of a size up to it, of both signs."""
    array = net.random(*shape)
    return np.asarray(np.copysign(0.5 + 0.5 * np.abs(array) / np.abs(array).max(), array) * size, np.float32)


def norm(net: Net, x: str, factor: float | Array, shift: float | Array = 0.0, name: str = "") -> str:
    """Add a batch norm that multiplies each channel by a factor, and adds a shift."""
    zero, one = (np.full(CHANNELS, value, np.float32) for value in (0, 1))
    scale, bias = (np.broadcast_to(np.float32(value), (CHANNELS,)) for value in (factor, shift))
    return net.add(NORM, x, scale, bias, zero, one, epsilon=0.0, name=name)


def scaled(weight: float, factor: float | Array, *, kind: str = "Conv", dtype: DType = DType.FLOAT32) -> Graph:
    """Return a convolution or a product with weights of a size, and a batch norm."""
    net = Net()
    if kind == "Gemm":
        weights, x = of_size(net, weight, 6, CHANNELS), net.input("x", 5, 6, dtype=dtype)
    else:
        weights, x = of_size(net, weight, CHANNELS, CHANNELS, 1, 1), net.input("x", 1, CHANNELS, 5, 4, dtype=dtype)
    return net.finish(norm(net, net.add(kind, x, weights.astype(dtype.numpy)), factor, name="y"))


def loss(graph: Graph, scale: float, device: str = "opencl:0") -> tuple[float, weft.OptimizedNetwork]:
    """Return the relative error of a network at low precision for inputs of a size, and what it became."""
    fed = {i: of_size(Net(), scale, *graph.specs[i].dims) for i in graph.inputs}
    (want,) = outputs(graph, fed)
    with weft.load(graph, device, precision="low", fallback="error") as session:
        (got,) = session.run(fed)
        return float(np.linalg.norm(got - want) / np.linalg.norm(want)), session.optimized


@pytest.mark.parametrize("device", ["cpu", "opencl:0", "vulkan"])
@pytest.mark.parametrize(
    ("weight", "factor", "scale"), [(300, 1e3, 1e-3), (1e-2, 1e-5, 1e4), (0.1, 1e-5, 1e3)], ids=["beyond", "0", "below"]
)
def test_a_norm_stays_whose_factors_make_weights_that_float16_does_not_hold(
    weight: float, factor: float, scale: float, device: str
) -> None:
    error, network = loss(scaled(weight, factor), scale, device)
    assert error < 1e-3
    assert "float16 would hold its new weights less exactly than the old ones" in "\n".join(network.why("n_y"))
    assert not any("constants" in note for note in network.notes)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm"])
@pytest.mark.parametrize(("weight", "factor"), [(300, 1e3), (0.1, 1e-5)])
def test_it_folds_where_weights_are_stored_as_they_are_made(weight: float, factor: float, kind: str) -> None:
    graph = scaled(weight, factor, kind=kind)
    found = {each: kinds(prepare_network(graph, each).graph) for each in (Precision.HIGH, Precision.LOW)}
    assert found == {Precision.HIGH: [kind], Precision.LOW: ["Cast", kind, NORM, "Cast"]}


def test_what_is_stored_as_float64_folds() -> None:
    net = Net()
    x = net.input("x", 1, CHANNELS, 5, 4, dtype=DType.FLOAT64)
    parameters = [np.full(CHANNELS, value, np.float64) for value in (1e9, 0, 0, 1)]
    conv = net.add("Conv", x, of_size(net, 300, CHANNELS, CHANNELS, 1, 1).astype(np.float64))
    graph = net.finish(net.add(NORM, conv, *parameters))
    assert kinds(prepare_network(graph, Precision.LOW).graph) == ["Conv"]


def test_channels_that_do_nothing_keep_no_norm() -> None:
    factor = np.where(np.arange(CHANNELS) % 2, 1e-8, 1.0).astype(np.float32)
    error, network = loss(scaled(0.1, factor), 1.0)
    assert error < 1e-3 and NORM not in str(network.graph)


def test_weights_that_lose_as_much_before_fold() -> None:
    """Those of 1e-6 are off by a hundredth, whatever they are multiplied by."""
    assert NORM in kinds(prepare_network(scaled(1e-6, 0.1), Precision.LOW).graph)
    assert NORM not in kinds(prepare_network(scaled(1e-6, 1.0), Precision.LOW).graph)
    assert NORM not in kinds(prepare_network(scaled(1e-6, 1e4), Precision.LOW).graph)


def test_shifts_beyond_float16_stay() -> None:
    """What a norm takes away again does not count."""
    net = Net()
    weights, bias = of_size(net, 1, CHANNELS, CHANNELS, 1, 1), np.full(CHANNELS, 1000, np.float32)
    conv = net.add("Conv", net.input("x", 1, CHANNELS, 5, 4), weights, bias)
    graph = net.finish(norm(net, net.add("Add", conv, np.full((CHANNELS, 1, 1), 200, np.float32)), 100, -5, name="y"))
    assert NORM in kinds(prepare_network(graph, Precision.LOW).graph)
    back = norm(net, conv, 100, -1e5, name="z")
    assert NORM not in kinds(prepare_network(net.finish(back), Precision.LOW).graph)


def test_of_two_norms_the_first_folds_alone() -> None:
    net = Net()
    conv = net.add("Conv", net.input("x", 1, CHANNELS, 5, 4), of_size(net, 1, CHANNELS, CHANNELS, 1, 1))
    graph = net.finish(norm(net, norm(net, conv, 2, 0.5, name="first"), 1e-6, 0.25, name="y"))
    error, network = loss(graph, 1.0)
    assert error < 1e-3
    assert "first" not in {n.name for n in network.graph.nodes}
    assert "less exactly" in "\n".join(network.why("n_y"))


def parallel(*weights: Sequence[float], bias: float = 0.0) -> Graph:
    """Return the sum of convolutions of one image, each of which has these weights."""
    net = Net()
    x = net.input("x", 1, 1, 5, 4)
    total = ""
    for each in weights:
        array = np.array(each, np.float32).reshape(-1, 1, 1, 1)
        conv = net.add("Conv", x, array, np.full(len(array), bias, np.float32))
        total = net.add("Add", total, conv) if total else conv
    return net.finish(net.add("Identity", total, name="y"))


def test_convolutions_stay_two_whose_weights_are_beyond_float16_together() -> None:
    graph = parallel([40000, 300], [40000, 200])
    error, network = loss(graph, 1e-3)
    assert error < 1e-3 and kinds(network.graph).count("Conv") == 1
    assert "Fused" in kinds(network.graph)
    assert not network.notes


@pytest.mark.parametrize(
    ("graph", "convolutions"),
    [
        (parallel([3.0, 1e-8], [4.0, 2e-8]), 1),
        (parallel([1.0, 0.5], [-1.0, -0.5 + 2e-7]), 1),
        (parallel([1.0], [1.0], bias=30000), 1),
        (parallel([1.0], [1.0], bias=40000), 2),
        (parallel([65000.0], [65000.0]), 2),
    ],
    ids=["dead channels", "what is left of others", "biases", "biases beyond", "weights beyond"],
)
def test_the_sum_of_weights_may_lose_what_they_lose(graph: Graph, convolutions: int) -> None:
    assert kinds(prepare_network(graph, Precision.LOW).graph).count("Conv") == convolutions
    assert kinds(prepare_network(graph, Precision.HIGH).graph).count("Conv") == 1


@pytest.mark.parametrize(("scale", "factor", "shift", "folds"), [(2, 3, 1, 1), (300, 300, 1, 0), (2, 3, 7e4, 1)])
def test_the_scale_of_a_group_norm_stays_two_if_it_must(scale: float, factor: float, shift: float, folds: int) -> None:
    net = Net()
    parts = net.add("Reshape", net.input("x", 2, 6, 4, 3), np.array((2, 3, -1)))
    y = net.add("InstanceNormalization", parts, np.full(3, scale, np.float32), np.zeros(3, np.float32))
    y = net.add("Mul", net.add("Reshape", y, np.array((2, 6, 4, 3))), np.full((6, 1, 1), factor, np.float32))
    graph = net.finish(net.add("Add", y, np.full((6, 1, 1), shift, np.float32)))
    low, high = (kinds(prepare_network(graph, each).graph) for each in (Precision.LOW, Precision.HIGH))
    assert high == ["GroupNormalization"]
    assert ("Mul" in low) == (not folds) and ("Add" in low) == (not folds or shift > 65504)


@pytest.mark.parametrize("device", ["opencl:0", "vulkan"])
@pytest.mark.parametrize(("weight", "alpha", "scale"), [(300, 1e3, 1e-3), (0.1, 1e-5, 1e4)])
def test_the_factor_of_a_gemm_stays_apart_too(weight: float, alpha: float, scale: float, device: str) -> None:
    """A convolution, as which a product of so many rows is computed, would have it in its weights."""
    net = Net()
    product = net.add("Gemm", net.input("x", 40, 16), of_size(net, weight, 16, 12), alpha=alpha)
    error, _ = loss(net.finish(product), scale, device)
    assert error < 1e-3


@given(data=st.data())
@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW)
def test_no_fold_costs_more_than_float16_mostly_does(data: st.DataObject) -> None:
    net = Net(data.draw(st.integers(0, 99)))
    powers = st.floats(-9, 9)
    weight = net.random(CHANNELS, CHANNELS, 1, 1) * np.float32(10 ** data.draw(powers))
    factor = np.array([10 ** data.draw(powers) for _ in range(CHANNELS)], np.float32)
    conv = net.add("Conv", net.input("x", 1, CHANNELS, 1, 1), weight)
    prepared = prepare_network(net.finish(norm(net, conv, factor)), Precision.LOW).graph
    (node,) = (n for n in prepared.nodes if n.op.type == "Conv")
    if NORM in kinds(prepared):
        return

    def error(stored: Array, exact: Array) -> float:
        return float(np.linalg.norm(stored.astype(np.float64) - exact) / np.linalg.norm(exact))

    exact = weight.astype(np.float64) * factor.astype(np.float64)[:, None, None, None]
    allowed = max(2**-10, error(to_float16(weight), weight.astype(np.float64)))
    assert error(prepared.constants[node.inputs[1]], exact) <= allowed * (1 + 1e-6)
