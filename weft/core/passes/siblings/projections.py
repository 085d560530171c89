"""Compute the Q, K and V of an attention by one product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.core.graph.graph import Graph
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.patterns.attention import ATTENTION
from weft.core.passes.reader import Reader
from weft.core.passes.siblings.joint_product import join_within_budget, read_projection


@graph_pass()
def join_projections(graph: Graph, context: PassContext) -> Graph:
    """Compute an attention's Q, K and V by one matrix product where three products read one value.

    Weights and biases must be constants. Where only some have a bias, as in BEiT, the others get zeros. Their columns
    are joined side by side, within the budget.
    """
    if not Reader.has(graph, ATTENTION):
        return graph
    reader = Reader(graph)
    for node in reader.nodes(ATTENTION):
        op: Any = node.op
        if not op.heads or op.packed:
            continue
        parts = [p for i in node.inputs[:3] if reader.is_read_once(i) and (p := read_projection(reader, i)) is not None]
        equal = len({(p.x, reader.dims(p.weight)) for p in parts}) == 1
        made = join_within_budget(reader, context, node.name, parts) if len(parts) == 3 and equal else ()
        if made:
            packed = replace(op, packed=1)
            reader.put(node, *made, replace(node, op=packed, inputs=(made[-1].outputs[0], *node.inputs[3:])))
    return reader.finish()
