"""Drop nodes that change nothing."""

from __future__ import annotations

from dataclasses import replace

from weft.core.graph import Graph, Node


def remove_identities(graph: Graph) -> Graph:
    """Return the graph without Identity, inference Dropout, and casts, transposes and reshapes to what is.

    A node whose output is an output of the graph stays where its input is one or is an input of the graph:
    the names of outputs are kept.
    """
    out = graph.copy()
    renamed: dict[str, str] = {}
    out.nodes = []
    readers = graph.readers()
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(i, i) for i in node.inputs))
        if _changes_nothing(graph, node, readers[node.outputs[1]] if len(node.outputs) > 1 else 0):
            source, target = node.inputs[0], node.outputs[0]
            if target not in graph.outputs:
                renamed[target] = source
                continue
        out.nodes.append(node)
    return out


def _changes_nothing(graph: Graph, node: Node, mask_readers: int) -> bool:
    kind = node.op.type
    if kind == "Identity":
        return True
    if kind == "Dropout":
        return not mask_readers
    if kind in ("Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand"):
        return graph.specs[node.inputs[0]] == graph.specs[node.outputs[0]]
    if kind == "Transpose":
        rank = len(graph.specs[node.outputs[0]].shape)
        axes = range(rank)
        return (node.op.attributes().get("perm") or tuple(reversed(axes))) == tuple(axes)
    if kind == "Concat":
        return len(node.inputs) == 1
    return False
