"""Remove nodes that change nothing."""

from __future__ import annotations

from weft.core.graph.graph import Graph, Node
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
    """Remove Identity, inference Dropout, and casts, transposes and reshapes that change nothing.

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
        elif not aliases.join(node.outputs[0], node.inputs[0]):
            context.leave(node.name, "the names of its input and of its output must both stay")
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
