"""Model-local functions: their calls are expanded, and endless ones are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import weft
from tests.helpers.onnx_models import make_model, node, run_graph, run_onnxruntime
from weft.core.graph.layout import Array
from weft.errors import ModelError, UnsupportedOps
from weft.frontends.onnx import load

LOCAL = "local"
X = {"x": np.array([[-1, 0, 1], [2, -3, 4]], np.float32)}


def call(name: str, inputs: str = "x", outputs: str = "y", **attributes: object) -> NodeProto:
    """Return a call of a function."""
    return node(name, inputs, outputs, domain=LOCAL, **attributes)


def function(
    name: str, nodes: Sequence[NodeProto], attributes: Sequence[str] = (), opset: int = 17
) -> FunctionProto:
    """Return a function from `a` to `b`."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(LOCAL, 1)]
    return helper.make_function(LOCAL, name, ["a"], ["b"], list(nodes), imports, list(attributes))


def model_of(
    nodes: Sequence[NodeProto], *functions: FunctionProto, constants: dict[str, Array] | None = None
) -> ModelProto:
    """Return a model with functions."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(LOCAL, 1)]
    return make_model(nodes, constants=constants, functions=functions, opset_imports=imports)


def test_calls_are_expanded_and_compute_what_onnxruntime_computes() -> None:
    inner = function("inner", [node("Relu", "a", "t"), node("Neg", "t", "b")])
    outer = function("outer", [call("inner", "a", "t"), node("Add", "t a", "b")])
    nodes = [call("outer", "x", "v"), call("outer", "v", "u"), node("Mul", "u w", "y")]
    model = model_of(nodes, inner, outer, constants={"w": np.array([1, 2, 3], np.float32)})
    graph = load(model)
    assert [n.op.type for n in graph] == ["Relu", "Neg", "Add"] * 2 + ["Mul"]
    np.testing.assert_array_equal(run_graph(graph, X)[0], run_onnxruntime(model, X)[0])
    assert len({n.name for n in graph}) == 7


def test_attributes_are_passed() -> None:
    leaky = node("LeakyRelu", "a", "b")
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    model = model_of([call("f", slope=0.5)], function("f", [leaky], ["slope"]))
    np.testing.assert_array_equal(run_graph(load(model), X)[0], np.where(X["x"] < 0, X["x"] / 2, X["x"]))


def test_names_inside_do_not_collide_with_weights() -> None:
    body = [node("Relu", "a", "w"), node("Neg", "w", "b")]
    model = model_of(
        [call("f", "x", "v"), node("Mul", "v w", "y")],
        function("f", body),
        constants={"w": np.array([2], np.float32)},
    )
    np.testing.assert_array_equal(run_graph(load(model), X)[0], -2 * np.maximum(X["x"], 0))


def test_a_function_of_another_opset_is_lifted() -> None:
    body = [node("Relu", "a", "b")]
    np.testing.assert_array_equal(
        run_graph(load(model_of([call("f")], function("f", body, opset=13))), X)[0], np.maximum(X["x"], 0)
    )


def test_functions_without_end_are_refused() -> None:
    itself = function("f", [call("f", "a", "b")])
    with pytest.raises(ModelError, match="without end") as caught:
        load(model_of([call("f")], itself))
    assert "'local.f' -> 'local.f'" in str(caught.value)
    pair = function("f", [call("g", "a", "b")]), function("g", [call("f", "a", "b")])
    with pytest.raises(ModelError, match="without end"):
        load(model_of([call("f")], *pair))


def test_functions_that_explode_are_refused() -> None:
    levels = [function("f0", [node("Relu", "a", "b")])]
    for k in range(1, 40):
        levels.append(function(f"f{k}", [call(f"f{k - 1}", "a", "t"), call(f"f{k - 1}", "t", "b")]))
    with pytest.raises(ModelError, match="limit 'nodes'") as caught:
        load(model_of([call("f39")], *levels))
    assert "549,755,813,888" in caught.value.why and "250,000" in caught.value.why


def test_functions_that_are_too_deep_are_refused() -> None:
    chain = [function("f0", [node("Relu", "a", "b")])]
    chain += [function(f"f{k}", [call(f"f{k - 1}", "a", "b")]) for k in range(1, 3000)]
    with pytest.raises(ModelError, match="3000 levels"):
        load(model_of([call("f2999")], *chain))


def test_two_functions_of_one_name() -> None:
    twin = function("f", [node("Relu", "a", "b")])
    with pytest.raises(ModelError, match="have one name"):
        load(model_of([call("f")], twin, twin))


def test_a_missing_function_is_an_unsupported_op() -> None:
    with pytest.raises(UnsupportedOps, match="domain 'local', opset 1: no op of that domain"):
        load(model_of([call("g")], function("f", [node("Relu", "a", "b")])))


@pytest.mark.parametrize(
    "wrong", [call("f", "x x x"), call("f", "x", "y z u"), call("f", ""), call("f", "_", "_")]
)
def test_calls_with_the_wrong_number_of_values(wrong: NodeProto) -> None:
    with pytest.raises(ModelError):
        load(model_of([wrong, node("Relu", "x", "out")], function("f", [node("Relu", "a", "b")])))


def test_unused_functions_do_not_matter() -> None:
    assert (
        load(model_of([node("Relu")], function("f", [node("Nonsense", "a", "b")]))).nodes[0].op.type == "Relu"
    )


# -- ops that ONNX defines by others ----------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [18, 19, 21, 25])
def test_an_op_that_weft_lacks_is_taken_apart_as_onnx_defines_it(opset: int) -> None:
    """The body is of opset 18 and is lifted to that of the model; it depends on the node's attributes."""
    crop = node("CenterCropPad", "x size", "y", axes=[1])
    model = make_model([crop], constants={"size": np.array([5])}, opset=opset)
    with weft.load(model, "cpu") as session:
        np.testing.assert_array_equal(session.run(X)[0], np.pad(X["x"], [(0, 0), (1, 1)]))


def test_a_body_that_needs_another_body_is_taken_apart_to_the_end() -> None:
    nodes = [node("SoftmaxCrossEntropyLoss", "x labels", "y", reduction="none")]
    model = make_model(nodes, constants={"labels": np.array([1, 2])}, opset=21)
    graph = load(model)
    assert "NegativeLogLikelihoodLoss" not in {n.op.type for n in graph}
    shifted = X["x"] - np.log(np.exp(X["x"]).sum(1, keepdims=True))
    with weft.load(model, "cpu") as session:
        np.testing.assert_allclose(session.run(X)[0], -shifted[[0, 1], [1, 2]], rtol=1e-6)


@pytest.mark.parametrize(
    ("window", "terms"),
    [("HannWindow", (0.5, 0.5, 0)), ("HammingWindow", (25 / 46, 21 / 46, 0)), ("BlackmanWindow", (0.42, 0.5, 0.08))],
)
def test_windows_of_float64_are_computed_in_it(window: str, terms: tuple[float, float, float]) -> None:
    """The bodies compute in float32, with constants of float32, whatever type comes out."""
    made = node(window, "size", "y", output_datatype=TensorProto.DOUBLE, periodic=0)
    turns = 2 * np.pi * np.arange(10) / 9
    expected = terms[0] - terms[1] * np.cos(turns) + terms[2] * np.cos(2 * turns)
    with weft.load(make_model([made], constants={"size": np.array(10)}), "cpu") as session:
        np.testing.assert_allclose(session.run(X)[0], expected, rtol=0, atol=1e-15)


def test_a_body_stands_in_a_function_of_the_model_too() -> None:
    loss = node("NegativeLogLikelihoodLoss", "a labels", "b", reduction="sum")
    labels = node("Constant", "", "labels", value=numpy_helper.from_array(np.array([2, 0])))
    model = model_of([call("f")], function("f", [labels, loss]))
    np.testing.assert_array_equal(run_graph(load(model), X)[0], -(X["x"][0, 2] + X["x"][1, 0]))
