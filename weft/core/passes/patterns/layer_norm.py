"""Find layer norms among their parts, as exporters write them before opset 17."""

from __future__ import annotations

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Shape
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.patterns.quotients import (
    Over,
    Quotient,
    full_dims,
    is_known,
    over_last_axes,
    put_norm,
    quotients,
)
from weft.core.passes.reader import Reader


@graph_pass()
def fuse_layer_norm(graph: Graph, context: PassContext) -> Graph:
    """Replace (x - mean) / sqrt(variance + epsilon) * scale + shift by a LayerNormalization.

    The parts are ReduceMean, Sub, Pow (or Mul), ReduceMean, Add, Sqrt, a division (see `quotients`) and, if there are a
    scale and a shift, Mul and Add. The means are over the last axes; scale and shift have the shape of these axes.
    """
    return with_layer_norms(graph, over_last_axes)


def with_layer_norms(graph: Graph, over: Over) -> Graph:
    """Return the graph with layer norms over such axes in place of their parts."""
    if not Reader.has(graph, "ReduceMean"):
        return graph
    reader = Reader(graph)
    for found in quotients(reader, over):
        centred = _centred(reader, found.squared)
        if centred and centred[1] == found.axes and _centred(reader, found.dividend) == centred:
            _put(reader, found, centred[0])
    return reader.finish()


def _centred(reader: Reader, value: str) -> tuple[str, Shape] | None:
    """Return x and the axes of the mean, if a value is x minus its mean."""
    node = reader.maker(value, "Sub")
    mean = node and reader.mean(node.inputs[1])
    return mean if node and mean and mean[0] == node.inputs[0] else None


def _put(reader: Reader, found: Quotient, x: str) -> None:
    """Replace the quotient, the product with the scale, or the sum with the shift behind it."""
    root, scale = _with_parameter(reader, found.node, "Mul", x, found.axes)
    root, shift = _with_parameter(reader, root, "Add", x, found.axes)
    parameters = (scale or reader.one(x), *([shift] if shift else []))
    put_norm(reader, root, "LayerNormalization", x, found.axes, {"epsilon": found.epsilon}, parameters)


def _with_parameter(reader: Reader, node: Node, kind: str, x: str, axes: Shape) -> tuple[Node, str]:
    """Return the reader of a node that applies a constant of the shape of these axes of x, and the constant.

    If there is none, return the node, and no constant.
    """
    value = node.outputs[0]
    found = reader.only_reader(value, kind)
    parameter = reader.other(found, value) if found else ""
    fits = bool(parameter) and is_known(reader, parameter) and _spans(reader, parameter, x, axes)
    return (found, parameter) if found and fits else (node, "")


def _spans(reader: Reader, parameter: str, x: str, axes: Shape) -> bool:
    """Tell whether a parameter has the shape of these axes of x, and is broadcast along no other axis."""
    dims, rank = reader.dims(x), len(reader.dims(x))
    if axes[-1] == rank - 1:
        return reader.dims(parameter) == dims[axes[0] :]
    return full_dims(reader, parameter, rank) == tuple(d if axis in axes else 1 for axis, d in enumerate(dims))
