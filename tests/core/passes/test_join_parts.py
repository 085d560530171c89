"""Concats that put the parts of a value together again."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.nets import Net
from tests.helpers.random_parts import cut
from tests.helpers.rewrites import assert_same
from weft.core.graph.graph import Graph
from weft.core.passes import find_pass, run_passes


def joined(graph: Graph) -> tuple[str, ...]:
    """Return what the last node reads after the pass."""
    after = run_passes(graph, (find_pass("join_parts"),))
    assert_same(graph, after, 0)
    return after.nodes[-1].inputs


def test_all_parts_of_a_split_become_the_value() -> None:
    net = Net()
    x = net.add("Relu", net.input("x", 2, 6, 3))
    first = net.add("Split", x, np.array([1, 3, 2]), axis=1, outputs=3)
    parts = [first, f"{first}.1", f"{first}.2"]
    y = net.add("Concat", *parts, net.add("Neg", x), axis=1)
    assert joined(net.finish(y)) == (x, net.graph.nodes[-1].inputs[-1])


def test_slices_in_order_become_the_value_wherever_they_stand() -> None:
    net = Net()
    x = net.add("Relu", net.input("x", 2, 6, 3))
    other = net.add("Neg", x)
    y = net.add("Concat", other, cut(net, x, 0, 4), cut(net, x, 4, 99), other, axis=1)
    assert joined(net.finish(y)) == (other, x, other)


@pytest.mark.parametrize("spans", [[(3, 6), (0, 3)], [(0, 3), (4, 6)], [(0, 3), (2, 6)], [(0, 3)]])
def test_other_parts_stay(spans: list[tuple[int, int]]) -> None:
    net = Net()
    x = net.add("Relu", net.input("x", 2, 6, 3))
    parts = [cut(net, x, *span) for span in spans]
    assert joined(net.finish(net.add("Concat", *parts, net.add("Neg", x), axis=1)))[:-1] == tuple(parts)


def test_parts_along_another_axis_or_with_gaps_stay() -> None:
    net = Net()
    x = net.add("Relu", net.input("x", 4, 4))
    rows = [cut(net, x, 0, 2, axis=0), cut(net, x, 2, 4, axis=0)]
    assert joined(net.finish(net.add("Concat", *rows, axis=1))) == tuple(rows)
    net = Net()
    x = net.add("Relu", net.input("x", 4, 4))
    columns = [cut(net, x, 0, 4, step=2), cut(net, x, 1, 4, step=2)]
    assert joined(net.finish(net.add("Concat", *columns, axis=1))) == tuple(columns)
