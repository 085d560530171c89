"""Correct ONNX files (contract row F1)."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper

import weft
from tests.helpers.cli import Cli
from tests.helpers.onnx_models import (
    LIGHT_MODELS,
    SHARED_MODELS,
    make_model,
    node,
    run_graph,
    run_onnxruntime,
)
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import bind, infer_shapes
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op, op_types, register_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import InputError, ModelError, UnsupportedOps
from weft.frontends.onnx import load

LIGHT = (
    "bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19 zfnet512".split()
)


@pytest.mark.parametrize("network", LIGHT)
def test_light_networks_load(network: str) -> None:
    graph = load(LIGHT_MODELS / f"light_{network}.onnx")
    shaped = infer_shapes(graph)
    assert shaped.specs[graph.outputs[0]].dims[:2] == (1, 1000)
    assert set(graph.specs) == set(graph.inputs) | set(graph.constants)


@pytest.mark.parametrize("name", ["squeezenet", "squeezenet_fp16", "ultraface_rfb_320"])
def test_real_networks_load_and_compute_what_onnxruntime_does(name: str) -> None:
    path = _shared(f"{name}.onnx")
    graph = load(path)
    spec = graph.specs[graph.inputs[0]]
    image = np.random.default_rng(0).standard_normal(spec.dims).astype(spec.dtype.numpy)
    feeds = {graph.inputs[0]: image}
    tolerance = 1e-4 if spec.dtype is DType.FLOAT32 else 2e-2
    for actual, expected in zip(
        run_graph(graph, feeds), run_onnxruntime(onnx.load(path), feeds), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_all_unsupported_nodes_are_listed_at_once() -> None:
    with pytest.raises(UnsupportedOps) as caught:
        load(_shared("candy.onnx"))
    assert len(caught.value.problems) == 9
    for op_type in ("ImageScaler", "Crop", "Affine"):
        assert any(f": {op_type}, domain 'ai.onnx', opset 7: " in line for line in caught.value.problems)


def test_a_path_bytes_and_a_parsed_model_are_the_same(tmp_path: Path) -> None:
    model = make_model([node("Relu")])
    (tmp_path / "small.onnx").write_bytes(model.SerializeToString())
    graphs = [load(tmp_path / "small.onnx"), load(str(tmp_path / "small.onnx"))]
    graphs += [load(model), load(model.SerializeToString())]
    assert len({str(graph) for graph in graphs}) == 1
    assert load(model, name="other").name == "other"
    model.graph.name = ""
    (tmp_path / "small.onnx").write_bytes(model.SerializeToString())
    assert load(tmp_path / "small.onnx").name == "small"


def test_loading_leaves_a_parsed_model_as_it_is() -> None:
    model = make_model([node("Clip", min=0.0)], opset=7)
    before = model.SerializeToString(deterministic=True)
    load(model)
    assert model.SerializeToString(deterministic=True) == before


def test_weft_does_not_import_onnx() -> None:
    code = "import sys, weft, weft.frontends, weft.frontends.onnx; sys.exit('onnx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_symbolic_and_missing_dimensions() -> None:
    shape = ("batch", 3, None, "None")
    graph = load(make_model([node("Relu")], {"x": (TensorProto.FLOAT, shape)}))
    assert graph.specs["x"].shape == ("batch", 3, "x.2", "x.3")
    assert bind(graph, {"x": (5, 3, 7, 9)}).specs["x"].dims == (5, 3, 7, 9)


def test_a_fresh_symbol_is_not_one_that_the_model_uses() -> None:
    declared = {"x": (TensorProto.FLOAT, (None, 2)), "z": (TensorProto.FLOAT, ("x.0", 2))}
    graph = load(make_model([node("Add", "x z")], declared))
    assert graph.specs["x"].shape == ("x.0.1", 2)


def test_initialisers_that_are_also_inputs_are_constants() -> None:
    declared = {"x": (TensorProto.FLOAT, (2, 3)), "w": (TensorProto.FLOAT, (3,))}
    weights = np.ones(3, np.float32)
    graph = load(make_model([node("Add", "x w")], declared, constants={"w": weights}, ir_version=3))
    assert graph.inputs == ["x"]
    assert graph.constants["w"].tolist() == [1, 1, 1]


def test_a_run_that_gives_an_input_with_an_initialiser_is_told_that_it_is_a_constant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = {"x": (TensorProto.FLOAT, (2, 3)), "w": (TensorProto.FLOAT, (3,))}
    x, weights = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    model = make_model([node("Add", "x w")], declared, constants={"w": weights}, ir_version=8)
    told = r"'w' is no input here: .* a constant.*graph\.initializer"
    for memory in weft.MemoryMode:
        with weft.load(model, "cpu", memory=memory) as session:
            for wrong in ([{"x": x, "w": weights}], [x, weights]):
                with pytest.raises(InputError, match=told):
                    session.run(*wrong)
            with pytest.raises(InputError, match=told):
                session.resize({"w": (3,)})
            np.testing.assert_array_equal(session.run(x)[0], x + 1)
    with pytest.raises(InputError, match=told):
        weft.load(model, "cpu", shapes={"w": (3,)})
    onnx.save(model, tmp_path / "model.onnx")
    np.save(tmp_path / "w.npy", weights)
    given = ("--input", f"w={tmp_path / 'w.npy'}")
    assert re.search(told, Cli(capsys)("run", tmp_path / "model.onnx", "-d", "cpu", *given, status=2).err)
    del model.graph.initializer[:]
    with weft.load(model, "cpu") as session:
        np.testing.assert_array_equal(session.run({"x": x, "w": 2 * weights})[0], x + 2)


def test_unnamed_and_repeated_node_names_become_unique() -> None:
    nodes = [node("Relu", "x", "a"), node("Relu", "a", "b"), node("Relu", "b", "c"), node("Relu", "c", "y")]
    nodes[1].name = nodes[3].name = "again"
    assert [n.name for n in load(make_model(nodes))] == ["Relu_0", "again", "Relu_2", "again.1"]


def test_nodes_are_sorted() -> None:
    graph = load(make_model([node("Relu", "a", "y"), node("Neg", "x", "a")]))
    assert [n.op.type for n in graph] == ["Neg", "Relu"]


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    "dtype", "float32 float16 float64 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split()
)
def test_initialisers_of_every_type(dtype: str, raw: bool) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = np.array([[0, 1, 100], [1, 0, 1]]).astype(dtype)
    if not np.issubdtype(values.dtype, np.unsignedinteger) and dtype != "bool":
        values = (-values).astype(dtype)
    flat = values.tobytes() if raw else values.reshape(-1).tolist()
    model = make_model([node("Identity", "w")], {})
    model.graph.initializer.append(helper.make_tensor("w", kind, values.shape, flat, raw=raw))
    loaded = load(model).constants["w"]
    assert loaded.dtype == values.dtype
    np.testing.assert_array_equal(loaded, values)
    assert not loaded.flags.writeable


def test_scalars_and_tensors_without_elements() -> None:
    constants = {"a": np.float32(3), "b": np.zeros((0, 4), np.float32), "c": np.zeros(0, np.int64)}
    graph = load(
        make_model([node("Identity", "a")], {}, constants={k: np.asarray(v) for k, v in constants.items()})
    )
    assert {name: spec.shape for name, spec in graph.specs.items()} == {"a": (), "b": (0, 4), "c": (0,)}


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value": numpy_helper.from_array(np.array([[1, 2]], np.int8))}, np.array([[1, 2]], np.int8)),
        ({"value_int": -3}, np.array(-3, np.int64)),
        ({"value_ints": [1, 2]}, np.array([1, 2], np.int64)),
        ({"value_float": 0.5}, np.array(0.5, np.float32)),
        ({"value_floats": [0.5, 2.0]}, np.array([0.5, 2.0], np.float32)),
    ],
)
def test_constant_nodes_become_constants(attribute: dict[str, object], expected: Array) -> None:
    graph = load(make_model([node("Constant", "", "c", **attribute), node("Identity", "c")], {}))
    assert [n.op.type for n in graph] == ["Identity"]
    np.testing.assert_array_equal(graph.constants["c"], expected)
    assert graph.constants["c"].dtype == expected.dtype


@pytest.mark.parametrize("attribute", ["value_string", "value_strings"])
def test_text_is_refused_where_it_is_read_and_left_out_where_it_is_not(attribute: str) -> None:
    """Exporters leave labels in a file."""
    text = "a" if attribute == "value_string" else ["a"]
    constant = node("Constant", "", "c", **{attribute: text})
    with pytest.raises(ModelError, match=attribute):
        load(make_model([constant, node("Identity", "c")], {}))
    model = make_model([constant, node("Relu")])
    model.graph.initializer.add(name="labels", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"])
    assert "c" not in load(model).constants and "labels" not in load(model).constants


def sparse(values: Array, places: Array, dims: tuple[int, ...], name: str = "w") -> SparseTensorProto:
    """Return a sparse tensor."""
    return helper.make_sparse_tensor(numpy_helper.from_array(values, name), numpy_helper.from_array(places), dims)


@pytest.mark.parametrize("places", [np.array([1, 5]), np.array([[0, 1], [1, 2]])], ids=["linear", "by axis"])
@pytest.mark.parametrize("where", ["initialiser", "constant", "subgraph", "nothing"])
def test_sparse_weights_are_made_dense(places: Array, where: str) -> None:
    values, expected = np.array([3, -4], np.float32), np.array([[0, 3, 0], [0, 0, -4]], np.float32)
    if where == "nothing":
        values, places, expected = values[:0], places[:0], np.zeros_like(expected)
    weights = sparse(values, places, (2, 3))
    model = make_model([node("Add", "x w")])
    if where == "constant":
        model = make_model([node("Constant", "", "w", sparse_value=weights), node("Add", "x w")])
    elif where == "subgraph":
        inner = helper.make_graph([node("Add", "x w", "z")], "g", [], [helper.make_empty_tensor_value_info("z")])
        inner.sparse_initializer.append(weights)
        nodes = [node("If", "c", then_branch=inner, else_branch=inner)]
        model = make_model(nodes, constants={"c": np.array(True)})
    else:
        model.graph.sparse_initializer.append(weights)
    with weft.load(model, "cpu") as session:
        np.testing.assert_array_equal(session.run(np.ones((2, 3), np.float32))[0], expected + 1)


def test_weights_that_are_there_twice_with_one_value_are_one() -> None:
    model = make_model([node("Add", "x w")], constants={"w": np.array([1, 2, 3], np.float32)})
    model.graph.initializer.append(model.graph.initializer[0])
    np.testing.assert_array_equal(load(model).constants["w"], [1, 2, 3])
    model.graph.initializer[1].raw_data = np.array([1, 2, 4], np.float32).tobytes()
    with pytest.raises(ModelError, match="'w' is there twice, with two values"):
        load(model)


def test_every_number_but_zero_is_true() -> None:
    model = make_model([node("Not", "w")], {})
    model.graph.initializer.add(name="w", data_type=TensorProto.BOOL, dims=[4], int32_data=[0, 1, 2, -1])
    assert load(model).constants["w"].tolist() == [False, True, True, True]


def test_what_a_file_says_of_values_does_not_matter_to_an_op_that_is_taken_apart() -> None:
    """The definition of the op depends on types that ONNX infers, which it does not where they contradict the file."""
    nodes = [node("Relu", "x", "t"), node("SoftmaxCrossEntropyLoss", "t labels")]
    model = make_model(nodes, constants={"labels": np.array([1, 2])})
    model.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.INT64, (7,)))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 3)))
    x = np.array([[1, 2, 3], [3, 2, 1]], np.float32)
    e = np.exp(x)
    with weft.load(model, "cpu") as session:
        expected = -np.log((e / e.sum(1, keepdims=True))[[0, 1], [1, 2]]).mean()
        np.testing.assert_allclose(session.run(x)[0], expected, rtol=1e-6)


def test_opsets_of_domains_that_are_not_ONNXs_may_be_there_twice() -> None:
    others = [helper.make_opsetid(*each) for each in (("", 17), ("ai.onnx", 17), ("ai.onnx.ml", 1), ("ai.onnx.ml", 2))]
    assert len(load(make_model([node("Relu")], opset_imports=others)).nodes) == 1


def test_optional_outputs_that_nothing_reads_are_dropped() -> None:
    graph = load(make_model([node("Dropout", "x", "y mask")]))
    assert graph.nodes[0].outputs == ("y",)
    graph = load(make_model([node("Dropout", "x", "y mask")], outputs=("y", "mask")))
    assert graph.nodes[0].outputs == ("y", "mask")


def test_an_output_may_be_an_input_or_a_constant() -> None:
    graph = load(make_model([node("Relu")], outputs=("y", "x", "c"), constants={"c": np.ones(2, np.float32)}))
    assert graph.outputs == ["y", "x", "c"]


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_graph_may_have_no_nodes(device: str, precision: str) -> None:
    constant, x = np.array([3.0, 4.0], np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    model = make_model([], outputs=("x", "c"), constants={"c": constant})
    with weft.load(model, device, precision=precision, fallback="error") as session:
        arrays = session.input_arrays()
        arrays["x"][...] = x
        for given in ({"x": x}, arrays):
            got, also = session.run(given)
            np.testing.assert_array_equal(got, x)
            np.testing.assert_array_equal(also, constant)


def test_an_output_that_is_there_twice_gets_a_second_name() -> None:
    model = make_model([node("Relu", "x", "y")], outputs=["y", "x", "y"])
    graph = load(model)
    assert graph.outputs == ["y", "x", "y.1"]
    x = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    for actual, expected in zip(run_graph(graph, {"x": x}), (x.clip(0), x, x.clip(0)), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_a_users_op_takes_the_nodes_of_its_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.core.graph.op._OPS", op_types())

    @register_op
    @dataclass(frozen=True)
    class Twice(Op):
        """Twice its input, and a bit more."""

        type = "com.example::Twice"
        more: float = 0.0

        def infer(self, inputs: object, constants: Constants) -> tuple[TensorSpec, ...]:
            """Return the input's."""
            return (inputs[0],)  # type: ignore[index]

        def reference(self, *inputs: Array | None) -> Array:
            """Return the sum."""
            return np.asarray(inputs[0]) * np.float32(2) + np.float32(self.more)

    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    model = make_model([node("Twice", domain="com.example", more=0.5)], opset_imports=imports)
    graph = load(model)
    (out,) = run_graph(graph, {"x": np.ones((2, 3), np.float32)})
    assert (out == 2.5).all()


def _shared(name: str) -> Path:
    path = SHARED_MODELS / name
    if not path.is_file():
        pytest.skip(f"looked for {path}")
    return path
