"""Find values that are divided by their 2-norm along an axis, as `torch.nn.functional.normalize` is exported."""

from __future__ import annotations

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Shape
from weft.core.graph.op import new_op
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.reader import LEAST, Reader
from weft.core.passes.wide_values import NO_LIMIT


@graph_pass()
def fuse_l2_norm(graph: Graph, context: PassContext) -> Graph:
    """Replace x / max(norm of x along one axis, a number) by a `weft::L2Normalization`.

    The norm is a ReduceL2, or the root of a ReduceSumSquare or of a ReduceSum of squares; a Clip, a Max or nothing
    limits it. No part may have another reader, but for the squares.
    """
    if not Reader.has(graph, "ReduceL2", "ReduceSumSquare", "ReduceSum"):
        return graph
    reader = Reader(graph)
    for quotient, x, divisor in reader.quotients():
        least, norm = _limited(reader, divisor)
        axes = _norm_of(reader, norm, x)
        if len(axes) == 1:
            op = new_op("weft::L2Normalization", axis=axes[0] - len(reader.dims(x)), least=least)
            reader.put(quotient, Node(quotient.name, op, (x,), quotient.outputs))
    return reader.finish()


def _limited(reader: Reader, value: str) -> tuple[float, str]:
    """Return the number that a value is raised to where it is less, and the value before that; 0 if there is none."""
    node = reader.maker(value, "Clip", "Max")
    if node is None or len(node.inputs) < 2:
        return 0.0, value
    source, least, *more = node.inputs
    if node.op.type == "Clip":  # older files have the largest number where there is no maximum
        more = [high for high in more if high and (reader.number(high) or 0) < NO_LIMIT]
    if node.op.type == "Max" and reader.number(source) is not None:
        source, least = least, source
    number = reader.number(least)
    if number is None or not (number == 0 or number >= LEAST) or any(more) or not reader.is_read_once(source):
        return 0.0, value
    return number, source


def _norm_of(reader: Reader, value: str, x: str) -> Shape:
    """Return the axes along which a value is the 2-norm of x, kept with size 1; none if it is no such norm."""
    root = reader.maker(value, "Sqrt")
    if root is None:
        return reader.reduced(reader.maker(value, "ReduceL2"), x)
    total = root.inputs[0]
    if not reader.is_read_once(total):
        return ()
    node = reader.maker(total, "ReduceSum")
    if node is not None and reader.square_of(node.inputs[0]) == x:
        return reader.reduced(node, node.inputs[0])
    return reader.reduced(reader.maker(total, "ReduceSumSquare"), x)
