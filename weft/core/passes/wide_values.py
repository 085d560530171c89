"""Which values stay float32 where floats are stored as float16: coordinates, what decides a selection, extreme numbers.

A pixel's place in a picture of 320 pixels is off by up to 0.125 in fp16, and a box that is decoded in several steps is
off by more. So ops say which inputs they need in float32 (`Op.wide_inputs`). What element-wise ops and ops that
move elements make these of is float32, too, back to an op of another kind, such as a convolution. So is what such ops
make of these values alone, such as the boxes that a network returns, and what they make of sums of integers and of
scales (`Op.wide_outputs`): sums leave the range of fp16 above, and products of scales below.

The third kind is what a node makes with a constant that fp16 cannot hold (`Extreme`): of `log(x + 1e-10)` nothing would
be left but minus infinity. What element-wise ops, moves and reductions make of such a result alone is float32, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Flag, auto

import numpy as np

from weft.core.graph.control_op import ControlOp
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.symbolic import is_symbolic
from weft.core.graph.widened import Widened

FIRST_ALONE = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Expand", "Tile", "Slice", "Split", "Gather",
    "GatherElements", "GatherND", "Compress", "Pad", "ReduceMax", "ReduceMin", "TopK",
})
"""Ops whose results are elements of the first input; of Concat and Where they are elements of several."""
REDUCTIONS = frozenset({
    "ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "CumSum",
    "ReduceProd",
})
CHOICES = frozenset({"Where", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
"""Ops that make the same of fp16's largest number as of a constant beyond it: it is above all that they meet."""
LIMITS = frozenset({"Min", "Max", "Clip"})
"""Ops that limit what they read, which in a fused kernel may itself be beyond fp16."""
NO_LIMIT = 1e30
"""From here on a limit means that there is none: exporters write the largest float."""
WEIGHTS = frozenset({"Mul", "PRelu", "Add", "Sub"})
"""Ops whose constants may be weights, of which single ones are tiny because training made nothing of them."""
RELATIVE = frozenset({
    "Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization",
    "LpNormalization", "MeanVarianceNormalization", "weft::L2Normalization", "weft::SumNormalization",
    "weft::GroupDeviation",
})
"""Ops whose results follow from how the numbers that they read differ: in fp16 nothing is left of that among numbers
that it cannot hold. They make float32 where that is needed: of small shares fp16 leaves nothing either."""
SMALLEST, LARGEST = 2.0**-17, 65504.0
"""The ends of fp16. Below the first it has fewer than eight significant bits, which is what bfloat16 has."""
FEW = 64
"""So many elements are no table of weights."""


class Extreme(Flag):
    """What a constant that fp16 cannot hold asks for, beside float32 for what is made with it."""

    HERE = auto()
    """Nothing else: the result is tiny."""
    BEFORE = auto()
    """The other operand in float32: what is left of it beside a tiny number, or grows by a large factor."""
    BEYOND = auto()
    """Float32 for all that element-wise ops, moves and reductions make of the result: it may be beyond fp16."""


def wide_values(graph: Graph) -> frozenset[str]:
    """Return the values of a graph that stay float32, `Graph.wide` among them; shapes need not be known."""
    return wide_and_extreme(graph)[0]


def wide_and_extreme(graph: Graph) -> tuple[frozenset[str], frozenset[str]]:
    """Return the `wide_values` of a graph, and those among them that are so for constants which fp16 cannot hold."""
    wide = {*graph.wide, *graph.overflowing}
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
    found = _beside_extremes(graph)[0]
    return frozenset((wide | found) - {""}), frozenset(found)


def masks(graph: Graph) -> frozenset[str]:
    """Return the values that may be beyond fp16 and that are masks of attention.

    To it fp16's lowest number says the same as one below it, and minus infinity everywhere nothing. So numbers of a
    mask that are finite must be so in fp16, too.
    """
    attentions = (node for node in graph.nodes if node.op.type == "weft::Attention")
    read = {i for node in attentions for i in node.inputs[1 if node.op.attributes()["packed"] else 3 :]}
    return frozenset(_beside_extremes(graph)[1] & read) if read else frozenset()


def limits_alone(graph: Graph) -> frozenset[str]:
    """Return the values that nodes read as limits alone: beyond fp16 they are infinite, not fp16's largest number."""
    read, others = set[str](), set(graph.outputs)
    for node in graph.nodes:
        (read if node.op.type in LIMITS else others).update(node.inputs)
    return frozenset(read - others)


def makes_wide(graph: Graph, node: Node) -> bool:
    """Tell whether a node makes float32 whatever kind of op it is, for a constant or a result that fp16 cannot hold."""
    return not graph.overflowing.isdisjoint(node.outputs) or any(_extremes(graph, node))


def _beside_extremes(graph: Graph) -> tuple[set[str], set[str]]:
    """Return the values that constants which fp16 cannot hold keep float32, and those that may be beyond fp16."""
    found, needed, beyond = set[str](), set[str](), set[str]()
    hide = _hide_keys(graph)
    for node in graph.nodes:
        for extreme in _extremes(graph, node) if node.op.type != "Mul" or not hide.issuperset(node.outputs) else ():
            found.update(node.outputs)
            if extreme & Extreme.BEFORE:
                needed.update(node.outputs)
            if extreme & Extreme.BEYOND:
                beyond.update(node.outputs)
    if not found:
        return found, beyond
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            if spreads(node):
                needed.update(_read(graph, node))
            elif node.op.type in RELATIVE:
                found.update(node.outputs)
    for node in graph.nodes:
        if not spreads(node):
            continue
        read = _read(graph, node)
        if not beyond.isdisjoint(read):
            beyond.update(node.outputs)
        if not needed.isdisjoint(node.outputs) or not beyond.isdisjoint(node.outputs) or (read and found >= read):
            found.update(node.outputs)
    return found, beyond


def _hide_keys(graph: Graph) -> set[str]:
    """Return the values that only attentions read, or only moves for them: fp16's lowest number hides a key, too."""
    others, hide = set(graph.outputs), set[str]()
    for node in reversed(graph.nodes):
        moved = node.op.type in FIRST_ALONE and hide.issuperset(node.outputs) and others.isdisjoint(node.outputs)
        (hide if moved or node.op.type == "weft::Attention" else others).update(node.inputs)
    return hide - others


def _read(graph: Graph, node: Node) -> set[str]:
    """Return the values that are no constants and that a node's results follow from."""
    return {node.inputs[k] for k in _spread(node)} - graph.constants.keys()


def _extremes(graph: Graph, node: Node) -> Iterator[Extreme]:
    """Return what each number of a node asks for that fp16 cannot hold."""
    for value in node.op.attributes().values() if node.op.is_elementwise else ():
        if isinstance(value, float):
            yield from _extreme(node, -1, np.array([value], np.float32))
    exact = {*node.op.wide_inputs, *node.op.exact_parameters}
    for k, name in enumerate(node.inputs):
        value = graph.constants.get(name)
        if k not in exact and value is not None and not is_symbolic(value) and value.dtype == np.float32:
            yield from _extreme(node, k, value)


def _extreme(node: Node, position: int, value: Array) -> Iterator[Extreme]:
    """Return what a constant asks for; nothing if fp16 holds it. Infinities and NaN are held."""
    kind = node.op.type
    if _is_tiny(node, position, value):
        if kind == "Mul" or (kind == "Div" and position == 0):
            yield Extreme.HERE
        else:
            yield Extreme.BEFORE | Extreme.BEYOND if kind == "Div" else Extreme.BEFORE
    if isinstance(value, Widened) or kind in CHOICES or not value.size or max(value.max(), -value.min()) <= LARGEST:
        return
    sizes = _sizes(value)
    if ((sizes > LARGEST) & ((sizes < NO_LIMIT) | (kind not in LIMITS))).any():
        if kind == "Div" and position == 1:
            yield Extreme.HERE
        else:
            yield Extreme.BEYOND if kind in ("Add", "Sub") else Extreme.BEFORE | Extreme.BEYOND


def _is_tiny(node: Node, position: int, value: Array) -> bool:
    """Tell whether fp16 is too coarse for a constant: for all that is not 0, or for a limit or divisor among few."""
    is_elementwise, is_short = node.op.is_elementwise, value.size <= FEW
    if position > 1 and not is_elementwise:  # layers only add them to larger numbers
        return False
    if not value.size or not (is_short or _sizes(value.reshape(-1)[:FEW]).max() < SMALLEST):
        return False
    sizes = _sizes(value)
    tiny = sizes[sizes > 0] < SMALLEST
    any_counts = is_elementwise and is_short and node.op.type not in WEIGHTS
    return bool(tiny.any() if any_counts else tiny.size and tiny.all())


def _sizes(value: Array) -> Array:
    """Return the magnitudes of the finite numbers, and 0 for others."""
    return np.where(np.isfinite(value), np.abs(value), 0)


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
