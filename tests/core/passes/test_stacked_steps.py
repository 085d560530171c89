"""What unrolled loops do to each index of an axis, and what is done at once instead; what stays, and the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.rewrites import assert_same
from tests.helpers.unrolled_loops import index, shared
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.passes.stacked_steps import stack_steps

Step = Callable[[Net, str, int], str]


def loop(step: Step, dims: tuple[int, ...] = (2, 5, 3), axis: int = 1, join: int | None = None) -> Graph:
    """Return a network that does something to each index of an axis; `join`: the axis along which it joins that."""
    net = Net()
    x = net.add("Sigmoid", net.input("x", *dims))
    made = [step(net, index(net, x, at, axis), at) for at in range(dims[axis])]
    if join is None:
        return net.finish(*made)
    whole = [net.add("Unsqueeze", each, np.array([join])) for each in made]
    return net.finish(net.add("Concat", *whole, axis=join))


def after(graph: Graph) -> list[str]:
    """Return the types of the nodes after the pass, which computes what the network does, and runs once."""
    done = stack_steps(graph)
    assert stack_steps(done) is done
    assert_same(graph, done, 1e-6)
    return kinds(done)


@pytest.mark.parametrize("axis", [0, 1])
def test_products_by_one_matrix_are_one(axis: int) -> None:
    dims = (5, 2, 3) if axis == 0 else (2, 5, 3)
    found = after(loop(lambda net, value, at: net.add("MatMul", value, shared(net, 3, 4)), dims, axis, join=1))
    assert found.count("MatMul") == 1 and "Concat" not in found and "Gather" not in found


def test_what_is_before_and_behind_a_product_is_done_at_once() -> None:
    def step(net: Net, value: str, at: int) -> str:
        moved = net.add("Transpose", net.add("Unsqueeze", net.add("Relu", value), np.array([-1])), perm=(0, 2, 1))
        product = net.add("MatMul", moved, shared(net, 3, 4))
        return net.add("Tanh", net.add("Add", index(net, product, 0), shared(net, 4)))

    found = after(loop(step, join=1))
    assert [found.count(kind) for kind in ("Relu", "MatMul", "Add", "Tanh", "Concat")] == [1, 1, 1, 1, 0]


def test_results_that_others_read_are_indices() -> None:
    found = after(loop(lambda net, value, at: net.add("MatMul", value, shared(net, 3, 4))))
    assert found == ["Sigmoid", "Transpose", "MatMul", *["Gather"] * 5]


@pytest.mark.parametrize("join", [0, 1, 2])
def test_two_values_are_multiplied_step_by_step(join: int) -> None:
    net = Net()
    x, y = net.input("x", 2, 7, 4, 3), net.input("y", 2, 4, 3)
    made = []
    for at in range(4):
        column = net.add("Unsqueeze", index(net, y, at), np.array([-1]))
        made.append(net.add("Squeeze", net.add("MatMul", index(net, x, at, 2), column), np.array([-1])))
    whole = [net.add("Unsqueeze", each, np.array([join])) for each in made]
    found = after(net.finish(net.add("Concat", *whole, axis=join)))
    assert found.count("MatMul") == 1 and "Concat" not in found


def test_the_same_twice_is_found_twice() -> None:
    def step(net: Net, value: str, at: int) -> str:
        return net.add("Sub", *(net.add("MatMul", value, shared(net, 3, 4)) for _ in range(2)))

    assert after(loop(step, join=1)).count("MatMul") == 2


# -- what stays --------------------------------------------------------------------------------------------


def _no_product(net: Net, value: str, at: int) -> str:
    return net.add("Tanh", net.add("Mul", value, shared(net, 3)))


def _another_matrix_each(net: Net, value: str, at: int) -> str:
    return net.add("MatMul", value, net.random(3, 40))


def _another_op_each(net: Net, value: str, at: int) -> str:
    return net.add("MatMul", net.add("Transpose", value, perm=(1, 0)) if at == 2 else value, shared(net, 3, 3))


STAYS = [_no_product, _another_matrix_each]


@pytest.mark.parametrize("step", STAYS)
def test_steps_that_differ_or_have_no_product_stay(step: Step) -> None:
    graph = loop(step, join=1)
    assert stack_steps(graph) is graph


def test_a_step_that_does_something_else_keeps_all() -> None:
    graph = loop(_another_op_each, (3, 5, 3), join=1)
    assert stack_steps(graph) is graph


def test_steps_that_read_the_one_before_stay() -> None:
    net = Net()
    x, state = net.input("x", 2, 5, 3), net.input("s", 2, 3)
    for at in range(5):
        state = net.add("MatMul", net.add("Add", state, index(net, x, at)), shared(net, 3, 3))
    graph = net.finish(state)
    assert stack_steps(graph) is graph


def test_some_of_the_indices_stay() -> None:
    net = Net()
    x = net.input("x", 2, 5, 3)
    graph = net.finish(*(net.add("MatMul", index(net, x, at), shared(net, 3, 4)) for at in range(4)))
    assert stack_steps(graph) is graph


# -- all together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_state_space_takes_few_launches(device: str) -> None:
    """As PyTorch exports a selective scan: a recurrence, and a product with each of its states."""
    net, count = Net(), 6
    factors, terms = (net.add("Sigmoid", net.input(name, 1, 16, count, 8)) for name in "ab")
    out, state = net.input("c", 1, count, 8), net.constant(np.zeros((1, 16, 8), np.float32))
    made = []
    for at in range(count):
        state = net.add("Add", net.add("Mul", index(net, factors, at, 2), state), index(net, terms, at, 2))
        column = net.add("Unsqueeze", index(net, out, at), np.array([-1]))
        made.append(net.add("Unsqueeze", index(net, net.add("MatMul", state, column), 0, 2), np.array([-1])))
    graph = net.finish(net.add("Relu", net.add("Concat", *made, axis=-1)))
    if device != "cpu":
        told = planned_kernels(graph)
        assert told.count("linear_recurrence") == 1 and len(told) <= 6
    fed = feeds(graph)
    for precision, tolerance in (("high", 1e-5), ("low", 1e-2)):
        with weft.load(graph, device, precision=precision, fallback="error") as session:
            np.testing.assert_allclose(session.run(fed)[0], outputs(graph, fed)[0], rtol=tolerance, atol=tolerance)
