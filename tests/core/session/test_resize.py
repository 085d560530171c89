"""A resize keeps what is still right, and nothing else: constants that are folded from a shape change with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Outputs, registered
from tests.helpers.nets import Net, feeds
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import BackendInfo, Execution
from weft.core.graph.graph import Graph, bind
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Shape
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.errors import UnsupportedOps

IMAGE = (1, 4, 6, 6)


class Narrow(CpuBackend):
    """Takes at most two rows of its first op; notes what is closed."""

    alive = 0

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        type(self).alive += 1

    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        wide = op.type == "Relu" and outputs[0].shape[0] > 2
        return "at most two rows" if wide or op.type == "Exp" else None

    def close(self) -> None:
        type(self).alive -= 1
        super().close()


class Baked(Execution):
    """Computes with the constants that there were when it was made, whatever it is given later."""

    any_shape = True

    def __init__(self, inner: Execution, inputs: Inputs) -> None:
        self.inner = inner
        self.kept = [
            None if t is None or t.constant is None else Tensor.from_numpy(t.constant.copy(), t.layout) for t in inputs
        ]

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.inner.onResize(inputs, outputs)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.inner.onExecute([k or t for k, t in zip(self.kept, inputs, strict=True)], outputs)


class Baking(CpuBackend):
    """The CPU backend, with executions that bake their constants in."""

    made: list[str] = []

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        inner = super().onCreate(inputs, outputs, op)
        self.made.append(outputs[0].name)
        return Baked(inner, inputs) if inner else None


@pytest.fixture(autouse=True)
def acme() -> Iterator[None]:
    Baking.made = []
    with registered(Creator(Baking)):
        yield


def batch_size(net: Net, x: str) -> str:
    """Add what is the batch size of x, as a float of shape (1,)."""
    return net.add("Cast", net.add("Shape", x, start=0, end=1), to=weft.DType.FLOAT32)


def scaled() -> tuple[Graph, Shape]:
    """Return y = relu(x) * batch size."""
    net = Net()
    x = net.input("x", "N", 4, 6, 6)
    return net.finish(net.add("Mul", net.add("Relu", x, name="r"), batch_size(net, x), name="y")), IMAGE


def convolved() -> tuple[Graph, Shape]:
    """Return a convolution whose weights, and another whose bias, grow with the batch size; a third stays."""
    net = Net()
    x = net.input("x", "N", 4, 6, 6)
    n = batch_size(net, x)
    bias = net.add("Mul", net.constant(net.random(8)), n)
    weights = net.add("Mul", net.constant(net.random(8, 4, 3, 3)), n)
    a = net.add("Conv", x, weights, name="first")
    b = net.add("Conv", x, net.constant(net.random(8, 4, 3, 3)), bias, name="second")
    c = net.add("Conv", x, net.constant(net.random(8, 4, 3, 3)), name="third")
    return net.finish(net.add("Add", net.add("Add", a, b), c, name="y")), IMAGE


def multiplied() -> tuple[Graph, Shape]:
    """Return x times a matrix that grows with the batch size."""
    net = Net()
    x = net.input("x", "N", 8)
    matrix = net.add("Mul", net.constant(net.random(8, 5)), batch_size(net, x))
    return net.finish(net.add("MatMul", net.add("Tanh", x, name="t"), matrix, name="y")), (1, 8)


NETWORKS = {"a factor": scaled, "weights": convolved, "a matrix": multiplied}


@pytest.mark.covering
@pytest.mark.parametrize("memory", ["normal", "limit"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("device", ["acme", "cpu", "opencl", "vulkan"])
def test_constants_that_follow_from_a_shape_are_those_of_the_present_one(
    device: str, network: str, memory: str
) -> None:
    graph, shape = NETWORKS[network]()
    with weft.load(graph, device, fallback="error", memory=memory) as session:
        for batch in (2, 3, 3, 1, 2):
            bound = bind(graph, {"x": (batch, *shape[1:])})
            (y,) = session.run(feeds(bound, batch))
            np.testing.assert_allclose(y, outputs(bound, feeds(bound, batch))[0], rtol=1e-4, atol=1e-4)


def test_executions_are_made_anew_where_their_constants_changed_and_only_there() -> None:
    graph, _ = convolved()
    with weft.load(graph, "acme", fallback="error", shapes={"x": (2, 4, 6, 6)}) as session:
        every, Baking.made = set(Baking.made), []
        session.resize({"x": (3, 4, 6, 6)})
        assert "third" in every and set(Baking.made) == {"first", "second"}
        Baking.made = []
        session.resize({"x": (3, 4, 6, 6)})
        assert Baking.made == []


def test_parts_that_a_resize_leaves_without_nodes_are_closed() -> None:
    net = Net()
    x = net.input("x", "N", 3)
    graph = net.finish(net.add("Tanh", net.add("Exp", net.add("Relu", x, name="r"), name="e"), name="y"))
    with registered(Creator(Narrow), "narrow"):
        with weft.load(graph, "narrow", shapes={"x": (2, 3)}) as session:
            for rows, parts in ((2, 2), (3, 1), (4, 1), (1, 2), (5, 1)):
                session.resize({"x": (rows, 3)})
                assert session.report.subgraphs.count("narrow:0") == parts
                assert Narrow.alive == parts
        assert Narrow.alive == 0


def test_backends_that_were_only_asked_are_closed() -> None:
    net = Net()
    graph = net.finish(net.add("Exp", net.input("x", 2, 3), name="y"))
    with registered(Creator(Narrow), "narrow"):
        with weft.load(graph, "narrow") as session:
            assert session.report.subgraphs == ("cpu:0",) and Narrow.alive == 0
        with pytest.raises(UnsupportedOps):
            weft.load(graph, "narrow", fallback="error")
        assert Narrow.alive == 0, "nor is one left where nothing was loaded"
