"""Small ONNX models whose sizes follow from values: kept boxes, an If, a Loop that holds both."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.helpers.onnx_models import make_model

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, shape: tuple[Any, ...] | None = None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """Return a node; inputs and outputs are names with spaces between, "-" is a missing one."""
    given = ["" if i == "-" else i for i in inputs.split()]
    return helper.make_node(op, given, outputs.split(), name=outputs.split()[0], **attributes)


def boxes() -> ModelProto:
    """Return a suppression of boxes, and a product for each that is kept."""
    nodes = [
        node("NonMaxSuppression", "boxes scores most overlap", "rows"),
        node("Gather", "rows two", "kept", axis=1),
        node("Squeeze", "boxes zeros", "flat"),
        node("Gather", "flat kept", "best", axis=0),
        node("MatMul", "best weights", "y"),
    ]
    constants = {"two": np.array(2), "zeros": np.array([0]), "most": np.array([4])}
    constants["overlap"] = np.array([0.5], np.float32)
    constants["weights"] = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    return make_model(nodes, {"boxes": (FLOAT, (1, 9, 4)), "scores": (FLOAT, (1, 1, 9))}, ["y"], constants)


def branch(name: str, *nodes: NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [info("out")])


def condition() -> ModelProto:
    """Return an If on a sum."""
    nodes = [
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total zero", "positive"),
        node(
            "If", "positive", "chosen",
            then_branch=branch("then", node("Add", "x w", "sum"), node("Relu", "sum", "out")),
            else_branch=branch("else", node("Neg", "x", "out")),
        ),
        node("Exp", "chosen", "y"),
    ]
    constants = {"zero": np.array(0, np.float32), "w": np.array([1, 2, 3], np.float32)}
    return make_model(nodes, {"x": (FLOAT, (3,))}, ["y"], constants)


def loop() -> ModelProto:
    """Return a loop that holds an If, whose branch counts what is not zero; a node follows the loop."""
    counting = branch(
        "else",
        node("NonZero", "held", "places"),
        node("Shape", "places", "sizes"),
        node("ReduceSum", "sizes", "count", keepdims=0),
        node("Cast", "count", "number", to=FLOAT),
        node("Add", "held number", "out"),
    )
    body = helper.make_graph(
        [
            node("ReduceSum", "held", "total", keepdims=0),
            node("Greater", "total limit", "large"),
            node("If", "large", "next", then_branch=branch("then", node("Mul", "held w", "out")), else_branch=counting),
            node("Identity", "going", "on"),
            node("Relu", "next", "made"),
        ],
        "body",
        [info("step", (), INT64), info("going", (), BOOL), info("held", (2,))],
        [info("on", (), BOOL), info("next", (2,)), info("made", (2,))],
    )
    nodes = [
        node("Abs", "x", "begin"),
        node("Loop", "count - begin", "last all", body=body),
        node("Neg", "last", "y"),
    ]
    constants = {"limit": np.array(9, np.float32), "w": np.array(0.5, np.float32)}
    return make_model(nodes, {"x": (FLOAT, (2,)), "count": (INT64, ())}, ["y", "all"], constants)
