"""Which values stay float32 where floats are stored as float16: coordinates, what decides a selection, tiny numbers.

A pixel's place in a picture of 320 pixels is off by up to 0.125 in fp16, and a box that is decoded in several steps is
off by more. So ops say which inputs they need in float32 (`Op.wide_inputs`). What element-wise ops and ops that
move elements make these of is float32, too, back to an op of another kind, such as a convolution. So is what such ops
make of these values alone, such as the boxes that a network returns, and what they make of sums of integers and of
scales (`Op.wide_outputs`): sums leave the range of fp16 above, and products of scales below.

The third kind is what constants make that fp16 cannot hold: of `log(x + 1e-10)` nothing would be left but minus
infinity. The result of such a node is float32, and so are what element-wise ops, moves and reductions made for it, and
what they make of it alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.core.graph.control_op import ControlOp
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array

FIRST_ALONE = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Expand", "Tile", "Slice", "Split", "Gather",
    "GatherElements", "GatherND", "Compress", "Pad", "ReduceMax", "ReduceMin", "TopK",
})
"""Ops whose results are elements of the first input; of Concat and Where they are elements of several."""
REDUCTIONS = frozenset({
    "ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "CumSum",
    "ReduceProd",
})
LIMITS = frozenset({"Add", "Sub", "Min", "Max", "Clip", "Where", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
"""Ops that take a number beyond fp16 for a mask or a limit: of fp16 values they make the same of the largest one."""
SMALLEST_NORMAL, LARGEST = 2.0**-14, 65504.0
FEW = 64
"""A constant of at most so many elements keeps float32 for one that fp16 cannot hold, a larger one for all of them."""


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
    return frozenset((wide | _beside_tiny(graph)) - {""})


def _beside_tiny(graph: Graph) -> set[str]:
    """Return the values that stay float32 because of constants that fp16 cannot hold."""
    made = {o for n in graph.nodes if n.op.is_elementwise and any(_beyond_half(graph, n)) for o in n.outputs}
    if not made:
        return made
    needed = set(made)
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs) and spreads(node):
            needed.update(node.outputs)
            needed.update(i for k in _spread(node) if (i := node.inputs[k]) not in graph.constants)
    found = set(made)
    for node in graph.nodes:
        if not spreads(node):
            continue
        read = [node.inputs[k] for k in _spread(node) if node.inputs[k] not in graph.constants]
        if not needed.isdisjoint(node.outputs) or (read and found.issuperset(read)):
            found.update(node.outputs)
    return found


def _beyond_half(graph: Graph, node: Node) -> Iterator[bool]:
    """Tell of each number that an element-wise node brings whether fp16 cannot hold it."""
    multiplies = node.op.type not in LIMITS
    for value in node.op.attributes().values():
        if isinstance(value, float):
            yield _is_beyond(np.float32(value).reshape(1), multiplies=multiplies)
    for name in node.inputs:
        value = graph.constants.get(name)
        if isinstance(value, np.ndarray) and value.dtype == np.float32 and value.size:
            yield _is_beyond(value.reshape(-1), multiplies=multiplies)


def _is_beyond(value: Array, *, multiplies: bool) -> bool:
    size = np.abs(value)
    few = value.size <= FEW
    if few:
        with np.errstate(over="ignore"):
            size = size[(value.astype(np.float16) != value) & (size <= np.finfo(np.float32).max)]
    else:
        size = size[size > 0]
    if not size.size:
        return False
    if few:
        return bool((size < SMALLEST_NORMAL).any() or (multiplies and (size > LARGEST).any()))
    return bool((size < SMALLEST_NORMAL).all() or (multiplies and (size > LARGEST).any()))


def spreads(node: Node) -> bool:
    """Tell whether a node can make float32 results of float32 inputs.

    They are elements of its inputs, are computed element by element, or sum some.
    """
    return bool(_spread(node))


def _spread(node: Node) -> list[int]:
    """Return the positions of the inputs that such results follow from; none for other ops."""
    return [0] if node.op.type in REDUCTIONS else _passed(node)


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
