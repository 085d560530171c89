"""Expands that element-wise nodes need not read: what they read instead, what stays, the numbers, and launches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.onnx_models import assert_right_for_open_sizes
from tests.helpers.rewrites import assert_same
from weft.core.graph.interpreter import outputs
from weft.core.passes.expands import broadcast_expands

X = (2, 6, 5, 3)


def expanded(net: Net, *dims: int) -> str:
    return net.add("Expand", net.input("s", *dims), np.array(X))


def _beside_an_input(net: Net, x: str) -> str:
    return net.add("Mul", x, expanded(net, 2, 6, 1, 1))


def _of_lower_rank(net: Net, x: str) -> str:
    return net.add("Sub", expanded(net, 5, 1), x)


def _of_a_scalar(net: Net, x: str) -> str:
    return net.add("Div", x, expanded(net))


def _twice(net: Net, x: str) -> str:
    once = net.add("Expand", net.input("s", 6, 1, 1), np.array((6, 5, 1)))
    return net.add("Add", x, net.add("Expand", once, np.array(X)))


def _three_operands(net: Net, x: str) -> str:
    return net.add("weft::CompareSelect", x, expanded(net, 6, 1, 1), x, x, comparison="Less")


READS = [_beside_an_input, _of_lower_rank, _of_a_scalar, _twice, _three_operands]


@pytest.mark.parametrize("build", READS)
def test_what_an_expand_reads_is_broadcast(build: Callable[[Net, str], str]) -> None:
    net = Net()
    x = net.input("x", *X)
    graph = net.finish(build(net, x), net.add("Sigmoid", x))
    after = broadcast_expands(graph)
    assert len(after.nodes) == 2 and "Expand" not in kinds(after)
    assert broadcast_expands(after) is after
    assert_same(graph, after, 0)


def test_readers_that_cannot_broadcast_keep_it() -> None:
    net = Net()
    x = net.input("x", *X)
    spread = expanded(net, 2, 6, 1, 1)
    ends = [net.add("Mul", x, spread), net.add("Sigmoid", x), net.add("MaxPool", spread, kernel_shape=(1, 1))]
    graph = net.finish(*ends)
    after = broadcast_expands(graph)
    assert sorted(kinds(after)) == ["Expand", "MaxPool", "Mul", "Sigmoid"]
    assert next(n for n in after.nodes if n.op.type == "Mul").inputs == ("x", "s")
    assert_same(graph, after, 0)


def _beside_nothing_of_its_shape(net: Net, x: str) -> str:
    return net.add("Mul", net.add("MaxPool", x, kernel_shape=(5, 3)), expanded(net, 2, 6, 1, 1))


def _beside_another_expand(net: Net, x: str) -> str:
    other = net.add("Expand", net.add("MaxPool", x, kernel_shape=(5, 3)), np.array(X))
    return net.add("Mul", other, expanded(net, 2, 6, 1, 1))


def _alone(net: Net, x: str) -> str:
    return net.add("Sigmoid", expanded(net, 2, 6, 1, 1))


def _beside_a_value_that_nothing_else_reads(net: Net, x: str) -> str:
    return net.add("Mul", net.conv(x, 6), expanded(net, 2, 6, 1, 1))


STAYS = [
    _beside_nothing_of_its_shape,
    _beside_another_expand,
    _alone,
    _beside_a_value_that_nothing_else_reads,
]


@pytest.mark.parametrize("build", STAYS)
def test_others_stay(build: Callable[[Net, str], str]) -> None:
    net = Net()
    x = net.input("x", *X)
    graph = net.finish(build(net, x), net.add("Sigmoid", x))
    assert broadcast_expands(graph) is graph


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_gate_is_not_stored_for_each_pixel(device: str) -> None:
    net = Net()
    x = net.conv(net.input("x", 1, 3, 9, 7), 8)
    gate = net.add("Sigmoid", net.conv(net.add("GlobalAveragePool", x), 8))
    spread = net.add("Expand", gate, np.array((1, 8, 9, 7)))
    graph = net.finish(net.conv(net.add("Mul", x, spread), 4))
    if device != "cpu":
        told = planned_kernels(graph)
        # The convolution behind multiplies by the gate as it loads; the last launch makes the output planar.
        assert len(told) == 5 and told.count("relayout") == 1
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision="high", fallback="error") as session:
        np.testing.assert_allclose(session.run(feeds(graph))[0], want, rtol=0, atol=2e-5)


GATED = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[n, rows, 8] x) => (float[n, rows, 8] y)
<int64[1] axes = {-1}>
{
  mean = ReduceMean(x, axes)
  gate = Sigmoid(mean)
  shape = Shape(x)
  spread = Expand(gate, shape)
  y = Mul(x, spread)
}
"""


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_model_of_open_sizes_computes_what_onnx_does(device: str) -> None:
    assert_right_for_open_sizes(onnx.parser.parse_model(GATED), device)
