"""Model-local functions: their calls are expanded, and endless ones are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser

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


BODIES = {
    "a float": "<alpha: float = 0.25> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }",
    "an int": """<back: int = 1> (a) => (b) {
        n = Constant <value = int64 {1}> () b = CumSum <reverse: int = @back> (a, n) }""",
    "ints": "<perm: ints = [0, 1]> (a) => (b) { b = Transpose <perm: ints = @perm> (a) }",
    "floats": "<v: floats = [1.5, 2.5, 3.5]> (a) => (b) { c = Constant <value_floats: floats = @v> () b = Mul (a, c) }",
    "a text": """<mode: string = "reflect"> (a) => (b) {
        p = Constant <value_ints = [0, 1, 0, 1]> () b = Pad <mode: string = @mode> (a, p) }""",
    "a tensor": "<t: tensor = float[3] {3, 4, 5}> (a) => (b) { c = Constant <value: tensor = @t> () b = Add (a, c) }",
    "forwarded": "<outer: float = 0.75> (a) => (b) { b = local.inner <slope: float = @outer> (a) }",
    "forwarded, no default of its own": "<outer> (a) => (b) { b = local.inner <slope: float = @outer> (a) }",
    "no default at all": "<alpha> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }",
    "in the bodies of an If": """<alpha: float = 0.5> (a) => (b) {
        m = ReduceMax <keepdims = 0> (a) z = Constant <value = float {0}> () yes = Greater (m, z)
        b = If (yes) <
          then_branch = t () => (c) { c = LeakyRelu <alpha: float = @alpha> (a) },
          else_branch = e () => (c) { c = Elu <alpha: float = @alpha> (a) }> }""",
    "in the body of a Loop": """<alpha: float = 0.5> (a) => (b) {
        k = Constant <value = int64 {2}> () yes = Constant <value = bool {1}> ()
        b = Loop (k, yes, a) <body = l (int64 i, bool go, float[2, 3] v) => (bool on, float[2, 3] w) {
          on = Identity (go) w = local.inner <slope: float = @alpha> (v) }> }""",
}
"""Functions of `a` that hand an attribute on. The call may leave the attribute out."""
INNER = "<slope: float = 0.125> (a) => (b) { b = LeakyRelu <alpha: float = @slope> (a) }"


@pytest.mark.parametrize("name", BODIES)
def test_an_attribute_that_a_call_leaves_out_has_the_default_of_the_innermost_function(name: str) -> None:
    head = '<ir_version: 10, opset_import: ["" : 17, "local" : 1]> g (float[2, 3] x) => (float[k, l] y)'
    model = parser.parse_model(
        f"""{head} {{ y = local.f (x) }}
        <opset_import: ["" : 17, "local" : 1], domain: "local"> f {BODIES[name]}
        <opset_import: ["" : 17], domain: "local"> inner {INNER}"""
    )
    (expected,) = run_onnxruntime(model, X)
    for device in ("cpu", "opencl"):
        with weft.load(model, device) as session:
            np.testing.assert_allclose(session.run(X)[0], expected, 1e-6)


def test_what_a_call_gives_replaces_the_default() -> None:
    leaky = node("LeakyRelu", "a", "b")
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    local = function("f", [leaky])
    local.attribute_proto.append(helper.make_attribute("slope", 0.25))
    nodes = [call("f", "x", "v"), call("f", "v", "y", slope=0.5)]
    expected = np.where(X["x"] < 0, X["x"] / 8, X["x"])
    np.testing.assert_array_equal(run_graph(load(model_of(nodes, local)), X)[0], expected)


def test_a_function_may_give_back_what_it_takes() -> None:
    both = helper.make_function(LOCAL, "f", ["a"], ["a", "b"], [node("Neg", "a", "b")], [helper.make_opsetid("", 17)])
    model = model_of([call("f", "x", "u v"), node("Sub", "u v", "y")], both)
    np.testing.assert_array_equal(run_graph(load(model), X)[0], 2 * X["x"])


@pytest.mark.parametrize(
    ("body", "opset", "expected"),
    [
        ([node("Softmax", "a", "b", axis=0)], 12, np.exp(X["x"]) / np.exp(X["x"]).sum()),
        ([node("ReduceSum", "a", "b", axes=[0], keepdims=0)], 11, X["x"].sum(0)),
        ([node("Pad", "a", "b", pads=[0, 1, 0, 0])], 7, np.pad(X["x"], [(0, 0), (1, 0)])),
    ],
    ids=["a meaning", "an attribute", "the oldest"],
)
def test_nodes_of_a_function_mean_what_the_opset_of_the_function_says(
    body: list[NodeProto], opset: int, expected: Array
) -> None:
    model = model_of([call("f")], function("f", body, opset=opset))
    np.testing.assert_allclose(run_graph(load(model), X)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("opset", [6, 99])
def test_a_function_of_an_opset_that_weft_does_not_know_is_refused(opset: int) -> None:
    with pytest.raises(ModelError, match=f"opset {opset}") as caught:
        load(model_of([call("f")], function("f", [node("Relu", "a", "b")], opset=opset)))
    assert "local.f" in str(caught.value)


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
