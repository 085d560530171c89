"""Broken and hostile ONNX files, and files that are not ONNX: each kind has an error of its own."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import weft
from tests.helpers.onnx_models import make_model, node
from weft.core.graph.graph import infer_shapes
from weft.core.graph.layout import Array
from weft.errors import ModelError, UnsupportedOps
from weft.frontends.onnx import load
from weft.frontends.onnx.files import LARGEST_FILE
from weft.frontends.onnx.protobuf import varint
from weft.frontends.onnx.tensors import HIGHEST_RANK


def refused(model: object, *parts: str) -> None:
    """Check that loading is refused with a message that has all these parts."""
    with pytest.raises(ModelError) as caught:
        load(model)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)


def plain() -> ModelProto:
    """Return a model that is as it should be."""
    return make_model(
        [node("Add", "x w", "a"), node("Relu", "a", "y")], constants={"w": np.ones(3, np.float32)}
    )


def changed(change: Callable[[ModelProto], Any]) -> ModelProto:
    """Return a plain model after a change."""
    model = plain()
    change(model)
    return model


def test_a_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "no.onnx", "the model file cannot be read", "no.onnx", "No such file")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    refused(tmp_path, "this is a folder without a model")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")
    refused("", "not a path")
    refused("a\0b", "not a path")
    refused(tmp_path / ("a" * 5000), "cannot be read", "File name too long")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch(0)
    refused(tmp_path / "m.onnx", "Permission denied")


@pytest.mark.parametrize("thing", [None, 3, [1], np.zeros(3), onnx.GraphProto()])
def test_things_that_are_no_models(thing: object) -> None:
    refused(thing, f"cannot load a model from {type(thing).__name__}", "a model is a path, the bytes")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with open(path, "wb") as file:
        file.truncate(LARGEST_FILE + 1)
    tracemalloc.start()
    try:
        refused(path, "too large", "2,147,483,648 bytes", "external data")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_bytes_that_are_too_many_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.frontends.onnx.reading.LARGEST_FILE", 10)
    refused(plain().SerializeToString(), "the model is too large", "protobuf reads at most 10")


@pytest.mark.parametrize("text", [b"\xff" * 100, b"\0" * 100, np.random.default_rng(0).bytes(4096)])
def test_bytes_that_are_no_onnx(text: bytes) -> None:
    refused(text, "Was it downloaded completely")


def test_every_truncation_of_a_model() -> None:
    """A file that lacks its end is refused, unless it ends between two parts and the rest is a whole model."""
    model = plain()
    data, without = model.SerializeToString(), plain()
    without.ClearField("opset_import")
    graph = len(without.SerializeToString())  # as protobuf writes them, the opsets come last
    for end in range(len(data)):
        why = "Was it downloaded completely" if end < graph or end > graph else "which ONNX opset it uses"
        refused(data[:end], why if end else "the model has no bytes")


@pytest.mark.parametrize("name", ["Relu", "y", "w", "x", "test"])
def test_names_that_are_no_text(name: str) -> None:
    data = plain().SerializeToString().replace(name.encode(), b"\xff" * len(name))
    refused(data, "is not UTF-8 text", "Was it downloaded completely")


def test_truncation_in_the_middle_of_the_graph() -> None:
    data = plain().SerializeToString()
    refused(data[: len(data) // 2], "cannot be parsed", "Was it downloaded completely")


def test_a_message_of_another_kind() -> None:
    refused(numpy_helper.from_array(np.ones(3, np.float32), "w").SerializeToString(), "Was it downloaded completely")


@pytest.mark.parametrize("version", [2, onnx.IR_VERSION + 1, -1, 2**62])
def test_other_file_format_versions(version: int) -> None:
    refused(changed(lambda m: setattr(m, "ir_version", version)), f"(ir_version) {version} is not supported")


@pytest.mark.parametrize("version", range(3, onnx.IR_VERSION + 1))
def test_known_file_format_versions(version: int) -> None:
    assert load(changed(lambda m: setattr(m, "ir_version", version)))


def test_headers_that_lack_something() -> None:
    refused(changed(lambda m: m.ClearField("ir_version")), "this is not an ONNX model", "ir_version")
    refused(changed(lambda m: m.ClearField("graph")), "this is not an ONNX model", "no graph")
    refused(changed(lambda m: m.ClearField("opset_import")), "does not say which ONNX opset it uses")
    other = [helper.make_opsetid("ai.onnx.ml", 3)]
    refused(make_model([node("Relu")], opset_imports=other), "those there: 'ai.onnx.ml'")
    two = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx", 17)]
    refused(make_model([node("Relu")], opset_imports=two), "two opsets of one domain", "[13, 17]")


def test_graphs_that_lack_something() -> None:
    refused(changed(lambda m: m.graph.ClearField("node")), "'y' is made by nothing")
    refused(changed(lambda m: m.graph.ClearField("output")), "the graph is not well formed", "it has no outputs")
    refused(
        changed(lambda m: m.graph.ClearField("initializer")),
        "that nothing produces",
        "'Add_0' (Add) reads 'w'",
    )
    refused(changed(lambda m: m.graph.ClearField("input")), "that nothing produces", "reads 'x'")
    refused(changed(lambda m: m.graph.output.add(name="z")), "made by nothing", "'z'")
    refused(changed(lambda m: m.graph.output.add()), "has no name")
    refused(changed(lambda m: m.graph.initializer.add(data_type=1, dims=[0])), "has no name")


def test_a_cycle() -> None:
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")]
    refused(make_model(nodes), "cycle", "'Add_0', 'Relu_1', 'Relu_2'")
    refused(make_model([node("Add", "x y")]), "cycle", "'Add_0'")


def test_values_that_are_made_twice() -> None:
    refused(make_model([node("Relu"), node("Neg")]), "'y' is made 2 times by nodes")
    refused(make_model([node("Relu", "x", "x")]), "'x' is given and also made by a node")
    weights = {"y": np.ones(3, np.float32)}
    refused(make_model([node("Relu")], constants=weights), "'y' is given and also made by a node")
    refused(make_model([node("Split", "x", "y y", axis=0)]), "'y' is made 2 times by nodes")
    refused(make_model([node("Constant", "", "y", value_int=1), node("Relu")]), "'y' is made 2 times by nodes")


def test_names_that_are_given_twice_are_told_at_once() -> None:
    def twice(model: ModelProto) -> None:
        graph = model.graph
        graph.input.append(graph.input[0])
        graph.initializer.append(graph.initializer[0])
        graph.node.add(op_type="Softmax", input=["a"], output=["a"])
        for value in (1, 2):
            graph.node[-1].attribute.add(name="axis", type=onnx.AttributeProto.INT, i=value)

    said = "attribute 'axis' of node 'Softmax_2' is there 2 times"
    refused(changed(twice), "input 'x' is there 2 times", "'a' is made 2 times", said)


def test_an_input_with_a_default_is_there_once() -> None:
    def default(model: ModelProto) -> None:
        model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (3,)))

    assert load(changed(default)).inputs == ["x"]

    def defaults(model: ModelProto) -> None:
        default(model)
        default(model)

    refused(changed(defaults), "input 'w' is there 2 times")


def test_names_in_functions_are_given_once() -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [node("Relu", "a", "b"), node("Neg", "a", "b")]
    function = helper.make_function("local", "f", ["a"], ["b", "b"], body, imports, ["k", "k"])
    model = make_model([node("f", domain="local")], functions=[function], opset_imports=imports)
    refused(
        model,
        "'b' is there 2 times as output of 'f'",
        "'k' is there 2 times as attribute of 'f'",
        "'b' is there 2 times as origin of a value of 'f'",
    )


@pytest.mark.parametrize(
    ("wrong", "flag", "value"),
    [
        (node("MaxPool", kernel_shape=[2], ceil_mode=-1), "ceil_mode", -1),
        (node("AveragePool", kernel_shape=[2], ceil_mode=255), "ceil_mode", 255),
        (node("AveragePool", kernel_shape=[2], count_include_pad=2), "count_include_pad", 2),
        (node("MaxPool", kernel_shape=[2], storage_order=3), "storage_order", 3),
        (node("ReduceMean", keepdims=16), "keepdims", 16),
        (node("ReduceSum", noop_with_empty_axes=-1), "noop_with_empty_axes", -1),
        (node("ArgMax", keepdims=2), "keepdims", 2),
        (node("ArgMin", select_last_index=7), "select_last_index", 7),
        (node("Gemm", "x x", transA=3, transB=1), "transA", 3),
        (node("Gemm", "x x", transB=-1), "transB", -1),
        (node("CumSum", "x w", exclusive=2), "exclusive", 2),
        (node("CumSum", "x w", reverse=-2), "reverse", -2),
        (node("Mod", "x x", fmod=2), "fmod", 2),
        (node("IsInf", detect_negative=2), "detect_negative", 2),
        (node("Reshape", "x w", allowzero=5), "allowzero", 5),
        (node("Resize", "x _ w", exclude_outside=9), "exclude_outside", 9),
        (node("Cast", to=1, saturate=4), "saturate", 4),
    ],
)
def test_flags_are_no_or_yes(wrong: NodeProto, flag: str, value: int) -> None:
    model = make_model([wrong], {"x": (TensorProto.FLOAT, (1, 3, 8))}, constants={"w": np.array([1])}, opset=19)
    refused(model, f"attribute {flag!r} is {value}; it must be 0 or 1")


def test_all_flags_are_told_at_once() -> None:
    nodes = [node("Gemm", "x x", "a", transA=3, transB=-1), node("ReduceMax", "a", "y", keepdims=2)]
    refused(make_model(nodes), "2 of the 2 nodes", "'transA' is 3", "'transB' is -1", "'keepdims' is 2")


def declared(*values: onnx.ValueInfoProto, dims: tuple[int | str, ...] = (2, 3)) -> ModelProto:
    """Return a model of an input x and outputs y, of its shape, and n, their number, so declared."""
    nodes = [node("Relu"), node("Size", "x", "n")]
    model = make_model(nodes, {"x": (TensorProto.FLOAT, dims)}, ("y", "n"))
    for value in values:
        next(o for o in model.graph.output if o.name == value.name).CopyFrom(value)
    return model


@pytest.mark.parametrize("dims", [(2, 3), ("n", 3)])
def test_outputs_of_another_type_are_refused_all_at_once(dims: tuple[int | str, ...]) -> None:
    wrong = [helper.make_tensor_value_info("y", TensorProto.INT64, (2, 3))]
    wrong += [helper.make_tensor_value_info("n", TensorProto.FLOAT, ())]
    refused(
        declared(*wrong, dims=dims),
        "'y' is declared as int64[2x3] and is float32",
        "'n' is declared as float32[] and is int64",
    )
    table = helper.make_value_info("y", helper.make_map_type_proto(TensorProto.INT64, wrong[0].type))
    refused(declared(table, dims=dims), "it is declared as map")


@pytest.mark.parametrize("dims", [(2, 3), ("n", 3), (-1, -1)])
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_outputs_of_another_shape_run_with_a_warning(
    dims: tuple[int | str, ...], device: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3))]
    wrong += [helper.make_tensor_value_info("n", TensorProto.INT64, (1,))]
    with weft.load(declared(*wrong, dims=dims), device) as session:
        for rows in (2, 4) if dims != (2, 3) else (2, 2):
            x = np.full((rows, 3), -1, np.float32)
            y, n = session.run(x)
            np.testing.assert_array_equal(y, np.maximum(x, 0))
            assert n == x.size and n.shape == ()
        notes = session.report.notes
    said = f"output 'y' is declared as float32[1x3] and has the shape [{rows}, 3]"
    assert said in notes and "output 'n' is declared as int64[1] and has the shape []" in notes
    told = [record.message for record in caplog.records if "is declared as" in record.message]
    assert len(told) == 2 and told[0].endswith("has the shape [2, 3]")


def test_the_shape_of_an_output_of_a_later_stage_is_noted_too(caplog: pytest.LogCaptureFixture) -> None:
    """Sizes follow from values."""
    model = make_model([node("NonZero", "x", "places"), node("Neg", "places")], {"x": (TensorProto.FLOAT, ("n", 3))})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, (1, "k")))
    with weft.load(model, "cpu") as session:
        np.testing.assert_array_equal(session.run(np.eye(2, 3, dtype=np.float32))[0], [[0, -1], [0, -1]])
    assert "output 'y' is declared as int64[1x?] and has the shape [2, 2]" in caplog.messages


def test_what_an_output_leaves_open_may_be_anything() -> None:
    some = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("rows", None))
    unknown = helper.make_tensor_value_info("y", TensorProto.FLOAT, (-1, 3))
    for value in (some, unknown, helper.make_value_info("y", onnx.TypeProto())):
        with weft.load(declared(value), "cpu") as session:
            assert session.run(np.ones((2, 3), np.float32))[0].shape == (2, 3)


def input_type(change: Callable[[onnx.TypeProto], Any], *parts: str) -> None:
    """Check that a model whose input has a changed type is refused."""
    refused(changed(lambda m: change(m.graph.input[0].type)), "1 of the model's inputs", "input 'x'", *parts)


def test_inputs_of_other_types() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    types = {
        "map": helper.make_map_type_proto(TensorProto.INT64, tensor),
        "sparse_tensor": helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2]),
    }
    for kind, declared in types.items():
        input_type(lambda t, declared=declared: t.CopyFrom(declared), f"declared as {kind}")  # type: ignore[misc]
    input_type(lambda t: t.Clear(), "its type is not declared")
    input_type(lambda t: setattr(t.tensor_type, "elem_type", TensorProto.STRING), "STRING is not")
    input_type(lambda t: setattr(t.tensor_type, "elem_type", 0), "UNDEFINED is not supported")
    input_type(lambda t: setattr(t.tensor_type, "elem_type", 99), "99 is not supported")


def test_inputs_of_absurd_shapes() -> None:
    for size in (2**50, 2**63 - 1):
        input_type(lambda t, s=size: setattr(t.tensor_type.shape.dim[0], "dim_value", s), "no sense")  # type: ignore[misc]
    many = [onnx.TensorShapeProto.Dimension(dim_value=1)] * (HIGHEST_RANK + 1)
    input_type(lambda t: t.tensor_type.shape.dim.extend(many), "too many dimensions")
    large = [onnx.TensorShapeProto.Dimension(dim_value=2**20)] * 3
    input_type(lambda t: t.tensor_type.shape.dim.extend(large), "no sense")


def test_all_bad_inputs_are_reported_at_once() -> None:
    kinds = {f"i{k}": (TensorProto.STRING, (2,)) for k in range(30)}
    refused(
        make_model([node("Relu", "i0")], kinds), "30 of the model's inputs", "'i0'", "'i19'", "and 10 more"
    )


def bad_tensor(reason: str, **fields: Any) -> None:
    """Check that a model with that initialiser is refused, and the declared size is not allocated."""
    model = changed(lambda m: m.graph.initializer[0].Clear())
    model.graph.initializer[0].MergeFrom(TensorProto(name="w", **fields))
    tracemalloc.start()
    try:
        refused(model, "1 of the model's constants", "tensor 'w'", reason)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_initialisers_of_other_types() -> None:
    for name in ("STRING", "UNDEFINED"):
        bad_tensor(
            f"{name} is not supported", data_type=TensorProto.DataType.Value(name), dims=[1], raw_data=b"00"
        )
    bad_tensor("element type 1000 is not supported", data_type=1000)


def test_initialisers_whose_data_does_not_fit() -> None:
    f32 = TensorProto.FLOAT
    bad_tensor("needs 12 bytes, the file has 11", data_type=f32, dims=[3], raw_data=b"0" * 11)
    bad_tensor("needs 12 bytes, the file has 16", data_type=f32, dims=[3], raw_data=b"0" * 16)
    bad_tensor("needs 3 elements, the file has 0", data_type=f32, dims=[3])
    bad_tensor("needs 2 bytes, the file has 3", data_type=TensorProto.INT4, dims=[3], raw_data=b"000")
    bad_tensor("needs 3 bytes, the file has 4", data_type=TensorProto.FLOAT6E2M3, dims=[3], raw_data=b"0000")
    bad_tensor("needs 2 elements, the file has 3", data_type=TensorProto.UINT4, dims=[3], int32_data=[1, 2, 3])
    bad_tensor("needs 4 elements, the file has 2", data_type=TensorProto.COMPLEX64, dims=[2], float_data=[1, 2])
    bad_tensor("needs 3 elements, the file has 2 in float_data", data_type=f32, dims=[3], float_data=[1, 2])
    bad_tensor("float32 is not in int32_data", data_type=f32, dims=[1], int32_data=[1])
    bad_tensor("in float_data and in raw_data", data_type=f32, dims=[1], float_data=[1], raw_data=b"0000")
    bad_tensor("outside of its type", data_type=TensorProto.INT8, dims=[1], int32_data=[200])
    bad_tensor("outside of its type", data_type=TensorProto.UINT8, dims=[1], int32_data=[-1])
    bad_tensor("outside of its type", data_type=TensorProto.FLOAT16, dims=[1], int32_data=[2**16])
    bad_tensor("outside of its type", data_type=TensorProto.UINT32, dims=[1], uint64_data=[2**40])
    bad_tensor("in segments", data_type=f32, dims=[1], raw_data=b"0000", segment=TensorProto.Segment(begin=1))


def test_initialisers_of_absurd_shapes() -> None:
    f32 = TensorProto.FLOAT
    bad_tensor("needs 400000000000 bytes", data_type=f32, dims=[10**11], raw_data=b"0" * 12)
    bad_tensor("needs 100000000000 elements", data_type=f32, dims=[10**11], float_data=[1])
    bad_tensor("makes no sense", data_type=f32, dims=[-1], raw_data=b"0" * 12)
    bad_tensor("makes no sense", data_type=f32, dims=[-3, -1], raw_data=b"0" * 12)
    bad_tensor("makes no sense", data_type=f32, dims=[2**32, 2**32], raw_data=b"0" * 12)
    bad_tensor("makes no sense", data_type=f32, dims=[0, 2**63 - 1])
    bad_tensor("makes no sense", data_type=f32, dims=[0, 2**35, 2**35])
    bad_tensor("too many dimensions", data_type=f32, dims=[1] * 100_000, raw_data=b"0000")


@pytest.mark.parametrize(
    ("places", "dims", "reason"),
    [
        (np.array([3]), [3], "outside of its shape"),
        (np.array([-1]), [3], "outside of its shape"),
        (np.array([[0, 2]]), [3, 2], "outside of its shape"),
        (np.array([0, 1]), [3], "does not say where its values are"),
        (np.array([[0]]), [3, 2], "does not say where its values are"),
        (np.array([0], np.int32), [3], "does not say where its values are"),
        (np.array([0]), [-3], "makes no sense"),
        (np.array([0]), [2**30, 2**10], "limit 'constant_bytes'"),
    ],
)
def test_sparse_tensors_that_make_no_sense(places: Array, dims: list[int], reason: str) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(places), dims)
    constant = node("Constant", "", "s", sparse_value=sparse)
    tracemalloc.start()
    try:
        refused(changed(lambda m: m.graph.sparse_initializer.append(sparse)), reason)
        refused(make_model([constant, node("Relu")]), reason)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("constant", "reason"),
    [
        (node("Constant", "", "y"), "it has 0 values instead of one"),
        (node("Constant", "", "y", value_int=1, value_float=1.0), "it has 2 values instead of one"),
        (node("Constant", "", ""), "it has 0 outputs"),
        (node("Constant", "x", "y", value_int=1), "it has 1 inputs"),
        (helper.make_node("Constant", [], ["y"], value_ints=[1], value=None), ""),
    ],
)
def test_malformed_constant_nodes(constant: NodeProto, reason: str) -> None:
    if not reason:
        del constant.attribute[:]
        constant.attribute.add(name="value", type=onnx.AttributeProto.INT, i=3)
        reason = "attribute 'value' is INT; it must be TENSOR"
    refused(
        make_model([constant, node("Relu", "y", "z")], outputs=("z",)), "1 of the model's constants", reason
    )


def test_malformed_attributes() -> None:
    def attribute(**fields: Any) -> NodeProto:
        made = node("Flatten")
        made.attribute.add(**fields)
        return made

    for wrong, reason in (
        (attribute(name="axis"), "attribute 'axis' is UNDEFINED; it must be INT"),
        (attribute(name="axis", ref_attr_name="k", type=onnx.AttributeProto.INT), "in no function"),
        (attribute(name="other", type=onnx.AttributeProto.GRAPH), "ONNX does not know: 'other'"),
        (node("DepthToSpace", blocksize=2, mode=b"\xff"), "not UTF-8"),
    ):
        refused(make_model([wrong]), reason)
    twice = attribute(name="axis", type=onnx.AttributeProto.INT, i=1)
    twice.attribute.append(twice.attribute[0])
    refused(make_model([twice]), "attribute 'axis' of node 'Flatten_0' is there 2 times")


def test_very_many_nodes_of_one_name_take_no_time() -> None:
    count = 20_000
    names = ["x", *(f"v{k}" for k in range(count - 1)), "y"]
    nodes = [helper.make_node("Relu", [a], [b], name="n") for a, b in pairwise(names)]
    assert len(load(make_model(nodes)).nodes) == count


def test_very_many_unsupported_nodes_and_long_names_make_no_endless_message() -> None:
    nodes = [helper.make_node("Nonsense" * 1000, ["x"], [f"y{k}"], name="n" * 10_000) for k in range(1500)]
    with pytest.raises(UnsupportedOps) as caught:
        load(make_model(nodes, outputs=["y0"]))
    assert len(caught.value.problems) == 1500
    assert len(str(caught.value)) < 10_000


def test_a_deep_chain_of_types_is_followed_without_recursion() -> None:
    count = 5_000
    names = ["x", *(f"v{k}" for k in range(count))]
    nodes = [node("Relu", a, b) for a, b in pairwise(names)]
    nodes.append(node("Clip", names[-1], "y", min=0.5))
    assert len(infer_shapes(load(make_model(nodes, opset=7))).nodes) == count + 1


def test_deep_nesting_of_subgraphs() -> None:
    graph = helper.make_graph([node("Relu", "x", "y")], "g", [], [helper.make_empty_tensor_value_info("y")])
    for _ in range(24):
        inner = node("If", "c", then_branch=graph, else_branch=helper.make_graph([], "e", [], []))
        graph = helper.make_graph([inner], "g", [], [helper.make_empty_tensor_value_info("y")])
    model = make_model(list(graph.node), constants={"c": np.array(True)})
    refused(model, "If_0")
    # The bytes are nested by hand, deeper than protobuf's own limit for the reading of them.
    data = b""
    for _ in range(2000):
        data = (
            b"\x0a"
            + varint(len(b := b"\x2a" + varint(len(data) + 2) + b"\x32" + varint(len(data)) + data))
            + b
        )
    refused(b"\x08\x08\x3a" + varint(len(data)) + data, "cannot be parsed")


def test_messages_say_what_where_why_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(make_model([node("Relu")], opset=6).SerializeToString())
    with pytest.raises(ModelError) as caught:
        load(path)
    error = caught.value
    assert error.what == "ONNX opset 6 is not supported"
    assert error.where == f"{path}, domain 'ai.onnx'"
    assert error.why.startswith("opsets 7 to ")
    assert "version_converter" in error.fix
