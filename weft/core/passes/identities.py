"""Drop nodes that change nothing."""

from __future__ import annotations

from weft.core.graph.graph import Graph, Node
from weft.core.passes.aliases import Aliases
from weft.core.passes.moves import changes_nothing, is_move


def remove_identities(graph: Graph) -> Graph:
    """Return the graph without Identity, inference Dropout, and casts, transposes and reshapes to what is.

    Where the output of such a node is an output of the graph, what makes its input makes it under that
    name; the node stays if the input is given, or is an output as well: both names are kept.
    """
    out = graph.copy()
    aliases = Aliases(graph)
    readers = graph.readers()
    nodes = []
    for each in graph.nodes:
        node = aliases.read(each)
        others_read = any(readers[o] for o in node.outputs[1:])
        if others_read or not _changes_nothing(graph, node) or not aliases.join(node.outputs[0], node.inputs[0]):
            nodes.append(node)
    out.nodes = aliases.finish(nodes)
    return out


def _changes_nothing(graph: Graph, node: Node) -> bool:
    kind = node.op.type
    if is_move(node):
        return changes_nothing(graph, node)
    if kind in ("Cast", "Expand"):
        return graph.specs[node.inputs[0]] == graph.specs[node.outputs[0]]
    return kind in ("Identity", "Dropout") or (kind == "Concat" and len(node.inputs) == 1)
