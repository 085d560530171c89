"""What it takes to load grows with the nodes, not with their square: the lines that run are counted.

Each turn of a comprehension counts, too. They grow as the interpreter's instructions do, and cost a quarter to count.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.null_gpu import null_gpu
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.op import find_op
from weft.core.graph.tensor import TensorSpec
from weft.core.memory import arena_packing

FEW, MANY = 16, 64
SLACK = 1.6
"""What the steps may grow by beyond the nodes: a sort has a logarithm."""


class Name(str):
    """A name that counts how often it is compared: a look through a list of names is one step."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


class Work:
    """The lines that run in all threads, comparisons of names, and what copies of graphs copy."""

    def __init__(self) -> None:
        self.steps = 0

    def _trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        self.steps += event == "line"
        return self._trace

    @contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        copy, before, compared = Graph.copy, sys.gettrace(), Name.compared

        def copied(graph: Graph) -> Graph:
            self.steps += len(graph.nodes) + len(graph.specs) + len(graph.constants)
            return copy(graph)

        with monkeypatch.context() as patch:
            patch.setattr(Graph, "copy", copied)
            threading.settrace(self._trace)
            sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.settrace(before)
                threading.settrace(before)  # type: ignore[arg-type]
        self.steps += Name.compared - compared


class Net:
    """A graph in the making, whose names are counted."""

    def __init__(self) -> None:
        self.graph = Graph("counted", [], [])

    def given(self, name: str, *shape: int) -> str:
        self.graph.inputs.append(Name(name))
        self.graph.specs[Name(name)] = TensorSpec(shape, DType.FLOAT32)
        return name

    def constant(self, name: str, value: Any) -> str:
        array = np.asarray(value, np.float32)
        self.graph.constants[Name(name)] = array
        self.graph.specs[Name(name)] = TensorSpec(array.shape, DType.FLOAT32)
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        op = find_op(kind)
        assert op is not None
        made = f"v{len(self.graph.nodes)}"
        read = tuple(Name(i) for i in inputs)
        self.graph.nodes.append(Node(Name(f"n{made}"), op(**attributes), read, (Name(made),)))
        return made

    def ends(self, *values: str) -> Graph:
        self.graph.outputs = [Name(v) for v in values]
        return self.graph


def chain(count: int) -> Graph:
    net = Net()
    x = net.given("x", 2, 3)
    for k in range(count):
        x = net.add("Sigmoid" if k % 2 else "Tanh", x)
    return net.ends(x)


def fan(count: int) -> Graph:
    net = Net()
    x = net.given("x", 2, 3)
    return net.ends(net.add("Sum", *[net.add("Sigmoid" if k % 2 else "Tanh", x) for k in range(count)]))


def ladder(count: int) -> Graph:
    net = Net()
    made = [net.given("x", 2, 3)]
    for _ in range(count // 2):
        made.append(net.add("Sigmoid", made[-1]))
    x = made.pop()
    while made:
        x = net.add("Add", x, made.pop())
    return net.ends(x)


def ends(count: int) -> Graph:
    net = Net()
    made = []
    for k in range(count):
        made.append(net.add("Add", net.given(f"x{k}", 2), net.constant(f"c{k}", [k, 1])))
    return net.ends(*made)


def concat(count: int) -> Graph:
    net = Net()
    return net.ends(net.add("Concat", *[net.given(f"x{k}", 2) for k in range(count)], axis=0))


def norms(count: int) -> Graph:
    net = Net()
    x = net.add("Conv", net.given("x", 1, 2, 2, 2), net.constant("w", np.ones((2, 2, 1, 1))))
    ones = net.constant("ones", [1, 1])
    for _ in range(count):
        x = net.add("BatchNormalization", x, ones, ones, ones, ones)
    return net.ends(x)


def turned(count: int) -> Graph:
    net = Net()
    x = net.given("x", 2, 3)
    for k in range(count):
        x = net.add("Sigmoid", x) if k % 2 else net.add("Transpose", x, perm=(1, 0))
    return net.ends(x)


def scaled(count: int) -> Graph:
    net = Net()
    x, c = net.given("x", 2, 3), net.constant("c", 0.999)
    made = []
    for _ in range(count // 2):
        x = net.add("Mul", x, c)
        made.append(net.add("Erf", x))
    return net.ends(net.add("Sum", *made))


def whole(count: int) -> Graph:
    """Ops that a device takes apart."""
    net = Net()
    x, scale = net.given("x", 2, 3), net.constant("s", [1, 2, 3])
    for _ in range(count // 2):
        x = net.add("LayerNormalization", net.add("Gelu", x), scale)
    return net.ends(x)


def grid(count: int) -> Graph:
    """Rows of eight, each node of which reads two of the row before."""
    net = Net()
    row = [net.given(f"x{k}", 2, 3) for k in range(8)]
    for _ in range(count // 8):
        row = [net.add(("Add", "Mul")[k % 2], row[k], row[k - 1]) for k in range(8)]
    return net.ends(*row)


def residual(count: int) -> Graph:
    net = Net()
    x = net.given("x", 2, 3)
    for _ in range(count // 2):
        x = net.add("Add", x, net.add("Tanh", x))
    return net.ends(x)


def readers(count: int) -> Graph:
    """One value that all nodes read, each of which is an output."""
    net = Net()
    x = net.given("x", 2, 3)
    return net.ends(*[net.add("Sigmoid" if k % 2 else "Tanh", x) for k in range(count)])


SHAPES = (chain, fan, ladder, ends, concat, norms, turned, scaled, whole, grid, residual, readers)


def steps(graph: Graph, monkeypatch: pytest.MonkeyPatch, device: Any, **options: Any) -> int:
    """Return what it takes to load a graph, to run it, and to report."""
    work = Work()
    feeds = {str(i): np.ones(graph.specs[i].dims, np.float32) for i in graph.inputs}
    monkeypatch.setattr(arena_packing, "FEW_PAIRS", 0)  # up to so many, the planner may look at all of them
    with work.counted(monkeypatch), weft.load(graph, device, **options) as session:
        session.run(feeds)
        str(session.report)
    return work.steps


def assert_linear(
    shape: Callable[[int], Graph],
    monkeypatch: pytest.MonkeyPatch,
    device: str | Sequence[str] = "cpu",
    hints: Callable[[Graph], Mapping[str, str]] = lambda graph: {},
    **options: Any,
) -> None:
    graphs = [shape(count) for count in (2, 2, FEW, MANY)]  # what is made once, such as kernels, comes first
    _, nothing, few, many = (steps(g, monkeypatch, device, hints=hints(g), **options) for g in graphs)
    assert many - nothing <= SLACK * MANY / FEW * (few - nothing)


@pytest.mark.parametrize("shape", SHAPES)
def test_load_takes_steps_in_proportion_to_the_nodes(
    shape: Callable[[int], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_linear(shape, monkeypatch)


@pytest.mark.parametrize("shape, most", [(chain, 1_150), (ends, 2_100), (residual, 1_260), (readers, 1_330)])
def test_a_node_more_takes_so_many_steps_to_load(
    shape: Callable[[int], Graph], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth above what it takes, most of it in Python: 100,000 nodes are to load in well under 30 s."""
    monkeypatch.delenv("WEFT_CHECK_PASSES", raising=False)
    graphs = [shape(count) for count in (2, FEW, MANY)]
    _, few, many = (steps(g, monkeypatch, "cpu") for g in graphs)
    assert many - few <= most * (len(graphs[2].nodes) - len(graphs[1].nodes))


QUICK_ON_GPUS = (chain, ends, residual, readers)
"""The shapes that a GPU plans in the short run; what they share with the others is not of the device."""


@pytest.mark.parametrize(
    "shape", [pytest.param(s, marks=[pytest.mark.long] * (s not in QUICK_ON_GPUS)) for s in SHAPES]
)
def test_load_on_a_gpu_takes_steps_in_proportion_to_the_nodes(
    shape: Callable[[int], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    with null_gpu():
        assert_linear(shape, monkeypatch, "null")


def test_load_at_low_precision_takes_steps_in_proportion_to_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    with null_gpu():
        assert_linear(ends, monkeypatch, "null", precision="low")


def test_load_on_two_devices_by_turns_takes_steps_in_proportion_to_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    with null_gpu():
        hints = lambda graph: {str(n.name): ("null", "cpu")[k % 2] for k, n in enumerate(graph.nodes)}  # noqa: E731
        assert_linear(chain, monkeypatch, ["null", "cpu"], hints)


def test_a_sum_of_more_values_than_a_device_binds_goes_down_the_list() -> None:
    with null_gpu(), weft.load(fan(100), "null") as session:
        reasons = [r for refused in session.report.refusals.values() for r in refused.values()]
        assert reasons == ["its kernel reads and writes 101 values and the device binds 64 buffers"]
        assert session.report.nodes_by_device == {"null": 100, "cpu": 1}
