"""Networks that are built by hand, and parsed ones that are edited before they are optimised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import weft
from tests.core.nets import feeds, outputs, values
from tests.core.random_nets import SLOW, networks
from weft import models
from weft.core.layout import Array
from weft.core.op import Constants, Op
from weft.core.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.concat import Split
from weft.ops.unary import LeakyRelu

X = np.arange(12, dtype=np.float32).reshape(2, 6) - 4


def run(net: weft.Network, *inputs: Array, device: str = "cpu") -> list[Array]:
    """Load and run a network on that device alone."""
    with weft.load(net, device, fallback="error") as session:
        results = session.run(*inputs)
        assert {d.partition(":")[0] for d in session.report.placement.values()} <= {device}
        return results


def one_input(*shape: int | str) -> tuple[weft.Network, Any]:
    """Return a network with an input x."""
    net = weft.Network("net")
    return net, net.add_input("x", shape or (2, 6))


def graph_without_order(graph: weft.Graph) -> tuple[Any, ...]:
    """Return all that makes up a graph, whatever the order of its nodes."""
    return graph.inputs, graph.outputs, {str(n) for n in graph.nodes}, graph.constants.keys()


# -- building ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_network_by_hand_runs_on_the_device_that_was_named(device: str) -> None:
    net = weft.Network("adder")
    x = net.add_input("x", (2, 6), "float32")
    y = net.add_input("y", (2, 6))
    add = net.add_layer("Add", name="sum")
    x.output(0).connect(add.input(0))
    y.output(0).connect(add.input(1))
    net.add_output("z", add.output(0))
    with weft.load(net, device, fallback="error") as session:
        assert session.report.placement["sum"].partition(":")[0] == device
        (z,) = session.run(X, 2 * X)
    np.testing.assert_array_equal(z, 3 * X)


def test_the_short_form_takes_layers_slots_and_arrays() -> None:
    net, x = one_input()
    relu = net.add_layer("Relu", x)
    scaled = net.add_layer("Mul", relu.output(0), np.float32(3))
    net.add_output("y", net.add_layer("Sum", relu, scaled, x))
    (y,) = run(net, X)
    np.testing.assert_array_equal(y, 4 * np.maximum(X, 0) + X)
    assert [layer.name for layer in net.layers.values()] == ["relu0", "mul0", "sum0"]


def test_constants_have_names_and_can_be_set() -> None:
    net, x = one_input()
    w = net.add_constant(np.ones((6, 3), np.float32), name="w")
    net.add_output("y", net.add_layer("MatMul", x, w))
    assert net.outputs["y"] is not None and net.outputs["y"].spec == TensorSpec((2, 3), weft.DType.FLOAT32)
    w.value = np.ones((6, 5), np.float32)
    np.testing.assert_array_equal(run(net, X)[0], np.repeat(X.sum(1, keepdims=True), 5, axis=1))


def test_an_output_feeds_many_inputs_and_an_input_has_one_source() -> None:
    net, x = one_input()
    add = net.add_layer("Add", x, x, name="twice")
    assert add.input("A").source is add.input(1).source is x.output()
    assert x.output().targets == add.inputs
    with pytest.raises(ModelError, match=r"input 0 of 'twice' has a source already.*(?s:.)*output 0 of 'x'"):
        x.output().connect(add.input(0))
    add.input(1).disconnect()
    assert x.output().targets == (add.input(0),)


def test_slots_follow_the_op() -> None:
    net, x = one_input(1, 3, 8, 8)
    assert [len(net.add_layer(t).inputs) for t in ("Relu", "Add", "Clip", "Sum", "Where")] == [1, 2, 3, 1, 3]
    concat = net.add_layer("Concat", x, x, x, axis=1)
    assert len(concat.inputs) == 3
    assert concat.input(7).index == 7
    with pytest.raises(ModelError, match="has no input 1"):
        net.layer("relu0").input(1)
    with pytest.raises(ModelError, match="has no output 1"):
        net.layer("relu0").output(1)


def test_optional_inputs_may_stay_unconnected() -> None:
    net, x = one_input()
    net.add_output("y", net.add_layer("Clip", x, None, np.float32(1)))
    np.testing.assert_array_equal(run(net, X)[0], np.minimum(X, 1))


def test_ops_with_several_outputs_have_so_many_slots() -> None:
    net, x = one_input()
    parts = net.add_layer("Split", x, axis=1, num_outputs=3)
    by_sizes = net.add_layer("Split", x, np.array([1, 1, 2, 2]), axis=1)
    top = net.add_layer("TopK", x, np.array([2])) if "TopK" in _types() else None
    assert (len(parts.outputs), len(by_sizes.outputs)) == (3, 4)
    assert top is None or len(top.outputs) == 2
    net.add_output("last", parts.output(2))
    net.add_output("third", by_sizes.output(2))
    last, third = run(net, X)
    np.testing.assert_array_equal(last, X[:, 4:])
    np.testing.assert_array_equal(third, X[:, 2:4])
    with pytest.raises(ModelError, match="has no output 3"):
        parts.output(3)
    with pytest.raises(ModelError, match="has 3 outputs"):
        net.add_layer("Relu", parts)


def _types() -> set[str]:
    from weft.core.op import op_types

    return set(op_types())


def test_a_split_is_told_how_many_parts_were_asked_for() -> None:
    net, x = one_input()
    parts = net.add_layer("Split", x, axis=1)
    net.add_output("left", parts.output(0))
    net.add_output("right", parts.output(1))
    np.testing.assert_array_equal(run(net, X)[1], X[:, 3:])
    assert parts.completed_op == Split(axis=1, outputs=2)


def test_an_optional_output_is_made_when_it_is_asked_for() -> None:
    net, x = one_input(1, 1, 4, 4)
    pool = net.add_layer("MaxPool", x, kernel_shape=(2, 2), strides=[2, 2])
    assert len(pool.outputs) == 1
    net.add_output("y", pool.output(0))
    net.add_output("where", pool.output(1))
    y, where = run(net, np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4))
    np.testing.assert_array_equal(y.reshape(-1), where.reshape(-1))
    with pytest.raises(ModelError, match="has no output 2"):
        pool.output(2)


def test_attributes_may_be_lists_names_of_types_and_numbers_of_numpy() -> None:
    net, x = one_input()
    turned = net.add_layer("Transpose", x, perm=[np.int64(1), 0])
    net.add_output("y", net.add_layer("Cast", net.add_layer("LeakyRelu", turned, alpha=1), to="float64"))
    net.add_output("z", net.add_layer("Cast", x, to=11))
    y, z = run(net, X)
    assert y.dtype == z.dtype == np.float64
    np.testing.assert_array_equal(y, X.T)


@dataclass(frozen=True)
class Twice(Op):
    """A user's op that nobody else knows: each input doubled."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return tuple(i for i in inputs if i)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return tuple(2 * i for i in inputs if i is not None)


def test_an_op_of_the_user_has_what_is_connected_and_what_it_infers() -> None:
    net, x = one_input()
    twice = net.add_layer(Twice(), x, x)
    assert len(twice.inputs) == len(twice.outputs) == 2
    net.add_output("y", twice.output(1))
    np.testing.assert_array_equal(run(net, X)[0], 2 * X)
    with pytest.raises(ModelError, match="has no output 2"):
        twice.output(2)


# -- what is known before a run ------------------------------------------------------------------------------


def shape_of(slot: Any) -> tuple[int | str, ...]:
    spec = slot.output().spec
    assert spec is not None
    return tuple(spec.shape)


def test_specs_are_known_before_a_run_with_symbols_in_them() -> None:
    net, x = one_input("n", 3, "h", "w")
    w = np.zeros((8, 3, 3, 3), np.float32)
    same = net.add_layer("Conv", x, w, pads=(1, 1, 1, 1))
    half = net.add_layer("MaxPool", same, kernel_shape=(2, 2), strides=(2, 2), name="half")
    assert shape_of(same) == ("n", 8, "h", "w")
    assert shape_of(half) == ("n", 8, "half.2", "half.3")
    assert shape_of(net.add_layer("Relu", half)) == ("n", 8, "half.2", "half.3")
    assert shape_of(net.add_layer("Concat", half, half, axis=1)) == ("n", 16, "half.2", "half.3")
    lines = net.add_layer("Reshape", same, np.array([0, 8, -1]))
    assert shape_of(lines)[:2] == ("n", 8)
    assert shape_of(net.add_layer("Flatten", net.add_layer("GlobalAveragePool", same))) == ("n", 8)
    net.inputs["x"].spec = TensorSpec((1, 3, 4, 4), weft.DType.FLOAT32)
    assert shape_of(half) == (1, 8, 2, 2)


def test_shapes_that_are_computed_are_followed() -> None:
    net, x = one_input("n", 4, 6)
    n = net.add_layer("Gather", net.add_layer("Shape", x), np.array([0]))
    shape = net.add_layer("Concat", n, np.array([24]), axis=0)
    assert shape_of(net.add_layer("Reshape", x, shape)) == ("n", 24)


def test_what_cannot_be_known_is_none() -> None:
    net, x = one_input("n", 4)
    shape = net.add_input("shape", (2,), "int64")
    assert net.add_layer("Reshape", x, shape).output().spec is None
    assert net.add_layer("Relu").output().spec is None


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


HUNDRED = np.float32(100)


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


# -- what is refused -----------------------------------------------------------------------------------------


def shown(net: weft.Network, x: Any) -> weft.Network:
    """Return the network with an output y."""
    net.add_output("y", net.add_layer("Exp", x))
    return net


REFUSED: dict[str, tuple[Callable[[weft.Network, Any], object], str]] = {
    "unknown op": (lambda n, x: n.add_layer("Reul", x), r"there is no op 'Reul': did you mean 'Relu'"),
    "other case": (lambda n, x: n.add_layer("softmax", x), r"did you mean 'Softmax'"),
    "ONNX only": (lambda n, x: n.add_layer("Loop", x), r"Weft has no op 'Loop'(?s:.)*ONNX defines it"),
    "attributes": (
        lambda n, x: n.add_layer("Conv", x, stride=(2, 2), groups=1),
        r"no attribute 'stride': did you mean 'strides'\?; there is no attribute 'groups': did you mean 'group'"
        r"(?s:.)*its attributes are",
    ),
    "missing": (lambda n, x: n.add_layer("Concat", x), r"attribute 'axis' is missing"),
    "kind": (lambda n, x: n.add_layer("Concat", x, axis="0"), r"attribute 'axis' = 0: it must be a int"),
    "too many": (lambda n, x: n.add_layer("Relu", x, x), r"has no input 1"),
    "no label": (lambda n, x: n.add_layer("Gemm").input("D"), r"has no input 'D'(?s:.)*A, B, C"),
    "no op": (lambda n, x: n.add_layer(3), r"3 is no op"),  # type: ignore[arg-type]
    "twice": (lambda n, x: n.add_layer(LeakyRelu(), x, alpha=1), r"given as an object(?s:.)*alpha"),
    "name": (lambda n, x: n.add_input("x", (1,)), r"'x' cannot be the name(?s:.)*an input"),
    "empty name": (lambda n, x: n.add_input("", (1,)), r"a name is a text"),
    "shape": (lambda n, x: n.add_input("y", (-1, 2)), r"is not a shape for input 'y'"),
    "type": (lambda n, x: n.add_input("y", (1,), "quaternion"), r"'quaternion' is not supported"),
    "array": (lambda n, x: n.add_constant(["a"]), r"is not supported"),
    "near layer": (
        lambda n, x: (n.add_layer("Relu", x, name="conv1"), n.layer("conv2")),
        r"no layer 'conv2': did you mean 'conv1'",
    ),
    "input": (lambda n, x: n.layer("x"), r"it is an input"),
    "no output": (lambda n, x: n.remove_output("y"), r"no output 'y'"),
    "output twice": (lambda n, x: shown(shown(n, x), x), r"an output 'y' already"),
    "output named": (
        lambda n, x: n.add_output("x", n.add_layer("Relu", x)),
        r"cannot be called 'x'(?s:.)*the name of an input",
    ),
    "constant named": (
        lambda n, x: shown(n, x).add_constant(HUNDRED, "y"),
        r"an output of network 'net' has that name",
    ),
    "other network": (
        lambda n, x: weft.Network("other").add_layer("Relu", x),
        r"output 0 of 'x' belongs to another network(?s:.)*of network 'net'",
    ),
    "no slot": (lambda n, x: n.add_output("y", "relu0"), r"is no output slot"),  # type: ignore[arg-type]
    "before": (lambda n, x: n.insert_before(n.add_layer("Relu").input(), "Neg"), r"it has no source"),
    "join": (lambda n, x: n.add_layer("Relu").remove(join=True), r"its first input has no source"),
    "inputs of inputs": (lambda n, x: x.input(0), r"'x' has no inputs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_with_a_reason(name: str) -> None:
    act, message = REFUSED[name]
    net, x = one_input()
    with pytest.raises(ModelError, match=message):
        act(net, x)


def test_a_layer_that_is_refused_leaves_nothing_behind() -> None:
    net, x = one_input()
    _, foreign = one_input()
    for sources in ((HUNDRED, foreign), (HUNDRED, ["a"]), (HUNDRED, x, x)):
        with pytest.raises(ModelError):
            net.add_layer("Add", *sources)
    assert not net.layers and not net.constants and not x.output().targets


def test_all_problems_are_told_together() -> None:
    net, x = one_input()
    a = net.add_layer("Add", x, name="a")
    a.input(1).connect(net.add_layer("Relu", a, name="b"))
    net.add_layer("MatMul", x, x, name="wrong")
    net.add_layer("Where", name="empty")
    concat = net.add_layer("Concat", x, axis=0, name="gap")
    concat.input(2).connect(x)
    gone = net.add_layer("Neg", x)
    net.add_output("y", gone)
    gone.remove()
    with pytest.raises(ModelError) as caught:
        weft.load(net, "cpu")
    message = str(caught.value)
    assert "network 'net' is not complete: 7 problem(s)" in message
    for part in (
        "the graph has a cycle: these nodes wait for each other: 'a', 'b'",
        "'wrong' (MatMul) does not fit its inputs (output 0 of 'x': float32[2x6]",
        "input 0 (condition) of 'empty'",
        "input 2 (Y) of 'empty'",
        "input 1 (inputs) of 'gap'",
        "output 'y' shows nothing",
    ):
        assert part in message, message


def test_a_network_without_outputs_is_refused() -> None:
    net, x = one_input()
    net.add_layer("Relu", x)
    with pytest.raises(ModelError, match="it has no outputs"):
        net.to_graph()


def test_a_network_tells_what_it_is() -> None:
    net, x = one_input("n", 6)
    add = net.add_layer("Add", x, name="sum")
    assert [str(layer) for layer in (x, add)] == ["<an input 'x'>", "<Add layer 'sum'>"]
    assert repr(add.input(1)) == "input 1 of 'sum'"
    assert "sum = Add()(x, -)  -> ?" in str(net)


# -- any graph -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
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
