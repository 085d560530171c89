"""ONNX files that are broken, hostile, or no ONNX files: each kind has an error of its own."""

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

from tests.frontends.onnx_models import make_model, node
from weft.core.graph import infer_shapes
from weft.errors import ModelError, UnsupportedOps
from weft.frontends.onnx import load
from weft.frontends.onnx.files import LARGEST_FILE
from weft.frontends.onnx.tensors import HIGHEST_RANK
from weft.frontends.onnx.wire import varint


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
    refused(tmp_path, "cannot be read", "Is a directory")
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


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    refused(tmp_path / "m.onnx", "the model file is empty")
    refused(b"", "the model file is empty")


@pytest.mark.parametrize(
    "text",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        b"<!DOCTYPE html><html></html>",
        b"PK\x03\x04" + b"\0" * 60,
        b"\x80\x02}q\x00.",
        b"\xff" * 100,
        b"\0" * 100,
        "random",
    ],
)
def test_bytes_that_are_no_onnx(text: bytes | str) -> None:
    data = np.random.default_rng(0).bytes(4096) if isinstance(text, str) else text
    refused(data, "Git LFS pointer")


def test_every_truncation_of_a_model() -> None:
    data = plain().SerializeToString()
    for end in range(len(data)):
        try:
            load(data[:end])
        except ModelError:
            continue


@pytest.mark.parametrize("name", ["Relu", "y", "w", "x", "test"])
def test_names_that_are_no_text(name: str) -> None:
    data = plain().SerializeToString().replace(name.encode(), b"\xff" * len(name))
    refused(data, "is not UTF-8 text", "Git LFS pointer")


def test_truncation_in_the_middle_of_the_graph() -> None:
    data = plain().SerializeToString()
    refused(data[: len(data) // 2], "cannot be parsed", "Was it downloaded completely")


def test_a_message_of_another_kind() -> None:
    refused(numpy_helper.from_array(np.ones(3, np.float32), "w").SerializeToString(), "Git LFS pointer")


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
    refused(changed(lambda m: m.graph.ClearField("node")), "the graph is empty")
    refused(changed(lambda m: m.graph.ClearField("output")), "the graph has no outputs")
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
    refused(make_model([node("Relu"), node("Neg")]), "made more than once", "'y'")
    refused(make_model([node("Relu", "x", "x")]), "made more than once", "'x'")
    weights = {"y": np.ones(3, np.float32)}
    refused(make_model([node("Relu")], constants=weights), "made more than once", "'y'")
    refused(make_model([node("Split", "x", "y y", axis=0)]), "made more than once", "'y'")
    refused(make_model([node("Relu")], outputs=("y", "y")), "made more than once", "(as an output)")
    refused(
        changed(lambda m: m.graph.initializer.append(m.graph.initializer[0])), "made more than once", "'w'"
    )
    refused(changed(lambda m: m.graph.input.append(m.graph.input[0])), "made more than once", "'x'")
    refused(make_model([node("Constant", "", "y", value_int=1), node("Relu")]), "made more than once", "'y'")


def input_type(change: Callable[[onnx.TypeProto], Any], *parts: str) -> None:
    """Check that a model whose input has a changed type is refused."""
    refused(changed(lambda m: change(m.graph.input[0].type)), "1 of the model's inputs", "input 'x'", *parts)


def test_inputs_of_other_types() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    types = {
        "sequence": helper.make_sequence_type_proto(tensor),
        "optional": helper.make_optional_type_proto(tensor),
        "map": helper.make_map_type_proto(TensorProto.INT64, tensor),
        "sparse_tensor": helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2]),
    }
    for kind, declared in types.items():
        input_type(lambda t, declared=declared: t.CopyFrom(declared), f"declared as {kind}")  # type: ignore[misc]
    input_type(lambda t: t.Clear(), "its type is not declared")
    for code in (TensorProto.STRING, TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.INT4):
        name = TensorProto.DataType.Name(code)
        input_type(lambda t, code=code: setattr(t.tensor_type, "elem_type", code), f"{name} is not")  # type: ignore[misc]
    input_type(lambda t: setattr(t.tensor_type, "elem_type", 0), "UNDEFINED is not supported")
    input_type(lambda t: setattr(t.tensor_type, "elem_type", 99), "99 is not supported")


def test_inputs_of_absurd_shapes() -> None:
    for size in (-1, -(2**63), 2**50, 2**63 - 1):
        input_type(lambda t, s=size: setattr(t.tensor_type.shape.dim[0], "dim_value", s), "no sense")  # type: ignore[misc]
    input_type(lambda t: t.tensor_type.ClearField("shape"), "how many dimensions")
    many = [onnx.TensorShapeProto.Dimension(dim_value=1)] * (HIGHEST_RANK + 1)
    input_type(lambda t: t.tensor_type.shape.dim.extend(many), "too many dimensions")
    large = [onnx.TensorShapeProto.Dimension(dim_value=2**20)] * 3
    input_type(lambda t: t.tensor_type.shape.dim.extend(large), "no sense")


def test_all_bad_inputs_are_reported_at_once() -> None:
    kinds = {f"i{k}": (TensorProto.BFLOAT16, (2,)) for k in range(30)}
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
    types = "STRING COMPLEX64 BFLOAT16 FLOAT8E4M3FN FLOAT8E5M2 UINT4 INT4 FLOAT4E2M1 INT2 UNDEFINED".split()
    for name in types:
        bad_tensor(
            f"{name} is not supported", data_type=TensorProto.DataType.Value(name), dims=[1], raw_data=b"00"
        )
    bad_tensor("element type 1000 is not supported", data_type=1000)


def test_initialisers_whose_data_does_not_fit() -> None:
    f32 = TensorProto.FLOAT
    bad_tensor("needs 12 bytes, the file has 11", data_type=f32, dims=[3], raw_data=b"0" * 11)
    bad_tensor("needs 12 bytes, the file has 16", data_type=f32, dims=[3], raw_data=b"0" * 16)
    bad_tensor("needs 3 elements, the file has 0", data_type=f32, dims=[3])
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


def test_sparse_initialisers() -> None:
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.ones(1, np.float32), "s"),
        numpy_helper.from_array(np.zeros(1, np.int64)),
        [3],
    )
    refused(changed(lambda m: m.graph.sparse_initializer.append(sparse)), "'s': a sparse initialiser")


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
    refused(make_model([twice]), "it has an attribute twice")


def test_very_many_nodes_of_one_name_take_no_time() -> None:
    count = 20_000
    names = ["x", *(f"v{k}" for k in range(count - 1)), "y"]
    nodes = [helper.make_node("Relu", [a], [b], name="n") for a, b in pairwise(names)]
    assert len(load(make_model(nodes)).nodes) == count


def test_very_many_unsupported_nodes_and_long_names_make_no_endless_message() -> None:
    nodes = [helper.make_node("Nonsense" * 1000, ["x"], [f"y{k}"], name="n" * 10_000) for k in range(1500)]
    with pytest.raises(UnsupportedOps) as caught:
        load(make_model(nodes, outputs=["y0"]))
    assert caught.value.problems[-1] == "and 500 more"
    assert len(str(caught.value)) < 1_000_000


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
