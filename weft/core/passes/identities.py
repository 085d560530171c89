"""Remove nodes that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Node
from weft.core.graph.symbolic import known
from weft.core.passes.aliases import Aliases
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import changes_nothing, is_move
from weft.core.passes.properties import Property

NO_IDENTITIES = Property(
    "no node that changes nothing",
    lambda graph: [n.name for n in graph.nodes if _changes_nothing(graph, n)],
)


COMBINING = frozenset({"ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "GlobalAveragePool"})
COMBINING |= {"GlobalMaxPool"}
"""Ops that return each element as it is where they combine only one; then the result has the shape of the input."""
POOLS = frozenset({"AveragePool", "MaxPool"})
MOVED_AT_ONCE = frozenset({"tf_crop_and_resize", "tf_half_pixel_for_nn"})
"""Ways of Resize that read other places even where the size stays."""


@graph_pass(ensures=(NO_IDENTITIES,))
def remove_identities(graph: Graph, context: PassContext) -> Graph:
    """Remove Identity, inference Dropout, and whatever else changes nothing: casts, moves, factors, pools of one pixel.

    Reductions of single elements and Resizes that keep each size are among them.

    If the node's output is an output of the graph, the node before it writes it under that name. The node stays if
    its input is an input or another output of the graph: both names must stay.
    """
    if not NO_IDENTITIES.broken_by(graph):
        return graph
    out = graph.copy()
    aliases = Aliases(graph)
    readers = graph.readers()
    nodes = []
    for each in graph.nodes:
        node = aliases.read(each)
        if not _changes_nothing(graph, node):
            nodes.append(node)
        elif any(readers[o] for o in node.outputs[1:]):
            context.leave(node.name, "its other outputs are read, too")
            nodes.append(node)
        elif not aliases.join(node.outputs[0], _times_one(graph, node) or node.inputs[0]):
            context.leave(node.name, "the names of its input and of its output must both stay")
            nodes.append(node)
    out.nodes = aliases.finish(nodes)
    return out


def _changes_nothing(graph: Graph, node: Node) -> bool:
    kind = node.op.type
    if is_move(node):
        return changes_nothing(graph, node)
    if kind in ("Identity", "Dropout") or (kind == "Concat" and len(node.inputs) == 1):
        return True
    if _times_one(graph, node) is not None or (kind in POOLS and _pools_nothing(node)):
        return True
    parameters = [known(graph.constants.get(name)) for name in node.inputs]
    if kind == "Pad":
        fitting = len(parameters) > 1 and parameters[1] is not None and not parameters[1].any()
    elif kind == "Slice":
        steps = parameters[4] if len(node.inputs) > 4 and node.inputs[4] else np.ones(1)
        fitting = steps is not None and bool((steps > 0).all())
    elif kind == "Resize":
        fitting = _keeps_sizes(node, parameters)
    else:
        fitting = kind in ("Cast", "Expand", "Tile") or kind in COMBINING
    return fitting and graph.specs[node.inputs[0]] == graph.specs[node.outputs[0]]


def _pools_nothing(node: Node) -> bool:
    """Tell whether a pool's window is one pixel that goes from each to the next, as in an adaptive pool to its size."""
    op: Any = node.op
    return {*op.kernel_shape, *op.strides} == {1} and not any(op.pads)


def _keeps_sizes(node: Node, parameters: list[np.ndarray[Any, Any] | None]) -> bool:
    """Tell whether a Resize whose result has its input's shape samples each pixel where it is."""
    op: Any = node.op
    scales = parameters[2] if len(node.inputs) > 2 and node.inputs[2] else np.ones(1)
    return op.coordinate_transformation_mode not in MOVED_AT_ONCE and scales is not None and bool((scales == 1).all())


def _times_one(graph: Graph, node: Node) -> str | None:
    """Return the value that a node multiplies by 1, or divides by 1; None if it does not, or if that repeats it."""
    if node.op.type not in ("Mul", "Div"):
        return None
    first, second = node.inputs
    pairs = [(first, second), *([(second, first)] if node.op.type == "Mul" else ())]
    same = graph.specs[node.outputs[0]]
    return next((x for x, factor in pairs if graph.specs[x] == same and _is_one(graph, factor)), None)


def _is_one(graph: Graph, name: str) -> bool:
    """Tell whether a value is a constant all of whose elements are 1."""
    array = known(graph.constants.get(name))
    return array is not None and bool(array.size) and array.flat[0] == 1 and bool((array == 1).all())
