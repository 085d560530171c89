"""Write boxes of a value by a Concat, which mostly costs nothing, in place of a scatter."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from weft.core.graph.composite import Body
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Shape
from weft.core.graph.symbolic import known
from weft.core.passes.manager import PassContext, graph_pass


@dataclass(frozen=True)
class _Box:
    """Which elements are written: those from `start` to before `end` of one axis; `sizes` are those of the first axes.

    The places written have an index for each of the first axes.
    """

    axis: int
    start: int
    end: int
    sizes: Shape


@graph_pass()
def concat_scattered_slices(graph: Graph, context: PassContext) -> Graph:
    """Let a Concat join what a ScatterND leaves of its data with the updates, where these are slices in a row.

    PyTorch's exporter writes an assignment to a slice (`x[:, 1:] = y`) so: with the index of each slice, between
    transposes, or with those of each element. Where all of the data is written, the updates alone are left.
    """
    found = {node.name: box for node in graph.nodes if (box := _box(graph, node)) is not None}
    if not found:
        return graph
    out, names, nodes = graph.copy(), Names(graph), list[Node]()
    for node in graph.nodes:
        if node.name not in found:
            nodes.append(node)
            continue
        data, _, updates = node.inputs
        make, box = Body(out, node.name, names), found[node.name]
        size = make.dims(data)[box.axis]
        parts = [make.reshape(updates, *box.sizes, *make.dims(data)[len(box.sizes) :])]
        if box.start:
            parts.insert(0, make.part(data, box.axis, 0, box.start))
        if box.end < size:
            parts.append(make.part(data, box.axis, box.end, size))
        joined = make.add("Concat", *parts, axis=box.axis) if len(parts) > 1 else parts[0]
        nodes += make.finish([joined], node.outputs)
    out.nodes = nodes
    return out


def _box(graph: Graph, node: Node) -> _Box | None:
    """Return what a node writes in order, if that is a part of one axis and all of the others; None if it is not."""
    if node.op.type != "ScatterND" or getattr(node.op, "reduction", "none") != "none":
        return None
    places, dims = known(graph.constants.get(node.inputs[1])), graph.specs[node.inputs[0]].dims
    if places is None or places.ndim < 2 or not places.size:
        return None
    depth = places.shape[-1]
    whole, rest = dims[:depth], dims[depth:]
    if not all(isinstance(size, int) for size in whole) or 0 in whole:
        return None
    rows = places.reshape(-1, depth) % np.array(whole)
    starts = tuple(map(int, rows[0]))
    sizes = tuple(int(last) + 1 - start for last, start in zip(rows[-1], starts, strict=True))
    partial = [axis for axis in range(depth) if sizes[axis] != whole[axis]] or [0]
    if len(partial) > 1 or min(sizes) < 1 or len(rows) != prod(sizes):
        return None
    if places.shape[:-1] != sizes and not all(isinstance(size, int) for size in rest):
        return None  # the updates would have to be reshaped
    in_order = np.ravel_multi_index(tuple(rows.T), whole).reshape(sizes)
    box = np.ix_(*(np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)))
    if not np.array_equal(in_order, np.ravel_multi_index(np.broadcast_arrays(*box), whole)):
        return None
    axis = partial[0]
    return _Box(axis, starts[axis], starts[axis] + sizes[axis], sizes)
