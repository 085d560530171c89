"""Small ONNX models whose sizes follow from values, to start from: what selects, branches, loops and lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from weft.core.graph.layout import Array

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _node(op_type: str, inputs: str, outputs: str, **attributes: object) -> NodeProto:
    """Return a node; spaces separate names, and `_` stands for a missing input."""
    read = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op_type, read, outputs.split(), name=outputs.split()[0], **attributes)  # type: ignore[arg-type]


def _info(name: str, shape: Sequence[int] | None, kind: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _graph(
    name: str, nodes: Sequence[NodeProto], inputs: Sequence[ValueInfoProto], *outputs: ValueInfoProto
) -> GraphProto:
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs))


def _model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[str | ValueInfoProto],
    constants: Mapping[str, Array] | None = None,
) -> ModelProto:
    made = [helper.make_value_info(o, onnx.TypeProto()) if isinstance(o, str) else o for o in outputs]
    held = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "staged", list(inputs), made, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _numbers(*shape: int) -> Array:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def boxes() -> ModelProto:
    """Return a suppression of boxes, and a product for each that is kept."""
    nodes = [
        _node("NonMaxSuppression", "boxes scores most overlap", "rows"),
        _node("Gather", "rows two", "kept", axis=1),
        _node("Squeeze", "boxes zeros", "flat"),
        _node("Gather", "flat kept", "best", axis=0),
        _node("MatMul", "best weights", "y"),
    ]
    constants = {"two": np.array(2), "zeros": np.array([0]), "most": np.array([4]), "weights": _numbers(4, 3)}
    constants["overlap"] = np.array([0.5], np.float32)
    return _model(nodes, [_info("boxes", (1, 9, 4)), _info("scores", (1, 1, 9))], ["y", "rows"], constants)


def pairs() -> ModelProto:
    """Return two selections whose stages make several values of one spec."""
    nodes = [
        _node("Relu", "x", "r"),
        _node("NonZero", "r", "at"),
        _node("Compress", "x c", "some", axis=1),
        _node("Transpose", "at", "places", perm=[1, 0]),
        _node("GatherND", "x places", "found"),
        _node("Abs", "found", "a"),
        _node("Neg", "found", "b"),
        _node("Mul", "a w", "m"),
        _node("ReduceSum", "some ones", "sums", keepdims=1),
        _node("Exp", "sums", "e"),
    ]
    constants = {"w": np.array([0.5], np.float32), "ones": np.array([1])}
    return _model(nodes, [_info("x", (3, 4)), _info("c", (4,), BOOL)], ["a", "b", "m", "e"], constants)


def branches() -> ModelProto:
    """Return an If, one of whose branches selects, and nodes behind it."""
    then = _graph("then", [_node("Add", "x w", "sum"), _node("Relu", "sum", "out")], [], _info("out", None))
    chosen = [_node("Compress", "x t", "q"), _node("ReduceSum", "q", "s", keepdims=0), _node("Sub", "x s", "out")]
    other = _graph("else", chosen, [], _info("out", None))
    nodes = [
        _node("ReduceSum", "x", "total", keepdims=0),
        _node("Greater", "total zero", "positive"),
        _node("Greater", "x zero", "t"),
        _node("If", "positive", "chosen", then_branch=then, else_branch=other),
        _node("Exp", "chosen", "y"),
        _node("Neg", "chosen", "z"),
    ]
    constants = {"zero": np.array(0, np.float32), "w": np.array([1, 2, 3], np.float32)}
    return _model(nodes, [_info("x", (3,))], ["y", "z"], constants)


def loop() -> ModelProto:
    """Return a loop that holds an If, whose branch counts what is not zero; nodes follow the loop."""
    counting = [
        _node("NonZero", "held", "places"),
        _node("Shape", "places", "sizes"),
        _node("ReduceSum", "sizes", "count", keepdims=0),
        _node("Cast", "count", "number", to=FLOAT),
        _node("Add", "held number", "out"),
    ]
    then = _graph("then", [_node("Mul", "held w", "out")], [], _info("out", None))
    other = _graph("else", counting, [], _info("out", None))
    body = _graph(
        "body",
        [
            _node("ReduceSum", "held", "total", keepdims=0),
            _node("Greater", "total limit", "large"),
            _node("If", "large", "next", then_branch=then, else_branch=other),
            _node("Identity", "going", "on"),
            _node("Relu", "next", "made"),
        ],
        [_info("step", (), INT64), _info("going", (), BOOL), _info("held", (2,))],
        _info("on", (), BOOL), _info("next", (2,)), _info("made", (2,)),
    )
    nodes = [
        _node("Abs", "x", "begin"),
        _node("Loop", "count _ begin", "last all", body=body),
        _node("Neg", "last", "y"),
    ]
    constants = {"limit": np.array(9, np.float32), "w": np.array(0.5, np.float32)}
    return _model(nodes, [_info("x", (2,)), _info("count", (), INT64)], ["y", "all"], constants)


def fixed_loop() -> ModelProto:
    """Return a loop of a constant number of iterations that a value may end, and a scan behind it."""
    body = _graph(
        "body",
        [
            _node("Mul", "held held", "square"),
            _node("Add", "square x", "next"),
            _node("ReduceSum", "next", "total", keepdims=0),
            _node("Less", "total most", "on"),
        ],
        [_info("step", (), INT64), _info("going", (), BOOL), _info("held", (2, 3))],
        _info("on", (), BOOL), _info("next", (2, 3)), _info("square", (2, 3)),
    )
    each = _graph(
        "each",
        [_node("Add", "state row", "sum"), _node("Tanh", "sum", "out")],
        [_info("state", (3,)), _info("row", (3,))],
        _info("sum", (3,)), _info("out", (3,)),
    )
    nodes = [
        _node("Relu", "x", "begin"),
        _node("Loop", "five true begin", "last all", body=body),
        _node("ReduceSum", "last axis", "start", keepdims=0),
        _node("Scan", "start last", "end rows", body=each, num_scan_inputs=1),
        _node("Neg", "rows", "y"),
    ]
    constants = {"five": np.array(5), "true": np.array(True), "most": np.array(20, np.float32), "axis": np.array([0])}
    return _model(nodes, [_info("x", (2, 3))], ["y", "end", "all"], constants)


def sized() -> ModelProto:
    """Return shapes that a value and an input give."""
    nodes = [
        _node("TopK", "x k", "best at", axis=1),
        _node("Range", "zero count one", "numbers"),
        _node("Cast", "numbers", "floats", to=FLOAT),
        _node("Expand", "best shape", "wide"),
        _node("Sigmoid", "wide", "y"),
        _node("Neg", "floats", "z"),
    ]
    constants = {"zero": np.array(0), "one": np.array(1)}
    inputs = [_info("x", (2, 5)), _info("k", (1,), INT64), _info("count", (), INT64), _info("shape", (3,), INT64)]
    return _model(nodes, inputs, ["y", "at", "z"], constants)


def sequences() -> ModelProto:
    """Return a sequence that is an input, a tensor taken apart, and a sequence and a tensor made of both."""
    kind = helper.make_tensor_type_proto(FLOAT, (2, 3))
    pieces = helper.make_value_info("pieces", helper.make_sequence_type_proto(kind))
    more = helper.make_value_info("more", helper.make_sequence_type_proto(kind))
    nodes = [
        _node("Relu", "x", "r"),
        _node("SplitToSequence", "r two", "parts", axis=0),
        _node("SequenceAt", "parts one", "part"),
        _node("SequenceInsert", "pieces part", "more"),
        _node("ConcatFromSequence", "more", "all", axis=0),
        _node("Exp", "all", "y"),
        _node("SequenceLength", "more", "length"),
    ]
    constants = {"two": np.array(2), "one": np.array(1)}
    return _model(nodes, [_info("x", (4, 3)), pieces], ["y", "length", more], constants)


def differing() -> ModelProto:
    """Return the elements that differ, with outputs of one spec, and what is made of some of them."""
    nodes = [
        _node("Unique", "x", "values first places counts", sorted=1),
        _node("Cast", "counts", "many", to=FLOAT),
        _node("Mul", "values many", "m"),
        _node("Gather", "m places", "y", axis=0),
        _node("Add", "first counts", "z"),
    ]
    return _model(nodes, [_info("x", (6,))], ["y", "first", "counts", "z"])


def mapped() -> ModelProto:
    """Return a graph that runs for each piece of a tensor, and reads a value from outside."""
    row = [_node("Mul", "row w", "product"), _node("ReduceSum", "product", "sum")]
    ends = _info("product", (1, 3)), _info("sum", (1, 1))
    body = _graph("body", row, [_info("row", (1, 3))], *ends)
    nodes = [
        _node("SplitToSequence", "x", "rows", axis=0),
        _node("SequenceMap", "rows", "products sums", body=body),
        _node("ConcatFromSequence", "products", "all", axis=0),
        _node("ConcatFromSequence", "sums", "z", axis=1),
        _node("Abs", "all", "y"),
    ]
    return _model(nodes, [_info("x", (4, 3))], ["y", "z"], {"w": _numbers(1, 3)})


def drawn() -> ModelProto:
    """Return a loop that adds random numbers, and a choice in it."""
    then = _graph("then", [_node("Abs", "held", "out")], [], _info("out", None))
    other = _graph("else", [_node("RandomNormalLike", "held", "out")], [], _info("out", None))
    body = _graph(
        "body",
        [
            _node("RandomUniformLike", "held", "noise"),
            _node("Add", "held noise", "next"),
            _node("If", "going", "made", then_branch=then, else_branch=other),
            _node("Identity", "going", "on"),
        ],
        [_info("step", (), INT64), _info("going", (), BOOL), _info("held", (2, 2))],
        _info("on", (), BOOL), _info("next", (2, 2)), _info("made", (2, 2)),
    )
    nodes = [_node("Loop", "count true x", "last all", body=body), _node("Neg", "last", "y")]
    return _model(nodes, [_info("x", (2, 2)), _info("count", (), INT64)], ["y", "all"], {"true": np.array(True)})


@cache
def staged() -> list[ModelProto]:
    """Return all of them."""
    return [
        *(boxes(), pairs(), branches(), loop(), fixed_loop(), sized(), sequences()),
        *(differing(), mapped(), drawn()),
    ]
