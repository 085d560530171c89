"""Small networks made of whatever ops a backend takes, and the comparison of their outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import weft.ops  # noqa: F401  (registers the ops)
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op, new_op
from weft.core.graph.tensor import TensorSpec
from weft_conformance.cases.table import comparable

FORMS: tuple[Shape, ...] = ((2, 6, 5, 5), (2, 6), (2, 6, 5))
"""The input shapes that networks are tried with, in order, until the backend takes ops of one."""


class Net:
    """Builds a graph whose input "x" has the shape `form`, with "N" as its first size if `open_batch`."""

    def __init__(self, form: Shape, *, open_batch: bool = False) -> None:
        self.form = form
        shape: tuple[int | str, ...] = ("N", *form[1:]) if open_batch else form
        self.graph = Graph("conformance", ["x"], [], specs={"x": TensorSpec(shape, DType.FLOAT32)})
        self._rng = np.random.default_rng(len(form))

    def weights(self, *shape: int) -> str:
        """Add a constant of random numbers between -1 and 1 and return its name."""
        return self.constant(self._rng.uniform(-1, 1, shape).astype(np.float32))

    def constant(self, value: Array) -> str:
        """Add a constant and return its name."""
        name = f"w{len(self.graph.constants)}"
        self.graph.constants[name] = value
        self.graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))
        return name

    def add(self, op: Op, *inputs: str) -> str:
        """Add a node with one output and return the output's name."""
        k = len(self.graph.nodes)
        self.graph.nodes.append(Node(f"step{k}_{op.type}", op, inputs, (f"v{k}",)))
        return f"v{k}"

    def finish(self, *outputs: str) -> Graph:
        """Return the graph with these outputs."""
        self.graph.outputs = list(dict.fromkeys(outputs))
        return self.graph


Step = Callable[[Net, str], str]
"""Adds a node that keeps the shape and returns its output."""


def _unary(kind: str, **attributes: object) -> Step:
    return lambda net, x: net.add(new_op(kind, **attributes), x)


def _with_constant(kind: str) -> Step:
    return lambda net, x: net.add(new_op(kind), x, net.weights(*net.form[1:]))


def _conv(net: Net, x: str) -> str:
    channels = net.form[1]
    kernel = (1,) * (len(net.form) - 2)
    return net.add(new_op("Conv"), x, net.weights(channels, channels, *kernel), net.weights(channels))


def _matmul(net: Net, x: str) -> str:
    return net.add(new_op("MatMul"), x, net.weights(net.form[-1], net.form[-1]))


STEPS: dict[str, Step] = {
    "Conv": _conv,
    "Add a constant": _with_constant("Add"),
    "Relu": _unary("Relu"),
    "MatMul": _matmul,
    "Softmax": _unary("Softmax", axis=-1),
    "Add to itself": lambda net, x: net.add(new_op("Add"), x, x),
    "Sigmoid": _unary("Sigmoid"),
    "Mul by a constant": _with_constant("Mul"),
    "Neg": _unary("Neg"),
    "Sub a constant": _with_constant("Sub"),
    "Tanh": _unary("Tanh"),
    "Abs": _unary("Abs"),
    "LeakyRelu": _unary("LeakyRelu"),
    "Mul by itself": lambda net, x: net.add(new_op("Mul"), x, x),
    "Exp": _unary("Exp"),
    "Max of a constant": _with_constant("Max"),
}
"""What networks are made of. Those that are neither idempotent nor fused with one another come first."""

MOST_STEPS = 5
JOINS = ("Add", "Sub", "Mul", "Max")


@dataclass(frozen=True)
class Blocks:
    """The steps that a backend takes at one shape, and the op that joins two values, "" if it takes none."""

    form: Shape
    steps: tuple[Step, ...]
    join: str = ""

    def chain(self, count: int = 4, *, open_batch: bool = False) -> Graph:
        """Return a chain of steps, of which each follows another order of steps."""
        net = Net(self.form, open_batch=open_batch)
        value = "x"
        for k in range(count):
            value = self.steps[k % len(self.steps)](net, value)
        return net.finish(value)

    def diamond(self, *, open_batch: bool = False) -> Graph:
        """Return a network with branches that meet again, an inner output, and an input that is read late."""
        net = Net(self.form, open_batch=open_batch)
        first, *others = self.steps
        a = first(net, "x")
        b = (others or [first])[0](net, a)
        c = (others or [first])[-1](net, a)
        if not self.join:
            return net.finish(a, first(net, b), c)
        y = net.add(new_op(self.join), b, c)
        late = net.add(new_op(self.join), first(net, y), "x")
        return net.finish(late, c)

    def pair(self) -> Graph:
        """Return a network that applies a step to its input, and then the same op to the same input again."""
        net = Net(self.form)
        one, *more = [step(net, "x") for step in (*self.steps, *self.steps)]
        return net.finish(one, *more)

    def feeds(self, seed: int = 0, batch: int | None = None) -> dict[str, Array]:
        """Return random numbers for the input, none of them zero."""
        shape = (self.form[0] if batch is None else batch, *self.form[1:])
        rng = np.random.default_rng(seed)
        return {"x": (rng.uniform(0.1, 1, shape) * rng.choice((-1, 1), shape)).astype(np.float32)}

    def all(self) -> dict[str, Graph]:
        """Return networks of several forms, by name."""
        graphs = {"one node": self.chain(1), "a chain": self.chain(6), "branches": self.diamond()}
        return {**graphs, "nodes side by side": self.pair()}


def rearranged(array: Array, seed: int = 0) -> Array:
    """Return the elements in another order, but for the first, the middle and the last one.

    What a backend might know an input by stays: the elements at its ends, its sum, its extremes.
    """
    flat = array.reshape(-1).copy()
    free = np.setdiff1d(np.arange(flat.size), [0, flat.size // 2, flat.size - 1])
    flat[free] = flat[np.random.default_rng(seed).permutation(free)]
    return flat.reshape(array.shape)


def part_of(graph: Graph, outputs: list[str]) -> Graph:
    """Return the part of a graph that computes some values, with nothing but the specs of what it reads."""
    made, wanted = graph.copy(), set(outputs)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if wanted & set(node.outputs):
            nodes.insert(0, node)
            wanted |= set(node.inputs)
    made.nodes, made.outputs = nodes, outputs
    made.inputs = [i for i in graph.inputs if i in wanted]
    made.constants = {n: c for n, c in graph.constants.items() if n in wanted}
    made.declared = {}
    made.specs = {n: s for n, s in graph.specs.items() if n in made.inputs or n in made.constants}
    return made


def difference(
    actual: Sequence[Array], wanted: Sequence[Array], tolerances: Sequence[tuple[float, float]]
) -> str:
    """Return how arrays differ, as a sentence; "" if each is within its (rtol, atol)."""
    if len(actual) != len(wanted):
        return f"{len(actual)} outputs came instead of {len(wanted)}"
    for k, (mine, theirs, (rtol, atol)) in enumerate(zip(actual, wanted, tolerances, strict=True)):
        if mine.shape != theirs.shape:
            return f"output {k} has shape {mine.shape} instead of {theirs.shape}"
        near = np.isclose(comparable(mine), comparable(theirs.astype(mine.dtype)), rtol, atol, equal_nan=True)
        if not near.all():
            where = tuple(int(i) for i in np.argwhere(~near)[0])
            return (
                f"{int((~near).sum())} of {near.size} numbers of output {k} differ; "
                f"at {where} it is {mine[where]} instead of {theirs[where]}"
            )
    return ""
