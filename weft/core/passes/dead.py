"""Remove nodes, constants and specs that no output depends on."""

from __future__ import annotations

from weft.core.graph.graph import Graph
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import NO_DEAD_NODES


@graph_pass(ensures=(NO_DEAD_NODES,))
def remove_dead_nodes(graph: Graph, context: PassContext) -> Graph:
    """Remove the nodes, constants and specs that no output depends on.

    A node without outputs runs for its effect: it stays, with what it reads.
    """
    return without_dead_nodes(graph)


def without_dead_nodes(graph: Graph) -> Graph:
    """Return the graph without dead nodes, and without what only they read."""
    out = graph.copy()
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if not node.outputs or any(o in needed for o in node.outputs):
            kept.append(node)
            needed.update(i for i in node.inputs if i)
    out.nodes = kept[::-1]
    return remove_unread(out)


def remove_unread(graph: Graph) -> Graph:
    """Return the graph without constants that no node reads, and without specs of values that do not exist."""
    out = graph.copy()
    read = {i for n in graph.nodes for i in n.inputs} | set(graph.outputs)
    known = {*read, *graph.inputs, *(o for n in graph.nodes for o in n.outputs)}
    out.constants = {k: v for k, v in graph.constants.items() if k in read}
    out.specs = {k: v for k, v in graph.specs.items() if k in known}
    return out
