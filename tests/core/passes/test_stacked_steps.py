"""What unrolled loops do to each index of an axis, and what is done at once instead; what stays, and the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.random_nets import SLOW
from tests.helpers.rewrites import assert_same
from tests.helpers.run_length import examples
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.passes import find_pass, run_passes
from weft.core.passes.stacked_steps import stack_steps

Step = Callable[[Net, str, int], str]


def index(net: Net, value: str, at: int, axis: int = 1) -> str:
    """Add one index of an axis of a value."""
    return net.add("Gather", value, np.asarray(at, np.int64), axis=axis)


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


def shared(net: Net, *dims: int) -> str:
    """Return the name of a constant that all steps of a network share."""
    name = "shared" + "x".join(map(str, dims))
    return name if name in net.graph.constants else net.constant(net.random(*dims), name)


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


@given(data=st.data())
@settings(max_examples=examples(80), deadline=None, suppress_health_check=SLOW)
def test_any_loop_computes_what_it_did(data: st.DataObject) -> None:
    net, count = Net(), data.draw(st.integers(2, 4))
    x, y = net.input("x", 3, count, 3), net.add("Sigmoid", net.input("y", count, 3, 3))
    body = data.draw(st.lists(st.sampled_from("product pair sum relu transpose reshape before".split()), max_size=5))
    state, made = net.input("s", 3, 3), []
    for at in range(count):
        first, second = index(net, x, at), index(net, y, at, 0)
        value = first
        for op in body:
            if op == "product":
                value = net.add("MatMul", value, shared(net, 3, 3))
            elif op == "pair":
                value = net.add("MatMul", second, value)
            elif op == "sum":
                value = net.add("Add", value, net.add("Mul", second, shared(net, 3)))
            elif op == "relu":
                value = net.add("Relu", value)
            elif op == "transpose":
                value = net.add("Transpose", value, perm=(1, 0))
            elif op == "reshape":
                value = net.add("Reshape", net.add("Reshape", value, np.array((9,))), np.array((3, 3)))
            else:
                state = net.add("Add", net.add("Mul", value, state), second)
                value = state
        made.append(value)
    ends = [net.add("Concat", *made, axis=data.draw(st.sampled_from([0, 1])))] if data.draw(st.booleans()) else made
    graph = net.finish(*ends)
    done = find_pass("settle_steps")(graph)
    assert_same(graph, done, 2e-5)
    assert str(find_pass("settle_steps")(done)) == str(done)
    whole = run_passes(graph)
    assert_same(graph, whole, 2e-5)
    assert str(run_passes(whole)) == str(whole)


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
