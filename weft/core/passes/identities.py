"""Remove nodes that change nothing."""

from __future__ import annotations

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


@graph_pass(ensures=(NO_IDENTITIES,))
def remove_identities(graph: Graph, context: PassContext) -> Graph:
    """Remove Identity, inference Dropout, casts, transposes, reshapes, slices, pads and factors that change nothing.

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
    if _times_one(graph, node) is not None:
        return True
    parameters = [known(graph.constants.get(name)) for name in node.inputs]
    if kind == "Pad":
        fitting = len(parameters) > 1 and parameters[1] is not None and not parameters[1].any()
    elif kind == "Slice":
        steps = parameters[4] if len(node.inputs) > 4 and node.inputs[4] else np.ones(1)
        fitting = steps is not None and bool((steps > 0).all())
    else:
        fitting = kind in ("Cast", "Expand", "Tile")
    return fitting and graph.specs[node.inputs[0]] == graph.specs[node.outputs[0]]


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
