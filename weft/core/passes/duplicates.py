"""Compute small values once that several nodes would compute alike.

Ops that are taken apart bring such nodes: each attention of a language model makes the mask of the same lengths.
"""

from __future__ import annotations

from dataclasses import replace

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.passes.dead import remove_unread

SMALL = 1 << 18
"""Most elements of a value that is shared. A larger one would stay in memory for long, and its nodes are fused."""
FEW = 1 << 14
"""Most elements of a constant that is compared by them."""


def share_small_values(graph: Graph) -> Graph:
    """Let nodes with the same op and inputs be one, where their results are small and the same in each run."""
    out, renamed = graph.copy(), dict[str, str]()
    made: dict[object, Node] = {}
    constants: dict[object, str] = {}
    for name, value in graph.constants.items():
        first = constants.setdefault(_of_constant(value), name)
        if first != name and name not in graph.outputs:
            renamed[name] = first
    out.nodes = []
    for node in graph.nodes:
        inputs = tuple(renamed.get(i, i) for i in node.inputs)
        if inputs != node.inputs:
            node = replace(node, inputs=inputs)
        key = None if node.op.is_random or not node.outputs or not _is_small(graph, node) else _key(node)
        before = None if key is None else made.setdefault(key, node)
        if before is None or before is node or not {*node.outputs}.isdisjoint(graph.outputs):
            out.nodes.append(node)
        else:
            renamed.update(zip(node.outputs, before.outputs, strict=True))
    return remove_unread(out) if renamed else graph


def _is_small(graph: Graph, node: Node) -> bool:
    return all(graph.specs[o].size <= SMALL for o in node.outputs if o)


def _key(node: Node) -> object:
    try:
        key = (type(node.op), node.op, node.inputs, len(node.outputs))
        hash(key)
    except TypeError:  # an attribute that has no hash
        return None
    return key


def _of_constant(value: Array) -> object:
    if value.dtype != object and value.size <= FEW:
        return value.dtype.str, value.shape, value.tobytes()
    return id(value)
