"""Networks edited before they are optimised, and graphs that survive the way through a network unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import weft
from tests.helpers.built import HUNDRED, X, one_input, run
from tests.helpers.nets import feeds
from tests.helpers.random_nets import SLOW, networks
from tests.helpers.run_length import examples
from weft import models
from weft.core.graph.interpreter import outputs, values
from weft.errors import ModelError
from weft.ops.unary import LeakyRelu


def graph_without_order(graph: weft.Graph) -> tuple[Any, ...]:
    """Return all that makes up a graph, whatever the order of its nodes."""
    return graph.inputs, graph.outputs, {str(n) for n in graph.nodes}, graph.constants.keys()


# -- editing -------------------------------------------------------------------------------------------------


IMAGE = np.random.default_rng(3).random((1, 3, 128, 128), np.float32)


def shapes() -> weft.Network:
    return weft.parse(models.path("shapes"))


def test_a_parsed_network_comes_back_as_it_was() -> None:
    graph = weft.parse(models.path("shapes")).to_graph()
    again = weft.Network.from_graph(graph).to_graph()
    assert graph_without_order(again) == graph_without_order(graph)
    with weft.load(models.path("shapes"), "cpu") as session:
        np.testing.assert_array_equal(run(shapes(), IMAGE)[0], session.run(IMAGE)[0])


def test_an_inner_value_becomes_an_output() -> None:
    net = shapes()
    net.add_output("features", net.layer("join/relu"))
    probabilities, features = run(net, IMAGE)
    assert features.shape == (1, 24, 64, 64)
    net.remove_output("probabilities")
    (alone,) = run(net, IMAGE)
    np.testing.assert_allclose(alone, features, rtol=1e-5, atol=1e-6)
    assert probabilities.shape == (1, 5, 64, 64)


def test_a_layer_is_inserted_after_all_readers_and_before_one() -> None:
    net = shapes()
    net.insert_after(net.layer("classes/softmax"), "Mul", name="percent").input(1).connect(net.add_constant(HUNDRED))
    (percent,) = run(net, IMAGE)
    np.testing.assert_allclose(percent.sum(1), 100, rtol=1e-4)
    edge = net.layer("both/concat").input(0)
    source = edge.source
    assert source is not None
    relu = net.insert_before(edge, "Relu")
    assert edge.source is relu.output() and relu.input().source is source
    assert len(source.targets) == 3
    np.testing.assert_allclose(run(net, IMAGE)[0], percent, rtol=1e-4, atol=1e-4)


def test_a_layer_is_removed_with_and_without_joining_its_ends() -> None:
    net = shapes()
    (probabilities,) = run(net, IMAGE)
    net.layer("classes/softmax").remove(join=True)
    (logits,) = run(net, IMAGE)
    np.testing.assert_allclose(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), probabilities, atol=1e-5)
    conv = net.layer("last/conv")
    conv.remove()
    with pytest.raises(ModelError, match="output 'probabilities' shows nothing"):
        net.to_graph()
    with pytest.raises(ModelError, match="'last/conv' was removed"):
        conv.output().connect(net.layer("join/relu").input())
    net.add_output("probabilities", net.layer("join/relu"))
    assert run(net, IMAGE)[0].shape == (1, 24, 64, 64)


def test_readers_of_a_removed_layer_are_named() -> None:
    net, x = one_input()
    relu = net.add_layer("Relu", x)
    net.add_output("y", net.add_layer("Add", relu, x, name="sum"))
    relu.remove()
    assert list(net.layers) == ["sum"] and net.layer("sum").input().source is None
    with pytest.raises(ModelError, match=r"input 0 \(A\) of 'sum' \(Add\) is not connected"):
        net.to_graph()


def test_a_layer_is_replaced_and_its_attributes_changed() -> None:
    net, x = one_input()
    relu = net.add_layer("LeakyRelu", x, alpha=0.5)
    net.add_output("y", relu)
    assert isinstance(relu.op, LeakyRelu)
    relu.op = replace(relu.op, alpha=0.25)
    np.testing.assert_array_equal(run(net, X)[0], np.where(X < 0, X / 4, X))
    relu.replace("Abs")
    np.testing.assert_array_equal(run(net, X)[0], abs(X))
    relu.replace("Add")
    relu.input(1).connect(x)
    np.testing.assert_array_equal(run(net, X)[0], 2 * X)
    with pytest.raises(ModelError, match=r"2 of its inputs are connected and Neg has at most 1"):
        relu.replace("Neg")
    top = net.add_layer("Split", x, axis=1, num_outputs=2)
    net.add_output("right", top.output(1))
    with pytest.raises(ModelError, match=r"output 1 is read and Neg has 1 output"):
        top.replace("Neg")
    assert top.op.type == "Split"
    np.testing.assert_array_equal(run(net, X)[1], X[:, 3:])


def test_all_readers_are_moved_to_another_slot() -> None:
    net, x = one_input()
    old, new = net.add_layer("Relu", x), net.add_layer("Neg", x)
    net.add_output("y", net.add_layer("Exp", old))
    net.add_output("z", old)
    old.output().redirect(new)
    np.testing.assert_allclose(run(net, X)[0], np.exp(-X), rtol=1e-6)
    assert not old.output().targets


def test_layers_are_renamed() -> None:
    net, x = one_input()
    relu = net.add_layer("Relu", x, name="a")
    net.add_layer("Neg", relu, name="b")
    relu.name = "first"
    assert list(net.layers) == ["first", "b"] and net.layer("first") is relu
    x.name = "picture"
    assert list(net.inputs) == ["picture"]
    with pytest.raises(ModelError, match=r"'b' cannot be the name of another layer(?s:.)*Neg layer"):
        relu.name = "b"


def test_one_value_may_be_shown_under_several_names_and_an_input_too() -> None:
    net, x = one_input()
    relu = net.add_layer("Relu", x)
    for name, slot in {"a": relu, "b": relu, "x": x, "c": x}.items():
        net.add_output(name, slot)
    results = run(net, X)
    for result, expected in zip(results, [np.maximum(X, 0)] * 2 + [X] * 2, strict=True):
        np.testing.assert_array_equal(result, expected)


# -- any graph -----------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
@given(networks())
def test_any_graph_comes_back_as_it_was(graph: weft.Graph) -> None:
    graph.outputs = list(dict.fromkeys(graph.outputs))
    net = weft.Network.from_graph(graph)
    again = net.to_graph()
    assert graph_without_order(again) == graph_without_order(graph)
    fed = feeds(graph)
    for mine, theirs in zip(outputs(again, fed), outputs(graph, fed), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    known = values(graph, fed)
    for layer in net.layers.values():
        for slot in layer.outputs:
            spec, value = slot.spec, known[slot.value_name or ""]
            assert spec is None or (spec.shape == value.shape and spec.dtype.numpy == value.dtype)
