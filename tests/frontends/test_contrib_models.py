"""A step of a language model as exporters write it for ONNX Runtime, on every device, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import weft
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft_conformance.cases.table import tolerance

HEADS, GROUPS, DEPTH, WIDTH, LONGEST = 4, 2, 16, 24, 12
MS = "com.microsoft"
MASK = {"ReduceSum", "Sub", "Cast", "copy mask"}
"""What counts the mask: a GPU need not sum integers."""


def decoder() -> ModelProto:
    """Return one layer: a norm, grouped attention whose sizes follow from the mask, and a norm of the sum."""
    rng = np.random.default_rng(0)
    columns = (HEADS + 2 * GROUPS) * DEPTH
    weights = {
        "scale": rng.uniform(0.5, 1.5, WIDTH), "qkv": rng.uniform(-1, 1, (WIDTH, columns)),
        "out": rng.uniform(-1, 1, (HEADS * DEPTH, WIDTH)) / 8, "cos": rng.uniform(-1, 1, (LONGEST, DEPTH // 2)),
        "sin": rng.uniform(-1, 1, (LONGEST, DEPTH // 2)),
    }
    constants = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()]
    integers = {"last": np.array(1), "one": np.array([1]), "axis": np.array([1])}
    constants += [numpy_helper.from_array(v.astype(np.int64), k) for k, v in integers.items()]
    node = helper.make_node
    attention: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
    nodes = [
        node("SimplifiedLayerNormalization", ["x", "scale"], ["normed"], epsilon=1e-5),
        node("MatMul", ["normed", "qkv"], ["q"]),
        node("ReduceSum", ["mask", "axis"], ["count"], keepdims=0),
        node("Sub", ["count", "one"], ["ends"]),
        node("Cast", ["ends"], ["lengths"], to=TensorProto.INT32),
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "last"], ["total64"], axis=0),
        node("Cast", ["total64"], ["total"], to=TensorProto.INT32),
        node(
            "GroupQueryAttention", ["q", "", "", "past_k", "past_v", "lengths", "total", "cos", "sin"],
            ["attended", "k", "v"], domain=MS, **attention,
        ),
        node("MatMul", ["attended", "out"], ["mixed"]),
        node(
            "SkipSimplifiedLayerNormalization", ["mixed", "x", "scale"], ["y", "", "", "sum"], domain=MS, epsilon=1e-5
        ),
    ]
    value = helper.make_tensor_value_info
    past: list[str | int | None] = ["batch", GROUPS, "before", DEPTH]
    inputs = [
        value("x", TensorProto.FLOAT, ["batch", "rows", WIDTH]), value("mask", TensorProto.INT64, ["batch", "all"]),
        value("past_k", TensorProto.FLOAT, past), value("past_v", TensorProto.FLOAT, past),
    ]
    outputs = [value(name, TensorProto.FLOAT, None) for name in ("y", "sum", "k", "v")]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, constants)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def feeds(before: int, rows: int) -> dict[str, Array]:
    """Return inputs for so many rows that are new behind those of the past."""
    rng = np.random.default_rng(before)
    shapes = {"x": (1, rows, WIDTH), "past_k": (1, GROUPS, before, DEPTH), "past_v": (1, GROUPS, before, DEPTH)}
    fed = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    return {**fed, "mask": np.ones((1, before + rows), np.int64)}


@pytest.mark.alike
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_prompt_and_a_step_of_a_decoder(device: str) -> None:
    model = decoder()
    oracle = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for before, rows in ((0, 3), (3, 1))[device != "cpu" :]:
        fed = feeds(before, rows)
        shapes = {name: array.shape for name, array in fed.items()}
        with weft.load(model.SerializeToString(), device, shapes=shapes) as session:
            elsewhere = {node for node, where in session.report.placement.items() if where.partition(":")[0] != device}
            assert not {node.partition("_")[0] for node in elsewhere} - MASK, elsewhere
            actual = session.run(fed)
        for mine, theirs in zip(actual, oracle.run(None, fed), strict=True):
            np.testing.assert_allclose(mine, theirs, *tolerance(DType.FLOAT32, "reduction"))


@pytest.mark.alike
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_lengths_that_a_run_is_given(device: str) -> None:
    """Attend with the total length as an input, which decides the shape of the caches, and differs from run to run.

    What a past holds behind the rows of an image changes nothing.
    """
    kinds = {"q": TensorProto.FLOAT, "past_k": TensorProto.FLOAT, "past_v": TensorProto.FLOAT}
    fixed: dict[str, Any] = {
        "q": (2, 1, (HEADS + 2 * GROUPS) * DEPTH), "past_k": (2, GROUPS, 6, DEPTH), "past_v": (2, GROUPS, 6, DEPTH),
        "lengths": (2,), "total": (1,),
    }
    inputs = [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.INT32), shape) for n, shape in fixed.items()]
    node = helper.make_node(
        "GroupQueryAttention", ["q", "", "", "past_k", "past_v", "lengths", "total"], ["y", "k", "v"],
        domain=MS, name="attention", num_heads=HEADS, kv_num_heads=GROUPS,
    )
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    graph = helper.make_graph([node], "lengths", inputs, outputs)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    oracle = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    floats = {name: rng.uniform(-1, 1, fixed[name]).astype(np.float32) for name in kinds}
    with weft.load(model, device, fallback="error") as session:
        for ends in ([6, 3], [4, 2], [6, 1]):
            fed = {**floats, "lengths": np.array(ends, np.int32), "total": np.array([max(ends) + 1], np.int32)}
            for mine, theirs in zip(session.run(fed), oracle.run(None, fed), strict=True):
                np.testing.assert_allclose(mine, theirs, *tolerance(DType.FLOAT32, "reduction"))
        assert {where.partition(":")[0] for where in session.report.placement.values()} <= {device}
