"""Random small convolution networks on real devices against the references of their ops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings

from tests.helpers.nets import Net
from tests.helpers.random_nets import SLOW, assert_right, networks
from tests.helpers.run_length import examples
from weft.core.graph.graph import Graph

pytestmark = pytest.mark.usefixtures("sizes_are_pushed")

DEVICES = ("cpu", "opencl", "vulkan")


def without_bias(kind: str) -> Graph:
    """Return an op that could have a third input and has none, then a step with a constant."""
    net = Net()
    x = net.input("x", 2, 4, 3, 3) if kind == "Conv" else net.input("x", 2, 4)
    shape = (4, 4, 1, 1) if kind == "Conv" else (4, 4)
    first = net.add(kind, x, net.random(*shape))
    return net.finish(net.add("Mul", first, np.array([0.5], np.float32), name="y"))


def bias_of_rows() -> Graph:
    """Return a Gemm with as many rows as columns, whose C has a number for each row."""
    net = Net()
    return net.finish(net.add("Gemm", net.input("x", 4, 5), net.random(5, 4), net.random(4, 1), name="y"))


@pytest.mark.parametrize("device", DEVICES)
@given(graph=networks(10))
@settings(max_examples=examples(20), deadline=None, suppress_health_check=SLOW)
@example(graph=without_bias("Conv"))
@example(graph=without_bias("Gemm"))
@example(graph=without_bias("MatMul"))
@example(graph=bias_of_rows())
def test_a_random_network_is_right(device: str, graph: Graph) -> None:
    assert_right(graph, device, "high", 1e-4)


@pytest.mark.parametrize("device", DEVICES)
@given(graph=networks(8))
@settings(max_examples=6, deadline=None, suppress_health_check=SLOW)
def test_a_random_network_is_right_in_fp16(device: str, graph: Graph) -> None:
    assert_right(graph, device, "low", 0.05)
