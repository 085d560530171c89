"""Models in other words, for which ONNX Runtime computes what Weft promises where the two differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from weft.core.graph.layout import Array

TINY = float(np.finfo(np.float32).tiny)
"""The smallest float32 that every device keeps."""


def kept(value: Array) -> Array:
    """Return float32 with zeros for what is smaller than every device keeps; others as they are."""
    if value.dtype != np.float32:
        return value
    return np.asarray(np.where(np.abs(value) < TINY, value * np.float32(0), value))


def without_subnormals(model: ModelProto) -> ModelProto:
    """Return a model with 0 for what is smaller than a GPU may keep in a constant."""
    changed = _copy(model)
    for tensor in changed.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(kept(numpy_helper.to_array(tensor)), tensor.name))
    return changed


def with_states_of_floats(model: ModelProto) -> ModelProto | None:
    """Return a model whose DynamicQuantizeLSTM do not quantise their states, on which Weft decided; None without one.

    The input is quantised by its range, and an LSTM of floats has the weights that the integers stand for.
    """
    changed, found = _copy(model), False
    for place in _places(changed):
        nodes = [part for node in place.node for part in _plain(node)]
        found |= len(nodes) > len(place.node)
        del place.node[:]
        place.node.extend(nodes)
    imports = [opset for place in (changed, *changed.functions) for opset in place.opset_import]
    for opset in (each for each in imports if each.domain in ("", "ai.onnx")):
        opset.version = max(opset.version, 11)  # DynamicQuantizeLinear begins there
    return changed if found else None


def _copy(model: ModelProto) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(model)
    return made


def _places(model: ModelProto) -> Iterator[Any]:
    """Yield all graphs and functions, which hold nodes; a graph comes before those in its nodes."""
    waiting: list[Any] = [model.graph, *model.functions]
    while waiting:
        place = waiting.pop()
        yield place
        attributes = [attribute for node in place.node for attribute in node.attribute]
        waiting += [attribute.g for attribute in attributes if attribute.type == AttributeProto.GRAPH]


def _plain(node: NodeProto) -> list[NodeProto]:
    """Return the nodes for one: itself, unless it is a DynamicQuantizeLSTM."""
    if node.op_type != "DynamicQuantizeLSTM":
        return [NodeProto.FromString(node.SerializeToString())]
    inputs = [*map(str, node.input), *[""] * (12 - len(node.input))]
    x, w, r, *rest, w_scale, w_zero, r_scale, r_zero = inputs
    own = f"{next(filter(None, node.output))}/"
    rows = helper.make_tensor("rows", TensorProto.INT64, [3], [0, 1, -1])
    made = [
        helper.make_node("DynamicQuantizeLinear", [x], [own + "q", own + "s", own + "z"]),
        helper.make_node("DequantizeLinear", [own + "q", own + "s", own + "z"], [own + "x"]),
        helper.make_node("Constant", [], [own + "rows"], value=rows),
    ]
    for name, value, scale, zero in (("w", w, w_scale, w_zero), ("r", r, r_scale, r_zero)):
        at = own + name
        made.append(helper.make_node("Cast", [value], [at + "0"], to=TensorProto.FLOAT))
        made.append(helper.make_node("Reshape", [scale, own + "rows"], [at + "scale"]))
        if zero:
            made.append(helper.make_node("Cast", [zero], [at + "float"], to=TensorProto.FLOAT))
            made.append(helper.make_node("Reshape", [at + "float", own + "rows"], [at + "zero"]))
            made.append(helper.make_node("Sub", [at + "0", at + "zero"], [at + "1"]))
        made.append(helper.make_node("Mul", [at + ("1" if zero else "0"), at + "scale"], [at + "2"]))
        made.append(helper.make_node("Transpose", [at + "2"], [at], perm=[0, 2, 1]))
    layer = helper.make_node("LSTM", [own + "x", own + "w", own + "r", *rest], list(node.output))
    layer.attribute.extend(node.attribute)
    return [*made, layer]
