"""Let nodes read through casts that lose nothing."""

from __future__ import annotations

from dataclasses import replace

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import Property

WIDER_FLOATS = {
    DType.FLOAT16: (DType.FLOAT32, DType.FLOAT64),
    DType.BFLOAT16: (DType.FLOAT32, DType.FLOAT64),
    DType.FLOAT32: (DType.FLOAT64,),
}
PREDICATES = frozenset({"IsInf", "IsNaN"})

NO_CASTS_TO_READ_THROUGH = Property(
    "no cast and no test for infinity or NaN that reads what a widening cast makes",
    lambda graph: [old.name for old, new in zip(graph.nodes, _rewritten(graph), strict=True) if new is not old],
)


@graph_pass(ensures=(NO_CASTS_TO_READ_THROUGH,))
def read_through_casts(graph: Graph, context: PassContext) -> Graph:
    """Let casts, IsInf and IsNaN read what a cast to a wider type reads: the wider type holds the same values.

    Casts that nobody reads then go. Exporters widen for ops that older opsets knew for few types: IsInf of float16
    becomes one of float64, which GPUs refuse.
    """
    if not NO_CASTS_TO_READ_THROUGH.broken_by(graph):
        return graph
    out = graph.copy()
    out.nodes = _rewritten(graph)
    return without_dead_nodes(out)


def _rewritten(graph: Graph) -> list[Node]:
    """Return all nodes; each reads through a cast if it can."""
    narrow: dict[str, str] = {}  # the value that a widening cast reads, by the value that it makes
    nodes = []
    for each in graph.nodes:
        node = _reading(graph, each, narrow)
        # Once it reads through another one, a cast that was none to a wider type may be one.
        if node.op.type == "Cast" and _widens(*(graph.specs[v].dtype for v in (node.inputs[0], node.outputs[0]))):
            narrow[node.outputs[0]] = node.inputs[0]
        nodes.append(node)
    return nodes


def _widens(source: DType, to: DType) -> bool:
    """Tell whether the wider type holds every value of the source, of the same kind."""
    if source.is_integer and to.is_integer:
        return source.bits < to.bits and source.is_signed <= to.is_signed
    return to in WIDER_FLOATS.get(source, ())


def _reading(graph: Graph, node: Node, narrow: dict[str, str]) -> Node:
    """Return the node, reading the value before the casts if it says the same of that."""
    source = narrow.get(node.inputs[0]) if node.inputs else None
    if source is None or node.op.type not in PREDICATES | {"Cast"}:
        return node
    if node.op.type == "Cast":
        # From integers to floats and back, a kernel may have no direct way.
        before, after = graph.specs[source].dtype, graph.specs[node.outputs[0]].dtype
        if not ((before.is_float and after.is_float) or (before.is_integer and after.is_integer)):
            return node
    return replace(node, inputs=(source, *node.inputs[1:]))
