"""Small networks built from ops, for tests; and their values by the ops' references, node by node."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft.ops  # noqa: F401  (registers the ops)
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.op import Op, find_op
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.constants import fold_constants


def op(kind: str, **attributes: object) -> Op:
    """Return an op by the name of its type."""
    found = find_op(kind)
    assert found is not None, f"there is no op {kind}"
    return found(**attributes)


class Net:
    """Collects the nodes of a graph; every value is known by its name."""

    def __init__(self, seed: int = 0) -> None:
        self.graph = Graph("net", [], [])
        self._known: dict[str, Array] = {}
        """The values of nodes that follow from constants and shapes."""
        self.rng = np.random.default_rng(seed)

    def input(self, name: str, *shape: int | str, dtype: DType = DType.FLOAT32) -> str:
        """Add an input."""
        self.graph.inputs.append(name)
        self.graph.specs[name] = TensorSpec(shape, dtype)
        return name

    def constant(self, value: Array, name: str = "c") -> str:
        """Add a constant."""
        name = self.graph.fresh_name(name)
        self.graph.constants[name] = value
        self.graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))
        return name

    def random(self, *shape: int, scale: float = 1.0) -> Array:
        """Return random numbers for weights."""
        return np.asarray(self.rng.standard_normal(shape) * scale, np.float32)

    def add(self, what: str | Op, *inputs: str | Array, name: str = "", outputs: int = 1, **attributes: object) -> str:
        """Add a node and return the name of its first output; arrays become constants."""
        made = op(what, **attributes) if isinstance(what, str) else what
        names = tuple(i if isinstance(i, str) else self.constant(i) for i in inputs)
        name = name or f"{made.type.lower()}{len(self.graph.nodes)}"
        out = tuple(name if k == 0 else f"{name}.{k}" for k in range(outputs))
        node = Node(f"n_{name}", made, names, out)
        self.graph.nodes.append(node)
        if not self.graph.symbols():
            self._infer(node)
        return name

    def _infer(self, node: Node) -> None:
        """Infer the specs of a node's outputs, and compute them if they follow from constants and shapes."""
        given = {i: self.graph.specs[i] for i in node.inputs if i}
        values = {i: value for i in given if (value := self._value(i)) is not None}
        alone = Graph("net", [i for i in given if i not in values], [o for o in node.outputs if o], [node])
        alone.specs, alone.constants = given, values
        folded = fold_constants(alone)
        self.graph.specs |= folded.specs
        self._known |= {o: folded.constants[o] for o in node.outputs if o in folded.constants}

    def _value(self, name: str) -> Any:
        constant = self.graph.constants.get(name)
        return self._known.get(name) if constant is None else constant

    def conv(self, x: str, channels: int, kernel: int = 1, *, bias: bool = True, name: str = "", **more: Any) -> str:
        """Add a convolution with random weights."""
        group = more.get("group", 1)
        inner = self.shape(x)[1] // group
        w = self.random(channels, inner, kernel, kernel, scale=(inner * kernel * kernel) ** -0.5)
        extra = [self.random(channels)] if bias else []
        return self.add("Conv", x, w, *extra, name=name, **more)

    def pool(self, x: str) -> str:
        """Add the maximum around each pixel, of the same size: GPUs read and store it in blocks of channels."""
        rank = len(self.shape(x)) - 2
        return self.add("MaxPool", x, kernel_shape=(3,) * rank, pads=(1,) * (2 * rank))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.graph.specs[name].dims

    def finish(self, *outputs: str) -> Graph:
        """Return the graph with these outputs."""
        self.graph.outputs = list(outputs)
        return self.graph


def feeds(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Return random arrays for the inputs of a graph."""
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for name in graph.inputs:
        spec = graph.specs[name]
        made[name] = np.asarray(rng.standard_normal(spec.dims)).astype(spec.dtype.numpy)
    return made


def assert_near(got: Array, expected: Array, tolerance: float) -> None:
    """Fail unless two arrays differ by less than a part of the largest finite number expected (of 1, if that is less).

    Infinities and NaN must stand at the same places.
    """
    scale = max(float(np.abs(expected[np.isfinite(expected)]).max(initial=0)), 1.0)
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * scale)


def halves(array: Array) -> Array:
    """Return numbers that fp16 holds exactly."""
    return array.astype(np.float16).astype(array.dtype)


def kinds(graph: Graph) -> list[str]:
    """Return the op types of the nodes, in order."""
    return [n.op.type for n in graph.nodes]


def branching(channels: int = 6, size: int = 5, batch: int = 1) -> Graph:
    """Return a network with a branch, a concat, a residual add and a softmax."""
    net = Net()
    x = net.input("x", batch, 3, size, size)
    stem = net.add("Relu", net.conv(x, channels, 3, pads=(1, 1, 1, 1), name="stem"), name="stem_relu")
    left = net.conv(x, channels, 1, name="left")
    right = net.conv(stem, channels, 3, pads=(1, 1, 1, 1), name="right")
    total = net.add("Add", left, right, name="total")
    both = net.add("Concat", stem, total, name="both", axis=1)
    pooled = net.add("GlobalAveragePool", both, name="pooled")
    flat = net.add("Flatten", pooled, name="flat")
    return net.finish(net.add("Softmax", flat, name="y"))


def chain(*types: str, n: int | str = 2) -> Graph:
    """Return a chain of nodes n_v0, n_v1 ... of these types, from the input x of n x 3."""
    net = Net()
    value = net.input("x", n, 3)
    for k, kind in enumerate(types):
        value = net.add(kind, value, name=f"v{k}")
    return net.finish(value)
