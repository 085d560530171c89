"""Write boxes of a value by a Concat, which mostly costs nothing, in place of scatters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.composite import Body, with_bodies
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Shape
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
    """Let a Concat join what scatters leave of their data with the updates, where these are slices in a row.

    PyTorch's exporters write an assignment to a slice (`x[:, 1:] = y`) as a ScatterND, with the index of each slice,
    between transposes, or with those of each element, or as a ScatterElements. Where all of the data is written, the
    updates alone are left. Scatters of which each writes a slice of what the one before made, as loops are exported
    that fill a value step by step, are one Concat.
    """
    found = {node.name: box for node in graph.nodes if (box := _box(graph, node)) is not None}
    if not found:
        return graph
    rows = _rows(graph, found)
    out = with_bodies(graph, {name: partial(_joined, row, found) for name, row in rows.items()})
    out.nodes = [node for node in out.nodes if node.name not in found]
    return out


def _rows(graph: Graph, found: dict[str, _Box]) -> dict[str, list[Node]]:
    """Return rows of nodes that write along one axis, by the last node's name: each writes what only the next reads."""
    readers, rows = graph.readers(), dict[str, list[Node]]()
    for node in graph.nodes:
        if node.name in found:
            data = node.inputs[0]
            before = rows.get(data, []) if readers[data] == 1 else []
            if before and found[before[-1].name].axis == found[node.name].axis:
                del rows[data]
            else:
                before = []
            before.append(node)
            rows[node.outputs[0]] = before
    return {row[-1].name: row for row in rows.values()}


def _joined(row: list[Node], found: dict[str, _Box], make: Body) -> str:
    """Return what a row of nodes leaves: a Concat of parts of the updates and of the data, or the only part."""
    data = row[0].inputs[0]
    dims, axis = make.dims(data), found[row[0].name].axis
    writer = np.full(dims[axis], -1)
    for number, node in enumerate(row):
        writer[found[node.name].start : found[node.name].end] = number
    parts = []
    for number, start, end in _runs(writer):
        if number < 0:
            parts.append(make.part(data, axis, start, end))
            continue
        box = found[row[number].name]
        updates = make.reshape(row[number].inputs[2], *box.sizes, *dims[len(box.sizes) :])
        parts.append(make.part(updates, axis, start - box.start, end - box.start))
    return make.add("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


def _runs(numbers: Array) -> Iterator[tuple[int, int, int]]:
    """Yield each number that stands in a row, with the place where the row starts and the one behind its end."""
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield int(numbers[start]), start, end


def _box(graph: Graph, node: Node) -> _Box | None:
    """Return what a node writes in order, if that is a part of one axis and all of the others; None if it is not."""
    if node.op.type not in ("ScatterND", "ScatterElements") or getattr(node.op, "reduction", "none") != "none":
        return None
    places, dims = known(graph.constants.get(node.inputs[1])), graph.specs[node.inputs[0]].dims
    if places is None or not places.size:
        return None
    return _of_slices(places, dims) if node.op.type == "ScatterND" else _of_elements(node.op, places, dims)


def _of_elements(op: Any, places: Array, dims: Shape) -> _Box | None:
    """Return what a ScatterElements writes: the same slices everywhere along the other axes."""
    axis = op.axis % len(dims)
    others = [a for a in range(len(dims)) if a != axis]
    if not isinstance(dims[axis], int) or any(places.shape[a] != dims[a] for a in others):
        return None
    along = places % dims[axis]
    start = int(along.flat[0])
    end = start + places.shape[axis]
    column = np.arange(start, end).reshape(-1, *(1 for _ in dims[axis + 1 :]))
    return _Box(axis, start, end, places.shape) if end <= dims[axis] and (along == column).all() else None


def _of_slices(places: Array, dims: Shape) -> _Box | None:
    """Return what a ScatterND writes."""
    if places.ndim < 2:
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
