"""Pairs of QuantizeLinear and DequantizeLinear: what becomes one node, the bits, and launches on GPUs."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import feeds, kinds
from tests.helpers.quantised import QuantisedNet, residual_network
from tests.helpers.rewrites import assert_identical
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.passes import run_passes
from weft.core.passes.quantisation import carry_quantisation

FAKE = "weft::FakeQuantize"


def rewritten(graph: Graph) -> list[str]:
    """Return the kinds of the nodes after the pass, which changes no bit, and nothing in its own result."""
    after = carry_quantisation(graph)
    assert_identical(graph, after)
    assert str(carry_quantisation(after)) == str(after)
    return kinds(after)


@pytest.mark.parametrize("zero", [np.int8(-3), np.uint8(130), np.int16(500), np.uint16(9)])
def test_a_pair_is_one_node(zero: np.generic) -> None:
    net = QuantisedNet()
    assert rewritten(net.finish(net.pair(net.input("x", 3, 5), zero=zero))) == [FAKE]


def test_numbers_that_are_quantised_already_stay() -> None:
    net = QuantisedNet()
    x = net.add("Relu", net.pair(net.input("x", 1, 4, 6, 6)))
    x = net.pair(net.add("MaxPool", x, kernel_shape=(2, 2)))
    x = net.pair(net.add("Reshape", x, np.array([4, -1])))
    assert rewritten(net.finish(net.add("Abs", x))) == [FAKE, "Relu", "MaxPool", "Reshape", "Abs"]


def test_moves_of_integers_are_moves_of_floats() -> None:
    net = QuantisedNet()
    q = net.add("MaxPool", net.quantised(net.input("x", 1, 4, 6, 6)), kernel_shape=(2, 2))
    assert rewritten(net.finish(net.read(net.add("Transpose", q, perm=(0, 2, 3, 1))))) == ["MaxPool", "Transpose", FAKE]


def test_one_node_serves_all_that_read_the_integers() -> None:
    net = QuantisedNet()
    q = net.quantised(net.input("x", 3, 5))
    assert rewritten(net.finish(net.add("Mul", net.read(q), net.add("Sigmoid", net.read(q))))) == [
        FAKE, "Sigmoid", "Mul",
    ]


def test_integers_that_leave_the_network_are_made() -> None:
    net = QuantisedNet()
    q = net.quantised(net.input("x", 3, 5))
    assert rewritten(net.finish(q, net.read(q))) == ["QuantizeLinear", FAKE]


@pytest.mark.parametrize("other", ["scale", "zero point", "type", "axis", "computed"])
def test_other_pairs_stay(other: str) -> None:
    net = QuantisedNet()
    x = net.input("x", 3, 4)
    q = net.quantised(x)
    if other == "scale":
        y = net.read(q, 0.07)
    elif other == "zero point":
        y = net.read(q, zero=np.int8(5))
    elif other == "type":
        scale = net.constant(np.asarray(0.05, np.float16))
        y = net.add("DequantizeLinear", q, scale, net.constant(np.asarray(-7, np.int8)))
    elif other == "axis":
        parameters = net.constant(np.full(4, 0.05, np.float32)), net.constant(np.full(4, -7, np.int8))
        y = net.add("DequantizeLinear", net.add("QuantizeLinear", x, *parameters), *parameters)
    else:
        scale = net.add("ReduceMax", net.add("Abs", x), keepdims=0)
        y = net.add("DequantizeLinear", net.add("QuantizeLinear", x, scale), scale)
    assert rewritten(net.finish(y))[-2:] == ["QuantizeLinear", "DequantizeLinear"]


def test_weights_remember_their_integers() -> None:
    net = QuantisedNet()
    x = net.input("x", 1, 8, 4, 4)
    graph = run_passes(net.finish(net.add("Conv", x, net.weights(6, 8, 1, 1))))
    (w,) = graph.constants
    grid = graph.specs[w].grid
    assert grid is not None and grid.dtype is DType.INT8 and len(grid.scale) == 6 and grid.axis == 0
    assert np.abs(grid.integers(graph.constants[w])).max() <= 127
    assert all(graph.specs[v].grid is None for v in graph.outputs)


def test_transposed_weights_remember_them_along_the_other_axis() -> None:
    net = QuantisedNet()
    w = net.add("Transpose", net.weights(6, 8), perm=(1, 0))
    graph = run_passes(net.finish(net.add("MatMul", net.input("x", 3, 8), w)))
    grids = [graph.specs[name].grid for name in graph.constants]
    assert [grid.axis for grid in grids if grid is not None] == [1]


def test_a_network_takes_a_launch_for_each_layer() -> None:
    """Its pairs take none: they are steps of the kernels before them."""
    assert not {"quantize", "dequantize"} & set(planned_kernels(residual_network()))


def test_a_saved_network_keeps_the_integers(tmp_path: object) -> None:
    graph = residual_network()
    fed = feeds(graph)
    with weft.load(graph, "cpu") as session:
        (expected,) = session.run(fed)
    saved = f"{tmp_path}/saved.weft"
    weft.optimize(graph, "cpu").save(saved)
    with weft.load(saved) as session:
        assert np.array_equal(session.run(fed)[0], expected)
