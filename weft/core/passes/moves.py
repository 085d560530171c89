"""Transposes and reshapes, the ops that move elements and compute nothing: what the passes that rewrite them share."""

from __future__ import annotations

from math import prod
from typing import Any

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Shape
from weft.core.graph.op import new_op
from weft.core.graph.symbolic import int_array
from weft.core.graph.tensor import TensorSpec

RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""The ops that keep the order of the elements; the spec of the result describes them fully."""

Order = tuple[int, ...]


def is_move(node: Node) -> bool:
    """Tell whether the node is a transpose or a reshape."""
    return node.op.type in RESHAPES or node.op.type == "Transpose"


def order_of(graph: Graph, node: Node) -> Order | None:
    """Return the input's axes in the order of the output for a transpose, None for another op."""
    if node.op.type != "Transpose":
        return None
    op: Any = node.op
    return tuple(int(axis) for axis in op.order(len(graph.specs[node.inputs[0]].dims)))


def compose(first: Order, second: Order) -> Order:
    """Return the order of one transpose that does what `first` and then `second` do."""
    return tuple(first[axis] for axis in second)


def is_identity(order: Order) -> bool:
    """Tell whether every axis stays where it is."""
    return order == tuple(range(len(order)))


def keeps_elements(dims: Shape, order: Order | None) -> bool:
    """Tell whether a move keeps the order of a tensor's elements, because it moves only axes of size 1."""
    return order is None or (moved := [axis for axis in order if dims[axis] != 1]) == sorted(moved)


def axis_before(graph: Graph, node: Node, axis: int) -> int | None:
    """Return which axis of what a transpose or reshape reads is this one of its result; None if it keeps no such axis.

    A reshape does not if it divides the axis, or joins it with another.
    """
    if (order := order_of(graph, node)) is not None:
        return order[axis]
    before, after = graph.specs[node.inputs[0]].dims, graph.specs[node.outputs[0]].dims
    behind = prod(after[axis + 1 :])
    # From the last axis, behind which there is nothing: open sizes need not be compared for it.
    places = (k for k in reversed(range(len(before))) if prod(before[k + 1 :]) == behind and before[k] == after[axis])
    return next(places, None)


def changes_nothing(graph: Graph, node: Node) -> bool:
    """Tell whether the output of a transpose or reshape is its input."""
    before, after = graph.specs[node.inputs[0]], graph.specs[node.outputs[0]]
    return before == after and keeps_elements(before.dims, order_of(graph, node))


def transpose(name: str, source: str, order: Order, output: str) -> Node:
    """Return a transpose of `source` to the value `output`."""
    return Node(name, new_op("Transpose", perm=order), (source,), (output,))


def reshape(graph: Graph, names: Names, name: str, source: str, output: str) -> Node:
    """Return a Reshape of `source` to the value `output`, whose shape becomes a constant of the graph."""
    dims = graph.specs[output].dims
    shape = names.fresh(f"{name}.shape")
    graph.constants[shape] = int_array(dims)
    graph.specs[shape] = TensorSpec((len(dims),), DType.INT64)
    return Node(name, new_op("Reshape", allowzero=int(0 in dims)), (source, shape), (output,))
