"""Let element-wise nodes broadcast what an Expand would store in full."""

from __future__ import annotations

from dataclasses import replace

from weft.core.graph.graph import Graph, Node
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import Property


def _rewritten(graph: Graph) -> list[Node]:
    """Return all nodes; each element-wise one reads before an Expand if it can."""
    before: dict[str, str] = {}
    readers, nodes = graph.readers(), list[Node]()
    for each in graph.nodes:
        node = _reading(graph, each, before, readers) if before and each.op.is_elementwise else each
        if node.op.type == "Expand":
            before[node.outputs[0]] = before.get(node.inputs[0], node.inputs[0])
        nodes.append(node)
    return nodes


def _reading(graph: Graph, node: Node, before: dict[str, str], readers: dict[str, int]) -> Node:
    """Return the node, with values before an Expand in place of expanded ones as long as its result has its shape."""
    if before.keys().isdisjoint(node.inputs):
        return node
    whole = graph.specs[node.outputs[0]].dims
    # A value with this reader alone may be computed by the same kernel, which reads beside it what has its shape.
    keeps = any(i and i not in before and readers[i] > 1 and graph.specs[i].dims == whole for i in node.inputs)
    return replace(node, inputs=tuple(before.get(i, i) for i in node.inputs)) if keeps else node


NO_EXPANDS_TO_BROADCAST = Property(
    "no element-wise node that reads an Expand and could broadcast what that reads",
    lambda graph: [old.name for old, new in zip(graph.nodes, _rewritten(graph), strict=True) if new is not old],
)


@graph_pass(ensures=(NO_EXPANDS_TO_BROADCAST,))
def broadcast_expands(graph: Graph, context: PassContext) -> Graph:
    """Let element-wise nodes broadcast what an Expand reads, beside a value of the result's shape.

    Exporters spread gates and statistics over images so. Expands that nobody reads then go.
    """
    if not NO_EXPANDS_TO_BROADCAST.broken_by(graph):
        return graph
    out = graph.copy()
    out.nodes = _rewritten(graph)
    return without_dead_nodes(out)
