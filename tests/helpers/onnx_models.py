"""Small ONNX models by hand, and two ways to run one: onnxruntime, and the references of Weft's ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import weft
from weft.core.graph.graph import Graph, bind, infer_shapes
from weft.core.graph.interpreter import values
from weft.core.graph.layout import Array

Dims = Sequence["int | str | None"]
Declared = Mapping[str, "tuple[int, Dims]"]
SHARED_MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"
LIGHT_MODELS = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def make_model(
    nodes: Sequence[NodeProto],
    inputs: Declared | None = None,
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Array] | None = None,
    opset: int = 17,
    **fields: Any,
) -> ModelProto:
    """Return a model of these nodes; inputs are given as name: (element type, dims)."""
    inputs = {"x": (TensorProto.FLOAT, (2, 3))} if inputs is None else inputs
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()],
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    fields.setdefault("opset_imports", [helper.make_opsetid("", opset)])
    fields.setdefault("ir_version", 8)
    return helper.make_model(graph, **fields)


def node(op_type: str, inputs: str = "x", outputs: str = "y", **attributes: Any) -> NodeProto:
    """Return a node; names are separated by blanks, and `_` stands for one that is not given."""
    read, made = (["" if name == "_" else name for name in text.split()] for text in (inputs, outputs))
    return helper.make_node(op_type, read, made, **attributes)


def run_graph(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a graph by the references of its ops; every value must be as was inferred."""
    bound = infer_shapes(bind(graph, {name: value.shape for name, value in feeds.items()}))
    known = values(bound, feeds)
    for step in bound:
        for name in filter(None, step.outputs):
            spec, value = bound.specs[name], known[name]
            assert (value.shape, value.dtype) == (spec.dims, spec.dtype.numpy), step
    return [known[name] for name in bound.outputs]


def run_onnxruntime(model: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a model by onnxruntime, which is told to change nothing."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # others wait for work by spinning
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        _typed(model).SerializeToString(), options, ["CPUExecutionProvider"]
    )
    return [np.asarray(value) for value in session.run(None, dict(feeds))]


def _typed(model: ModelProto) -> ModelProto:
    """Return the model with the inferred types of its outputs, which onnxruntime compares."""
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    for value in typed.graph.output:
        value.ClearField("type")
    return typed


def assert_right_for_open_sizes(model: ModelProto, device: str) -> None:
    """Check a model of one input (n, rows, 8) on a device against `onnx.reference`, for several n and rows."""
    with weft.load(model, device, fallback="error") as session:
        for shape in ((1, 3, 8), (2, 5, 8), (1, 1, 8)):
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            want = [np.asarray(y) for y in ReferenceEvaluator(model).run(None, {"x": x})]
            np.testing.assert_allclose(session.run({"x": x}), want, rtol=2e-6, atol=2e-6)
