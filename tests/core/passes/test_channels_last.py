"""Networks whose channels are last, with convolutions between transposes: the transposes are left at the edges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.onnx_models import run_graph
from weft.core.graph.graph import Graph
from weft.frontends.builder.slots import Layer

SHAPE = (1, 6, 5, 4)
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class Builder:
    """Builds a network of images whose channels are last; `size` are the height, the width and the channels."""

    def __init__(self) -> None:
        self.net, self.size, self.count = weft.Network("net"), list(SHAPE[1:]), 0
        self.input = self.net.add_input("x", SHAPE)

    def constant(self, values: object, dtype: str = "int64") -> Layer:
        self.count += 1
        return self.net.add_constant(np.asarray(values, dtype), f"c{self.count}")

    def conv(self, x: Layer) -> Layer:
        channels = self.size[2]
        weights = np.random.default_rng(channels).standard_normal((channels, channels, 3, 3)) / 4
        y = self.net.add_layer("Transpose", x, perm=FIRST)
        y = self.net.add_layer("Conv", y, self.constant(weights, "float32"), pads=(1, 1, 1, 1))
        return self.net.add_layer("Transpose", y, perm=LAST)

    def relu(self, x: Layer) -> Layer:
        return self.net.add_layer("Relu", x)

    def scale(self, x: Layer) -> Layer:
        return self.net.add_layer("Mul", x, self.constant(np.arange(self.size[2]) / 3 - 0.5, "float32"))

    def pad(self, x: Layer) -> Layer:
        self.size = [self.size[0] + 1, self.size[1], self.size[2] + 2]
        return self.net.add_layer("Pad", x, self.constant([0, 1, 0, 0, 0, 0, 0, 2]))

    def cut(self, x: Layer) -> Layer:
        self.size = [self.size[0] - 1, self.size[1], self.size[2]]
        return self.net.add_layer("Slice", x, self.constant([1]), self.constant([99]), self.constant([1]))

    def skip(self, x: Layer) -> Layer:
        return self.net.add_layer("Add", self.conv(x), x)

    def both(self, x: Layer) -> Layer:
        y = self.conv(x)
        self.size[2] *= 2
        return self.net.add_layer("Concat", x, y, axis=-1)

    def squeeze(self, x: Layer) -> Layer:
        """A gate for each channel, as in squeeze-and-excitation."""
        mean = self.net.add_layer("ReduceMean", x, self.constant([1, 2]))
        return self.net.add_layer("Mul", x, self.net.add_layer("Sigmoid", mean))

    def quantise(self, x: Layer) -> Layer:
        scale, zero = self.constant(0.05, "float32"), self.constant(3, "int8")
        y = self.net.add_layer("QuantizeLinear", x, scale, zero)
        return self.net.add_layer("DequantizeLinear", y, scale, zero)


STEPS: dict[str, Callable[[Builder, Layer], Layer]] = {
    name: getattr(Builder, name)
    for name in ("conv", "relu", "scale", "pad", "cut", "skip", "both", "squeeze", "quantise")
}


def network(names: list[str]) -> Graph:
    """Return a network of steps between two convolutions."""
    builder = Builder()
    y = builder.conv(builder.input)
    for name in names:
        y = STEPS[name](builder, y)
    builder.net.add_output("y", builder.conv(y))
    return builder.net.to_graph()


def transposes(graph: Graph) -> list[str]:
    """Return what the transposes of a network read."""
    return [node.inputs[0] for node in graph.nodes if node.op.type == "Transpose"]


@pytest.mark.parametrize("name", STEPS)
def test_no_transpose_is_left_between_two_convolutions(name: str) -> None:
    optimized = weft.optimize(network([name]), "cpu").graph
    first, last = transposes(optimized)
    assert first == "x" and optimized.nodes[-1].inputs == (last,)


def settled(names: list[str]) -> bool:
    """Tell whether numbers are not rounded to integers: a tie would be another number."""
    return "quantise" not in names


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=5).filter(lambda names: names.count("both") < 3))
def test_steps_in_any_order_compute_the_same_with_transposes_at_the_edges(names: list[str]) -> None:
    graph = network(names)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    optimized = weft.optimize(graph, "cpu")
    assert len(transposes(optimized.graph)) == 2
    with weft.load(optimized) as session:
        (got,) = session.run(x)
    (want,) = run_graph(graph, {"x": x})
    close = np.isclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    assert close.all() if settled(names) else close.mean() > 0.9


def test_transposes_that_cancel_around_axes_of_size_one_become_a_reshape() -> None:
    """A convolution of one axis between two others, as Keras writes Conv1D."""
    net = weft.Network("net")
    x = net.add_input("x", (1, 8, 1, 5))
    y = net.add_layer("Transpose", x, perm=(0, 2, 3, 1))
    y = net.add_layer("Squeeze", y, net.add_constant(np.array([1]), "axes"))
    net.add_output("y", net.add_layer("Transpose", y, perm=(0, 2, 1)))
    optimized = weft.optimize(net, "cpu").graph
    assert [node.op.type for node in optimized.nodes] == ["Reshape"]
