"""The interpreter: every value of a graph by the ops' references."""

from __future__ import annotations

import warnings

import numpy as np

from tests.helpers.nets import Net, op
from weft.core.graph.graph import Node
from weft.core.graph.interpreter import evaluate, outputs, values


def test_every_value_is_computed_by_its_op() -> None:
    net = Net()
    x = net.input("x", 2, 3)
    low = net.add("Clip", x, "", net.constant(np.array(1, np.float32), "high"), name="low")
    parts = net.add("Split", low, np.array([1, 2]), axis=1, name="part", outputs=2)
    graph = net.finish(net.add("Neg", f"{parts}.1", name="y"), "x")
    graph.nodes[1] = Node("split", graph.nodes[1].op, graph.nodes[1].inputs, ("", "part.1"))
    fed = np.arange(6, dtype=np.float32).reshape(2, 3)
    known = values(graph, {"x": fed})
    assert known.keys() == {"x", "high", "low", "part.1", "y", *graph.constants}
    np.testing.assert_array_equal(known["low"], np.minimum(fed, 1))
    y, same = outputs(graph, {"x": fed})
    np.testing.assert_array_equal(y, -np.minimum(fed, 1)[:, 1:])
    assert same is fed
    # What is fed under the name of a constant counts instead of it.
    np.testing.assert_array_equal(outputs(graph, {"x": fed, "high": np.array(0, np.float32)})[0], np.zeros((2, 2)))


def test_results_are_arrays_and_numpy_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (quotient,) = evaluate(op("Div"), [np.ones((), np.float32), np.zeros((), np.float32)])
    assert isinstance(quotient, np.ndarray) and quotient == np.inf
