"""Linear recurrences that exporters unroll: what becomes one op, what stays, the numbers, and launches on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.rewrites import assert_same
from tests.helpers.unrolled_loops import index, joined, states
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.passes import run_passes
from weft.core.passes.recurrences import join_recurrences

FOUND = "weft::LinearRecurrence"


def stacked(net: Net, made: list[str], axis: int = 1) -> Graph:
    return net.finish(joined(net, made, axis))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("form", ["Gather", "Slice"])
def test_each_form_is_found(form: str, swapped: bool, zeros: bool) -> None:
    net = Net()
    graph = stacked(net, states(net, form=form, swapped=swapped, zeros=zeros))
    after = join_recurrences(graph)
    assert kinds(after).count(FOUND) == 1 and not {"Mul", "Add"} & {*kinds(after)}
    assert join_recurrences(after) is after
    assert_same(graph, after, 0)
    assert kinds(run_passes(graph)) == ["Sigmoid", "Sigmoid", FOUND]


@pytest.mark.parametrize(("dims", "axis"), [((4, 3), 0), ((2, 3, 4), 2), ((2, 3, 6, 2), 2), ((2,), 0)])
def test_any_axis_may_be_that_of_time(dims: tuple[int, ...], axis: int) -> None:
    net = Net()
    graph = stacked(net, states(net, dims, axis), axis)
    after = join_recurrences(graph)
    assert FOUND in kinds(after)
    assert_same(graph, after, 0)


def test_states_that_others_read_are_indices_of_the_result() -> None:
    net = Net()
    made = states(net)
    graph = net.finish(made[-1], net.add("Relu", made[1]))
    after = run_passes(graph)
    assert kinds(after) == ["Sigmoid", "Sigmoid", FOUND, "Gather", "Gather", "Relu"]
    assert_same(graph, after, 0)


def test_two_recurrences_are_found() -> None:
    net = Net()
    first = states(net)
    whole = net.add("Concat", *(net.add("Unsqueeze", each, np.array([1])) for each in first), axis=1)
    state, last = net.input("t", 2, 3), []
    for at in range(5):
        a, b = (index(net, value, at, 1) for value in (whole, whole))
        last.append(state := net.add("Add", net.add("Mul", a, state), b))
    graph = stacked(net, last)
    after = run_passes(graph)
    assert kinds(after) == ["Sigmoid", "Sigmoid", FOUND, FOUND]
    assert_same(graph, after, 0)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 2, 3, 4), (0, 1, 3, 2, 4), (4, 3, 2, 1, 0)], ids=str)
def test_other_orders_stay(order: tuple[int, ...]) -> None:
    net = Net()
    graph = stacked(net, states(net, order=order))
    assert join_recurrences(graph) is graph


def test_steps_that_depend_on_other_states_stay() -> None:
    net = Net()
    a, b, start = net.input("a", 3, 4), net.input("b", 3, 4), net.input("s", 4)
    made: list[str] = []
    for at, before in enumerate((start, "", start)):
        scaled = net.add("Mul", index(net, a, at, 0), before or made[0])
        made.append(net.add("Add", scaled, index(net, b, at, 0)))
    graph = net.finish(*made)
    assert join_recurrences(graph) is graph


def test_a_start_that_is_broadcast_and_integers_stay() -> None:
    net = Net()
    a, b, state = net.input("a", 2, 4), net.input("b", 2, 4), net.input("s", 1)
    for at in range(2):
        state = net.add("Add", net.add("Mul", index(net, a, at, 0), state), index(net, b, at, 0))
    graph = net.finish(state)
    assert join_recurrences(graph) is graph
    net = Net()
    a, b = (net.input(name, 2, 4, dtype=DType.INT32) for name in "ab")
    state = net.input("s", 4, dtype=DType.INT32)
    for at in range(2):
        state = net.add("Add", net.add("Mul", index(net, a, at, 0), state), index(net, b, at, 0))
    graph = net.finish(state)
    assert join_recurrences(graph) is graph


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_loop_over_time_takes_one_launch(device: str) -> None:
    """As PyTorch exports it: the states are written to a value of zeros, step by step."""
    net = Net()
    made = states(net, (2, 9, 8), zeros=True)
    whole: Any = np.zeros((2, 9, 8), np.float32)
    for at, state in enumerate(made):
        places = np.full((2, 1, 8), at, np.int64)
        whole = net.add("ScatterElements", whole, places, net.add("Unsqueeze", state, np.array([1])), axis=1)
    graph = net.finish(net.add("Relu", whole))
    if device != "cpu":
        assert sorted(planned_kernels(graph)) == ["elementwise", "elementwise", "linear_recurrence"]
    fed = feeds(graph)
    for precision, tolerance in (("high", 1e-5), ("low", 4e-3)):
        with weft.load(graph, device, precision=precision, fallback="error") as session:
            np.testing.assert_allclose(session.run(fed)[0], outputs(graph, fed)[0], rtol=tolerance, atol=tolerance)
