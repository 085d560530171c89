"""Which values stay float32 where floats are stored as float16: coordinates, and what decides a selection.

A pixel's place in a picture of 320 pixels is off by up to 0.125 in fp16, and a box that is decoded in several steps is
off by more. So ops say which inputs they need in float32 (`Op.wide_inputs`). What element-wise ops and ops that
move elements make these of is float32, too, back to an op of another kind, such as a convolution. So is what such ops
make of these values alone, such as the boxes that a network returns, and what they make of sums of integers and of
scales (`Op.wide_outputs`): sums leave the range of fp16 above, and products of scales below.
"""

from __future__ import annotations

from weft.core.graph.control_op import ControlOp
from weft.core.graph.graph import Graph, Node

FIRST_ALONE = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Expand", "Tile", "Slice", "Split", "Gather",
    "GatherElements", "GatherND", "Compress", "Pad", "ReduceMax", "ReduceMin", "TopK",
})
"""Ops whose results are elements of the first input; of Concat and Where they are elements of several."""


def wide_values(graph: Graph) -> frozenset[str]:
    """Return the values of a graph that stay float32, `Graph.wide` among them; shapes need not be known."""
    wide = {*graph.wide}
    for node in graph.nodes:
        wide.update(node.outputs[k] for k in node.op.wide_outputs if k < len(node.outputs))
    for node in reversed(graph.nodes):
        places = set(node.op.wide_inputs)
        if not wide.isdisjoint(node.outputs):
            places.update(_passed(node))
        wide.update(node.inputs[k] for k in places if k < len(node.inputs))
        if isinstance(node.op, ControlOp):
            wide |= _captured(node, node.op)
    for node in graph.nodes:
        read = [node.inputs[k] for k in _passed(node) if node.inputs[k] not in graph.constants]
        if read and wide.issuperset(read):
            wide.update(node.outputs)
    return frozenset(wide - {""})


def spreads(node: Node) -> bool:
    """Tell whether a node's results are elements of its inputs, or are computed element by element."""
    return bool(_passed(node))


def _passed(node: Node) -> list[int]:
    """Return the positions of the inputs whose elements the results are, or are computed of; none for other ops."""
    kind, every = node.op.type, range(len(node.inputs))
    if kind in FIRST_ALONE:
        return [0]
    if kind == "Where":
        return [1, 2]
    return [k for k in every if node.inputs[k]] if kind in ("Concat", "Cast") or node.op.is_elementwise else []


def _captured(node: Node, op: ControlOp) -> set[str]:
    """Return the values around an op that graphs which it holds need in float32."""
    found = set[str]()
    for value in op.attributes().values():
        if isinstance(value, Graph):
            inner = wide_values(value)
            outer = zip(value.inputs[::-1], node.inputs[::-1], strict=False)
            found.update(out for own, out in list(outer)[: op.captures] if own in inner)
    return found
