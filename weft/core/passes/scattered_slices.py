"""Write slices of a value by a Concat, which mostly costs nothing, in place of a scatter."""

from __future__ import annotations

import numpy as np

from weft.core.graph.composite import Body
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.symbolic import known
from weft.core.passes.manager import PassContext, graph_pass


@graph_pass()
def concat_scattered_slices(graph: Graph, context: PassContext) -> Graph:
    """Let a Concat join what a ScatterND leaves of its data with the updates, where these are slices in a row.

    PyTorch's exporter writes an assignment to a slice (`x[:, 1:] = y`) so, between transposes.
    """
    found = {node.name: start for node in graph.nodes if (start := _first_slice(graph, node)) is not None}
    if not found:
        return graph
    out, names, nodes = graph.copy(), Names(graph), list[Node]()
    for node in graph.nodes:
        if node.name not in found:
            nodes.append(node)
            continue
        data, _, updates = node.inputs
        make, start = Body(out, node.name, names), found[node.name]
        size, end = make.dims(data)[0], start + make.dims(updates)[0]
        parts = [updates]
        if start:
            parts.insert(0, make.part(data, 0, 0, start))
        if end < size:
            parts.append(make.part(data, 0, end, size))
        joined = make.add("Concat", *parts, axis=0) if len(parts) > 1 else updates
        nodes += make.finish([joined], node.outputs)
    out.nodes = nodes
    return out


def _first_slice(graph: Graph, node: Node) -> int | None:
    """Return the first of the slices of the first axis that a node writes in order; None if it does anything else."""
    if node.op.type != "ScatterND" or getattr(node.op, "reduction", "none") != "none":
        return None
    places, size = known(graph.constants.get(node.inputs[1])), graph.specs[node.inputs[0]].dims[0]
    if places is None or places.ndim != 2 or places.shape[1] != 1 or not len(places) or not isinstance(size, int):
        return None
    rows = places[:, 0] % size
    return int(rows[0]) if (rows == np.arange(rows[0], rows[0] + len(rows))).all() else None
