"""Parts of values: which indices of an axis a Split, a Slice or a Gather takes, and the Split that makes several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.graph.graph import Graph, Node
from weft.core.graph.op import new_op
from weft.core.graph.symbolic import int_array, known
from weft.core.passes.reader import Reader


@dataclass(frozen=True, slots=True)
class Interval:
    """Indices from `start` up to `stop` of a value along one axis."""

    value: str
    start: int
    stop: int


def axis_of(node: Node, rank: int) -> int:
    """Return the axis of an op that has one, counted from the first."""
    op: Any = node.op
    return int(op.axis) % max(rank, 1)


def interval_of(graph: Graph, maker: Node | None, name: str, axis: int) -> Interval | None:
    """Return of what value an output of a Split, or a Slice with step 1, is a part along an axis; None if of none."""
    rank = len(graph.specs[name].dims)
    if maker is None or maker.op.type not in ("Split", "Slice"):
        return None
    source = maker.inputs[0]
    if len(graph.specs[source].dims) != rank:
        return None
    if maker.op.type == "Split":
        if axis_of(maker, rank) != axis:
            return None
        before = maker.outputs[: maker.outputs.index(name)]
        start = sum(graph.specs[each].dims[axis] for each in before if each)
        return None if "" in before else Interval(source, start, start + graph.specs[name].dims[axis])
    constants = [known(graph.constants.get(each)) for each in maker.inputs[1:]]
    if any(value is None for value, each in zip(constants, maker.inputs[1:], strict=True) if each):
        return None
    spans: Sequence[tuple[int, int, int]] = maker.op.spans(graph.specs[source].dims, constants)  # type: ignore[attr-defined]
    others = [a for a, size in enumerate(graph.specs[source].dims) if a != axis and spans[a] != (0, size, 1)]
    start, stop, step = spans[axis]
    return Interval(source, start, stop) if not others and step == 1 and start < stop else None


@dataclass(frozen=True, slots=True)
class Select:
    """One index of an axis of a value, without the axis."""

    value: str
    axis: int
    index: int


def select_of(graph: Graph, makers: Mapping[str, Node], name: str) -> Select | None:
    """Return of what value a Gather of one index, or a part of size 1 without its axis, is an index; else None."""
    maker = makers.get(name)
    if maker is None or maker.op.type not in ("Gather", "Squeeze"):
        return None
    source, *rest = maker.inputs
    dims, given = graph.specs[source].dims, [known(graph.constants.get(each)) for each in rest]
    if maker.op.type == "Squeeze":
        axes = [] if not given or given[0] is None else [int(axis) % len(dims) for axis in given[0].reshape(-1)]
        found = interval_of(graph, makers.get(source), source, axes[0]) if len(axes) == 1 else None
        if found is None or found.stop != found.start + 1:
            return None
        return Select(found.value, axes[0], found.start)
    axis, index = axis_of(maker, len(dims)), given[0]
    if index is None or index.ndim or not isinstance(dims[axis], int):
        return None
    return Select(source, axis, int(index) % dims[axis])


def split(reader: Reader, name: str, value: str, parts: Sequence[str], axis: int) -> Node:
    """Return a new node that splits a value along an axis into all of its parts."""
    name = reader.names.fresh(name)
    sizes = reader.add(f"{name}.sizes", int_array([reader.dims(part)[axis] for part in parts]))
    return Node(name, new_op("Split", axis=axis, outputs=len(parts)), (value, sizes), tuple(parts))
