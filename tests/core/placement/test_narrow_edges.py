"""Inputs and outputs in fp16: which may be, and what becomes of the casts behind and before them."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph
from weft.core.placement.narrow_edges import narrowable, with_narrow_edges
from weft.core.placement.optimized_network import OptimizedNetwork

SHAPE = (2, 4, 3, 3)


def optimized(graph: Graph, device: str = "cpu") -> OptimizedNetwork:
    return weft.optimize(graph, device, precision="low", fallback="error")


def texts(network: OptimizedNetwork) -> list[str]:
    """Return the nodes of all parts: what they make, their ops, and what they read."""
    found = [n for part in network.parts for n in part.graph.nodes]
    ops = [
        " + ".join([n.op.base.type, *(s.op.type for s in n.op.steps)]) if isinstance(n.op, Fused) else n.op.type
        for n in found
    ]
    return [f"{n.outputs[0]} = {kind}({', '.join(n.inputs)})" for n, kind in zip(found, ops, strict=True)]


def softmax() -> Graph:
    net = Net()
    return net.finish(net.add("Softmax", net.add("MaxPool", net.input("x", *SHAPE), kernel_shape=(2, 2)), name="y"))


def test_casts_at_the_edges_go() -> None:
    network = optimized(softmax())
    assert narrowable(network) == {"x", "y"}
    assert texts(network)[0] == "x.float16 = Cast(x)" and texts(network)[-1] == "y = Cast(y.float16)"
    narrow = with_narrow_edges(network, frozenset("xy"))
    assert texts(narrow) == ["maxpool0 = MaxPool(x)", "y = Softmax(maxpool0)"]
    assert {narrow.graph.specs[v].dtype for v in narrow.graph.specs} == {DType.FLOAT16}
    assert texts(with_narrow_edges(network, {"y"})) == [
        "x.float16 = Cast(x)", "maxpool0 = MaxPool(x.float16)", "y = Softmax(maxpool0)",
    ]
    assert with_narrow_edges(network, ()) is network


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_cast_that_was_fused_goes_too(device: str) -> None:
    network = optimized(softmax(), device)
    assert texts(network)[-1] == "y = Softmax + Cast(maxpool0)"
    assert narrowable(network) == {"x", "y"}
    assert texts(with_narrow_edges(network, {"x", "y"})) == ["maxpool0 = MaxPool(x)", "y = Softmax(maxpool0)"]


def test_a_value_may_be_read_inside_and_be_several_outputs() -> None:
    net = Net()
    x = net.input("x", *SHAPE)
    y = net.add("Sigmoid", x, name="y")
    graph = net.finish(y, net.add("Identity", y, name="z"), net.add("Tanh", y, name="t"))
    network = optimized(graph)
    assert narrowable(network) >= {"x", "y", "t"}
    with weft.load(graph, "cpu", precision="low") as session:
        out = session.output_arrays()
        given = np.linspace(-3, 3, 72, dtype=np.float16).reshape(SHAPE)
        session.run(given, outputs=out)
    right = 1 / (1 + np.exp(-given.astype(np.float64)))
    for name, value in {"y": right, "z": right, "t": np.tanh(right)}.items():
        np.testing.assert_allclose(out[name], value, atol=2e-3)


def test_what_is_read_or_made_as_fp32_stays() -> None:
    net = Net()
    x, n = net.input("x", *SHAPE), net.input("n", *SHAPE, dtype=DType.INT32)
    # The sum of integers is no value of the network's floats; an input that is an output keeps its type.
    graph = net.finish(net.add("Relu", x, name="y"), x, net.add("Add", n, n, name="m"))
    assert narrowable(optimized(graph)) == {"y"}
    assert narrowable(weft.optimize(graph, "cpu")) == frozenset()


def test_parts_on_two_devices_agree_on_a_value() -> None:
    net = Net()
    a = net.add("Relu", net.input("x", *SHAPE), name="a")
    graph = net.finish(net.add("Tanh", a, name="y"), net.add("Exp", a, name="z"))
    hints = {"n_y": "opencl"}
    with weft.load(graph, ["cpu", "opencl"], precision="low", hints=hints) as session:
        assert len(session.report.subgraphs) > 1
        arrays, out = session.input_arrays(), session.output_arrays()
        assert {v.dtype for v in (arrays | out).values()} == {np.dtype(np.float16)}
        arrays["x"][...] = np.linspace(-3, 3, 72).reshape(SHAPE)
        session.run(arrays, outputs=out)
        right = np.maximum(arrays["x"].astype(np.float64), 0)
        np.testing.assert_allclose(out["y"], np.tanh(right), atol=2e-3)
        np.testing.assert_allclose(out["z"], np.exp(right), rtol=2e-3)
