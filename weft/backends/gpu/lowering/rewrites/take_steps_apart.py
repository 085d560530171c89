"""Compute fused steps as nodes of their own, on devices whose compiler rewrites them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.backends.gpu.lowering.fusion.epilogues import taken_apart
from weft.core.graph.described import described
from weft.core.graph.fused_op import Fused
from weft.core.graph.graph import Graph, Names, Node


def take_steps_apart(graph: Graph) -> Graph:
    """Return the graph with a node for each base and each step of fused nodes."""
    if not any(isinstance(node.op, Fused) for node in graph.nodes):
        return graph
    out, names = graph.copy(), Names(graph)
    out.nodes = [part for node in graph.nodes for part in _parts(out, node, names)]
    return out


def _parts(graph: Graph, node: Node, names: Names) -> Iterator[Node]:
    """Yield the nodes of which a node is made, and add the specs of the values between them to the graph."""
    if not isinstance(node.op, Fused):
        yield node
        return
    made, (*parts, last) = taken_apart(described(graph, node)[0], node.op, node.inputs, names.fresh)
    for part in parts:
        graph.specs |= {name: made.specs[name] for name in part.outputs}
        yield replace(part, name=names.fresh(f"{node.name}.{part.name}"))
    yield replace(last, name=node.name, outputs=node.outputs)
