"""Drop what nobody reads."""

from __future__ import annotations

from weft.core.graph import Graph


def remove_dead_nodes(graph: Graph) -> Graph:
    """Return the graph without nodes, constants and specs that no output depends on.

    A node that has no outputs at all is there for what it does: it stays, and what it reads.
    """
    out = graph.copy()
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if not node.outputs or any(o in needed for o in node.outputs):
            kept.append(node)
            needed.update(i for i in node.inputs if i)
    out.nodes = kept[::-1]
    made = {o for n in out.nodes for o in n.outputs if o}
    out.constants = {k: v for k, v in graph.constants.items() if k in needed}
    out.specs = {k: v for k, v in graph.specs.items() if k in needed or k in made or k in graph.inputs}
    return out
