"""Drop what nobody reads."""

from __future__ import annotations

from weft.core.graph import Graph


def remove_dead_nodes(graph: Graph) -> Graph:
    """Return the graph without nodes, constants and specs that no output depends on."""
    out = graph.copy()
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if any(o in needed for o in node.outputs):
            kept.append(node)
            needed.update(i for i in node.inputs if i)
    out.nodes = kept[::-1]
    made = {o for n in out.nodes for o in n.outputs if o}
    out.constants = {k: v for k, v in graph.constants.items() if k in needed}
    out.specs = {k: v for k, v in graph.specs.items() if k in needed or k in made or k in graph.inputs}
    return out
