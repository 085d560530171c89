"""What changed between opsets: onnxruntime runs each row in its own opset, and Weft must agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

import weft
from tests.helpers.onnx_models import make_model, node, run_graph, run_onnxruntime
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import infer_shapes
from weft.core.graph.layout import Array
from weft.core.passes import run_passes
from weft.errors import ModelError, UnsupportedOps
from weft.frontends.onnx import load
from weft.frontends.onnx.reading import NEWEST_OPSET


@dataclass
class Row:
    """A node in an old form."""

    opset: int
    node: NodeProto
    shape: tuple[int, ...] = (2, 3, 4, 4)
    constants: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"

    def __str__(self) -> str:
        attributes = ",".join(f"{a.name}={helper.get_attribute_value(a)}" for a in self.node.attribute)
        return (
            f"{self.node.op_type}-{self.opset}({attributes}){'' if self.dtype == 'float32' else self.dtype}"
        )

    def model(self) -> ModelProto:
        """Return the model with the node alone."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        constants = {name: np.asarray(value) for name, value in self.constants.items()}
        outputs = [name for name in self.node.output if name]
        return make_model([self.node], {"x": (kind, self.shape)}, outputs, constants, opset=self.opset)

    def feeds(self) -> dict[str, Array]:
        """Return the input."""
        values = np.random.default_rng(1).standard_normal(self.shape) * 3
        return {"x": values.astype(self.dtype)}


def f32(*values: float) -> Array:
    """Return a vector."""
    return np.array(values, np.float32)


STATISTICS = {"s": f32(1, 2, 3), "b": f32(0, 1, 2), "m": f32(0.5, 1, 1.5), "v": f32(1, 2, 4)}
PARAMETERS = {"s": f32(1, 2, 3), "b": f32(0, 1, 2)}
REDUCTIONS = "L1 L2 LogSumExp Max Mean Min Prod Sum SumSquare".split()
ROWS = [
    *(Row(opset, node("Clip", min=-1.0, max=2.0)) for opset in (7, 10)),
    *(Row(18, node("GroupNormalization", "x s b", num_groups=3, epsilon=0.01), (2, 6, 4, 5),
          {name: value.astype(kind) for name, value in PARAMETERS.items()}, kind)
      for kind in ("float16", "float32", "float64")),
    Row(20, node("GroupNormalization", "x s b", num_groups=3), (1, 12, 7), PARAMETERS),
    Row(7, node("Clip", min=0.5)),
    Row(7, node("Clip", max=0.5), dtype="float16"),
    Row(11, node("Clip", "x lo"), constants={"lo": np.float32(0.5)}),
    *(Row(opset, node("Dropout", "x", "y", ratio=0.3)) for opset in (7, 10)),
    Row(12, node("Dropout", "x r", "y mask"), constants={"r": np.float32(0.3)}),
    Row(7, node("Pad", pads=[0, 0, 1, 2, 0, 0, 3, 4], value=1.5)),
    Row(10, node("Pad", pads=[0, 0, 1, 2, 0, 0, 3, 3], mode="reflect")),
    Row(7, node("Pad", pads=[0, 0, 1, 2, 0, 0, 0, 0], mode="edge"), dtype="float16"),
    Row(7, node("Slice", starts=[1, -2], ends=[3, 2**31], axes=[1, 3])),
    Row(9, node("Slice", starts=[0, 1], ends=[1, 9])),
    Row(10, node("Slice", "x a b _ s"), (6,), {"a": [0], "b": [5], "s": [2]}),
    *(Row(opset, node("Squeeze", axes=[1]), (2, 1, 3)) for opset in (7, 11)),
    Row(11, node("Squeeze"), (2, 1, 3, 1)),
    *(Row(opset, node("Unsqueeze", axes=[0, 2]), (2, 3)) for opset in (7, 11)),
    Row(7, node("Split", "x", "a b c", axis=1)),
    Row(11, node("Split", "x", "a b", axis=1, split=[1, 2])),
    Row(13, node("Split", "x sizes", "a b", axis=1), constants={"sizes": [1, 2]}),
    Row(18, node("Split", "x", "a b", axis=1, num_outputs=2)),
    *(Row(opset, node(f"Reduce{kind}", axes=[1, -1])) for kind in REDUCTIONS for opset in (11,)),
    *(Row(opset, node(f"Reduce{kind}", axes=[2], keepdims=0)) for kind in REDUCTIONS for opset in (7, 12)),
    *(Row(opset, node("ReduceMean", axes=[2], keepdims=0)) for opset in (13, 17)),
    Row(12, node("ReduceSum")),
    Row(13, node("ReduceSum", "x a"), constants={"a": [1]}),
    Row(18, node("ReduceMax", "x a"), constants={"a": [1]}),
    Row(7, node("TopK", "x", "y i", k=2)),
    Row(9, node("TopK", "x", "y i", k=2, axis=1)),
    Row(10, node("TopK", "x k", "y i"), constants={"k": [3]}),
    Row(11, node("TopK", "x k", "y i", largest=0), constants={"k": [3]}),
    Row(10, node("Resize", "x s"), constants={"s": f32(1, 1, 2, 3)}),
    Row(10, node("Resize", "x s"), constants={"s": f32(1, 1, 0.6, 0.5)}),
    Row(10, node("Resize", "x s"), constants={"s": f32(1, 1, 2.5, 0.6)}),
    Row(10, node("Resize", "x s"), constants={"s": f32(1, 1, 0.6, 1)}),
    Row(10, node("Resize", "x s", mode="linear"), constants={"s": f32(1, 1, 2, 1.5)}),
    Row(11, node("Resize", "x r s"), constants={"r": f32(), "s": f32(1, 1, 2, 3)}),
    Row(11, node("Resize", "x r r n", mode="linear"), constants={"r": f32(), "n": [2, 3, 7, 5]}),
    Row(
        11,
        node("Resize", "x r s", mode="linear", coordinate_transformation_mode="align_corners"),
        constants={"r": f32(), "s": f32(1, 1, 2, 2)},
    ),
    Row(13, node("Resize", "x _ s", mode="cubic"), constants={"s": f32(1, 1, 2, 2)}),
    Row(18, node("Resize", "x _ _ n", axes=[2, 3]), constants={"n": [7, 5]}),
    Row(7, node("Upsample", scales=[1.0, 1.0, 2.0, 3.0])),
    Row(7, node("Upsample", scales=[1.0, 1.0, 2.0, 2.0], mode="linear")),
    Row(9, node("Upsample", "x s"), constants={"s": f32(1, 1, 3, 2)}),
    *(Row(opset, node(op)) for op in ("Softmax", "LogSoftmax", "Hardmax") for opset in (7, 11, 13)),
    *(Row(opset, node(op, axis=2)) for op in ("Softmax", "LogSoftmax", "Hardmax") for opset in (7, 11, 13)),
    Row(11, node("Softmax", axis=-1)),
    Row(11, node("Softmax", axis=0)),
    *(
        Row(opset, node("BatchNormalization", "x s b m v", epsilon=0.01, momentum=0.5), constants=STATISTICS)
        for opset in (7, 9, 14, 15)
    ),
    Row(7, node("BatchNormalization", "x s b m v", spatial=1), constants=STATISTICS),
    *(
        Row(o, node("BatchNormalization", "x s b m v", "y n w", training_mode=1, momentum=0.5), constants=STATISTICS)
        for o in (14, 15)
    ),
    *(Row(opset, node("Cast", to=TensorProto.INT32)) for opset in (7, 9, 13, 19)),
    Row(
        7,
        node("Gemm", "x w c", alpha=0.5, transB=1),
        (2, 3),
        {"w": np.ones((4, 3), "f4"), "c": f32(1, 2, 3, 4)},
    ),
    Row(11, node("Gemm", "x w", transA=1), (3, 2), {"w": np.ones((3, 4), "f4")}),
    *(
        Row(opset, node("PRelu", "x w"), constants={"w": np.full((3, 1, 1), 0.2, "f4")})
        for opset in (7, 9, 16)
    ),
    *(Row(opset, node("MaxPool", kernel_shape=[2, 2], strides=[2, 2])) for opset in (7, 8, 10, 12)),
    Row(8, node("MaxPool", "x", "y i", kernel_shape=[2, 2])),
    *(Row(o, node("AveragePool", kernel_shape=[2, 2], pads=[1, 1, 1, 1])) for o in (7, 10, 11, 19)),
    *(Row(opset, node(op, "x x")) for op in ("Add", "Mul", "Pow") for opset in (7, 13)),
    *(Row(opset, node("Flatten", axis=2)) for opset in (7, 13, 21)),
    *(Row(opset, node("ArgMax", axis=1, keepdims=0)) for opset in (7, 11, 13)),
    Row(7, node("Reshape", "x n"), constants={"n": [0, -1]}),
    Row(13, node("Shape")),
    Row(15, node("Shape", start=1)),
    *(Row(opset, node("LRN", size=3)) for opset in (7, 13)),
    *(Row(opset, node("Max", "x x x")) for opset in (7, 8, 13)),
    Row(9, node("Scatter", "x i u", axis=1), (2, 3), {"i": [[1], [2]], "u": np.ones((2, 1), "f4")}),
    Row(11, node("ScatterElements", "x i u", axis=1), (2, 3), {"i": [[1], [2]], "u": np.ones((2, 1), "f4")}),
    *(Row(opset, node("Gather", "x i", axis=1), constants={"i": [2, 0]}) for opset in (7, 11, 13)),
    *(Row(opset, node("Expand", "x n"), (1, 3), {"n": [2, 3]}) for opset in (8, 13)),
    *(Row(opset, node("DepthToSpace", blocksize=2), (1, 8, 2, 2)) for opset in (7, 11, 13)),
    Row(16, node("GridSample", "x g", mode="bicubic"), (1, 1, 4, 4), {"g": np.zeros((1, 2, 2, 2), "f4")}),
    *(Row(opset, node("InstanceNormalization", "x s b"), constants=STATISTICS) for opset in (7, 22)),
    *(Row(opset, node("HardSigmoid")) for opset in (7, 22)),
    *(Row(opset, node("LeakyRelu", alpha=0.3)) for opset in (7, 16)),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_old_form_computes_what_onnxruntime_computes(row: Row) -> None:
    model = row.model()
    used = set(row.node.input)
    for tensor in [t for t in model.graph.initializer if t.name not in used]:
        model.graph.initializer.remove(tensor)
    try:
        graph = load(model)
    except UnsupportedOps as e:
        if any("Weft has no such op" in line for line in e.problems):
            pytest.skip(str(e))
        raise
    tolerance = {"float16": 1e-2}.get(row.dtype, 1e-5)
    for actual, expected in zip(
        run_graph(graph, row.feeds()), run_onnxruntime(model, row.feeds()), strict=True
    ):
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("opset", [7, 10])
@pytest.mark.parametrize("limits", [{}, {"min": 0.0}, {"max": 0.0}])
def test_clip_without_a_limit_takes_the_default_of_its_attribute(opset: int, limits: dict[str, Any]) -> None:
    x = np.array([[np.inf, -np.inf, np.nan, 3, -3, 0]], np.float32)
    model = make_model([node("Clip", **limits)], {"x": (TensorProto.FLOAT, x.shape)}, opset=opset)
    expected, = run_onnxruntime(model, {"x": x})
    assert np.isfinite(expected[0, :2]).all()
    for device in ("cpu", "opencl", "vulkan"):
        with weft.load(model, device, precision="high") as session:
            np.testing.assert_array_equal(session.run(x)[0], expected)


def test_a_clip_of_an_older_opset_is_part_of_a_norm() -> None:
    nodes = [node("ReduceL2", "x", "n", axes=[1]), node("Clip", "n", "c", min=1e-6), node("Div", "x c")]
    x = np.array([[3, 4, 0], [0, 0, 0]], np.float32)
    graph = run_passes(infer_shapes(load(make_model(nodes, {"x": (TensorProto.FLOAT, x.shape)}, opset=10))))
    assert [n.op.type for n in graph] == ["weft::L2Normalization"]
    np.testing.assert_allclose(run_graph(graph, {"x": x})[0], x / 5, rtol=1e-6)


def test_a_constant_out_of_an_attribute_has_the_type_of_the_data() -> None:
    nodes = [node("Cast", "x", "a", to=TensorProto.DOUBLE), node("Relu", "a", "b"), node("Add", "b b", "c")]
    graph = load(make_model([*nodes, node("Clip", "c", "y", min=0.5)], opset=7))
    assert graph.specs[graph.nodes[-1].inputs[1]].dtype is DType.FLOAT64


@pytest.mark.parametrize(
    "filling", [np.array([7], np.int32), np.array([1.5], np.float16), np.array([True]), None]
)
def test_constant_of_shape(filling: Array | None) -> None:
    attributes = (
        {}
        if filling is None
        else {
            "value": helper.make_tensor(
                "v", helper.np_dtype_to_tensor_dtype(filling.dtype), [1], filling.tobytes(), raw=True
            )
        }
    )
    model = make_model([node("ConstantOfShape", "n", **attributes)], {}, constants={"n": np.array([2, 2])})
    (actual,) = run_graph(load(model), {})
    expected = np.full(
        (2, 2), 0 if filling is None else filling[0], np.float32 if filling is None else filling.dtype
    )
    np.testing.assert_array_equal(actual, expected)
    assert actual.dtype == expected.dtype


def test_every_opset_from_7_on_loads() -> None:
    for opset in range(7, NEWEST_OPSET + 1):
        assert load(make_model([node("Relu")], opset=opset)).nodes[0].op.type == "Relu"


def test_a_bound_beyond_the_type_is_infinite_and_one_that_is_none_is_refused() -> None:
    graph = load(Row(7, node("Clip", max=3e38), dtype="float16").model())
    assert np.isposinf(graph.constants[graph.nodes[0].inputs[2]])
    with pytest.raises(UnsupportedOps, match="attribute 'value' = inf is no int32"):
        load(Row(10, node("Pad", pads=[0] * 8, value=float("inf")), dtype="int32").model())


@pytest.mark.parametrize("opset", [6, NEWEST_OPSET + 1, 0, -1])
def test_other_opsets_are_refused(opset: int) -> None:
    with pytest.raises(ModelError, match=f"opset {opset} is not supported"):
        load(make_model([node("Relu")], opset=opset))


def test_the_domain_of_onnx_has_two_names() -> None:
    model = make_model([node("Relu", domain="ai.onnx")], opset_imports=[helper.make_opsetid("ai.onnx", 17)])
    assert load(model).nodes[0].op.type == "Relu"


@pytest.mark.parametrize(
    ("opset", "wrong", "reason"),
    [
        (17, node("Gelu"), "ONNX has this op since opset 20"),
        (10, node("Upsample", "x x"), "opset 10 withdrew this op"),
        (17, node("Nonsense"), "ONNX has no such op"),
        (17, node("StringNormalizer"), "it works on strings"),
        (17, node("Nonsense", domain="com.microsoft"), "ops of that domain, and not this one"),
        (17, node("Nonsense", domain="com.example"), "no op of that domain"),
        (17, node("Conv", domain="com.microsoft.nchwc"), "the processor of one machine"),
        (17, node("Relu", extra=1), "attributes that ONNX does not know: 'extra'"),
        (12, node("Softmax", flatten=0), "attributes that ONNX does not know: 'flatten'"),
        (17, helper.make_node("Dropout", ["x"], ["y"], training=7), "ONNX does not know: 'training'"),
        (17, node("Dropout", ratio=0.5), "attributes that ONNX does not know: 'ratio'"),
        (17, node("Concat"), "attribute 'axis' is missing"),
        (17, node("Concat", axis=1.0), "attribute 'axis' is FLOAT; it must be INT"),
        (17, node("Relu", "x x"), "it has 2 inputs; allowed: 1 to 1"),
        (17, node("QLinearConv", "x x x x x x"), "it has 6 inputs; allowed: 8 to 9; missing: y_scale, y_zero_point"),
        (17, node("ConvInteger", "x"), "it has 1 inputs; allowed: 2 to 4; missing: w"),
        (17, node("Relu", "x", "y z"), "it has 2 outputs; allowed: 1 to 1"),
        (17, node("Add", "x _"), "input 1 (B) is missing"),
        (17, node("Cast", to=TensorProto.STRING), "STRING is not supported"),
        (17, node("Cast", to="VECTOR"), "no element type 'VECTOR'"),
        (17, node("Cast", to=1.5), "attribute 'to' = 1.5 is no element type"),
        (7, node("BatchNormalization", "x x x x x", spatial=0), "attribute 'spatial' = 0 is not supported"),
        (7, node("BatchNormalization", "x x x x x", "y a b c d"), "training mode"),
        (10, node("Dropout", "x", "y m"), "mask"),
        (18, node("Split", "x", "y b", num_outputs=3), "num_outputs is 3"),
    ],
    ids=lambda value: value.op_type if isinstance(value, NodeProto) else None,
)
def test_what_cannot_be_lifted_is_refused_with_a_reason(opset: int, wrong: NodeProto, reason: str) -> None:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(wrong.domain or "com.microsoft", 1)]
    outputs = [name for name in wrong.output if name]
    with pytest.raises(UnsupportedOps) as caught:
        load(make_model([wrong], outputs=outputs, opset_imports=imports))
    (line,) = caught.value.problems
    assert reason in line
    assert line.startswith(f"'{wrong.op_type}_0': {wrong.op_type}, domain ")
    assert f"opset {1 if wrong.domain else opset}:" in line


@pytest.mark.parametrize(
    "harmless",
    [
        node("Relu", consumed_inputs=[0]), node("Dropout", is_test=0),
        node("Dropout", ratio=0.25), node("Dropout", seed=3),
    ],
    ids=lambda value: value.attribute[0].name,
)
def test_harmless_old_attributes_are_passed_over(harmless: NodeProto) -> None:
    """They make no difference to the op, and none to what it computes."""
    opset = 12 if harmless.attribute[0].name == "seed" else 7
    graph, without = load(make_model([harmless], opset=opset)), load(make_model([node(harmless.op_type)], opset=opset))
    assert graph.nodes[0].op.type == harmless.op_type and len(graph.nodes) == len(without.nodes) == 1
    assert graph.nodes[0].op.attributes().items() - without.nodes[0].op.attributes().items() <= {("seed", 3)}
    x = np.array([[-1, 0, 2], [3, -4, 5]], np.float32)
    expected = np.maximum(x, 0) if harmless.op_type == "Relu" else x
    with weft.load(graph, "cpu") as session:
        np.testing.assert_array_equal(session.run(x)[0], expected)


def test_a_file_cannot_set_the_fields_that_weft_added() -> None:
    wrong = node("Dropout", "x", "y")
    wrong.attribute.append(helper.make_attribute("outputs", 7))
    with pytest.raises(UnsupportedOps, match="ONNX does not know: 'outputs'"):
        load(make_model([wrong]))


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_group_norms_before_opset_21_have_a_scale_for_each_group(device: str) -> None:
    """Of open sizes, too; a scale for each channel is a mistake in such a file."""
    old = node("GroupNormalization", "x s b", num_groups=3)
    shapes: dict[str, tuple[int | str, ...]] = {"x": ("n", 6, "h", 5), "s": (3,), "b": (3,)}
    model = make_model([old], {name: (TensorProto.FLOAT, dims) for name, dims in shapes.items()}, opset=18)
    rng = np.random.default_rng(0)
    feeds = {"s": f32(1, -2, 3), "b": f32(4, 5, 6)}
    with weft.load(model, device, fallback="error") as session:
        for size in ((2, 6, 4, 5), (1, 6, 3, 5)):
            feeds["x"] = rng.standard_normal(size).astype(np.float32)
            (expected,) = run_onnxruntime(model, feeds)
            np.testing.assert_allclose(session.run(feeds)[0], expected, rtol=1e-4, atol=1e-5)
    shapes = {"x": (1, 6, 4, 5), "s": (6,), "b": (6,)}
    model = make_model([old], {name: (TensorProto.FLOAT, dims) for name, dims in shapes.items()}, opset=18)
    with pytest.raises(ModelError, match=r"input 1 of shape \(6,\) does not fit 3 groups"):
        weft.load(model, device)


@pytest.mark.parametrize("device", ["cpu", "opencl"])
@pytest.mark.parametrize("scales", [(0.6, 0.6), (2.5, 0.6), (0.6, 1), (2.5, 1.5)], ids=str)
def test_scales_of_a_run_choose_the_nearest_pixel_by_axis_before_opset_11(
    scales: tuple[float, float], device: str
) -> None:
    inputs = {"x": (TensorProto.FLOAT, (1, 2, 4, 7)), "s": (TensorProto.FLOAT, (4,))}
    model = make_model([node("Resize", "x s")], inputs, opset=10)
    feeds = {"x": np.arange(56, dtype=np.float32).reshape(1, 2, 4, 7), "s": f32(1, 1, *scales)}
    (expected,) = run_onnxruntime(model, feeds)
    np.testing.assert_array_equal(weft.load(model, device=device).run(feeds)[0], expected)
