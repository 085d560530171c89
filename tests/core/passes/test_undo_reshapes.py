"""Element-wise nodes between two reshapes that undo each other."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.nets import Net, kinds
from tests.helpers.rewrites import assert_same
from tests.helpers.run_length import examples
from weft.core.graph.graph import Graph
from weft.core.passes import find_pass, run_passes
from weft.core.passes.undo_reshapes import broadcast_reshape


def alone(graph: Graph) -> Graph:
    after = run_passes(graph, (find_pass("undo_reshapes"), find_pass("remove_dead_nodes")))
    assert_same(graph, after, 0)
    return after


def reshaped(net: Net, x: str, *dims: int) -> str:
    return net.add("Reshape", x, np.array(dims))


@pytest.mark.parametrize("constant", [(), (1,), (1, 8, 1, 5), (8, 1, 1), (3, 1), (1, 1, 3, 5), (2, 1, 1, 1)])
def test_a_sum_with_a_constant_is_computed_in_the_shape_before(constant: tuple[int, ...]) -> None:
    net = Net()
    x = net.add("Relu", net.input("x", 16, 3, 5))
    total = net.add("Add", reshaped(net, x, 2, 8, 3, 5), net.random(*constant))
    assert kinds(alone(net.finish(reshaped(net, total, 16, 3, 5)))) == ["Relu", "Add"]


def test_two_reshaped_values_meet_in_the_shape_before() -> None:
    net = Net()
    x = net.add("Relu", net.input("x", 16, 3))
    y = net.add("Neg", x)
    product = net.add("Mul", *(reshaped(net, v, 2, 8, 3) for v in (x, y)))
    assert kinds(alone(net.finish(reshaped(net, product, 16, 3)))) == ["Relu", "Neg", "Mul"]


def test_of_two_pairs_that_share_a_reshape_one_goes() -> None:
    net = Net()
    x = net.add("Relu", net.input("x", 16, 3))
    inside = reshaped(net, net.add("Sigmoid", reshaped(net, x, 2, 8, 3)), 16, 3)
    outside = reshaped(net, net.add("Tanh", inside), 2, 8, 3)
    after = alone(net.finish(net.add("Softmax", outside, axis=1)))
    assert kinds(after) == ["Relu", "Sigmoid", "Tanh", "Reshape", "Softmax"]


@pytest.mark.parametrize("other", ["read twice", "another shape", "computed operand", "not element-wise"])
def test_other_nodes_stay(other: str) -> None:
    net = Net()
    x = net.add("Relu", net.input("x", 16, 3))
    inside = reshaped(net, x, 2, 8, 3)
    operand = net.add("Neg", inside) if other == "computed operand" else net.random(3)
    total = net.add("Softmax", inside) if other == "not element-wise" else net.add("Add", inside, operand)
    back = reshaped(net, total, *((48,) if other == "another shape" else (16, 3)))
    graph = net.finish(back, *([total] if other == "read twice" else []))
    assert str(alone(graph)) == str(graph)


@given(st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_constant_in_another_shape_repeats_as_it_did(data: st.DataObject) -> None:
    inner = data.draw(st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=1, max_size=4))
    left, outer = prod(inner), list[int]()
    for _ in range(data.draw(st.integers(0, 3))):
        outer.append(data.draw(st.sampled_from([d for d in (1, 2, 3, 4, 6) if left % d == 0])))
        left //= outer[-1]
    outer.append(left)
    dims = [n if data.draw(st.booleans()) else 1 for n in inner][data.draw(st.integers(0, len(inner))) :]
    value = np.arange(prod(dims)).reshape(dims)
    made = broadcast_reshape(value, tuple(inner), tuple(outer))
    assert made is not None
    np.testing.assert_array_equal(np.broadcast_to(made, outer), np.broadcast_to(value, inner).reshape(outer))


def test_nothing_is_left_where_a_dead_reader_goes() -> None:
    net = Net()
    first = net.add("Relu", reshaped(net, net.input("x", 2, 3), 6))
    reshaped(net, first, 1, 6)  # nobody reads it
    middle = net.add("Softmax", reshaped(net, first, 2, 3))
    graph = net.finish(reshaped(net, net.add("Relu", reshaped(net, middle, 6)), 2, 3))
    rewrite = find_pass("undo_reshapes")
    after = rewrite(graph)
    assert kinds(after) == ["Relu", "Softmax", "Relu"]
    assert rewrite(after) is after
