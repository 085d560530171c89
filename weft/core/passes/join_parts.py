"""Concatenate a value instead of all of its parts in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.core.graph.graph import Graph, Node
from weft.core.graph.symbolic import known
from weft.core.passes.manager import PassContext, graph_pass


@dataclass(frozen=True)
class Part:
    """Indices from `start` up to `stop` of a value along one axis."""

    value: str
    start: int
    stop: int


@graph_pass()
def join_parts(graph: Graph, context: PassContext) -> Graph:
    """Let a Concat read a value in place of its parts, where it reads all of them in order.

    Parts are outputs of a Split, and Slices with step 1, along the axis of the Concat.
    """
    makers = graph.producers()
    out = graph.copy()
    for position, node in enumerate(graph.nodes):
        if node.op.type == "Concat":
            inputs = _whole(graph, [part_of(graph, makers.get(name), name, node) for name in node.inputs], node)
            if inputs != node.inputs:
                out.nodes[position] = replace(node, inputs=inputs)
    return out


def _axis(node: Node, rank: int) -> int:
    op: Any = node.op
    return int(op.axis) % max(rank, 1)


def part_of(graph: Graph, maker: Node | None, name: str, concat: Node) -> Part | None:
    """Return of what a value is a part, along the axis of a concat."""
    rank = len(graph.specs[name].dims)
    axis = _axis(concat, rank)
    if maker is None or maker.op.type not in ("Split", "Slice"):
        return None
    source = maker.inputs[0]
    if len(graph.specs[source].dims) != rank:
        return None
    if maker.op.type == "Split":
        if _axis(maker, rank) != axis:
            return None
        before = maker.outputs[: maker.outputs.index(name)]
        start = sum(graph.specs[each].dims[axis] for each in before if each)
        return None if "" in before else Part(source, start, start + graph.specs[name].dims[axis])
    constants = [known(graph.constants.get(each)) for each in maker.inputs[1:]]
    if any(value is None for value, each in zip(constants, maker.inputs[1:], strict=True) if each):
        return None
    spans: Sequence[tuple[int, int, int]] = maker.op.spans(graph.specs[source].dims, constants)  # type: ignore[attr-defined]
    others = [a for a, size in enumerate(graph.specs[source].dims) if a != axis and spans[a] != (0, size, 1)]
    start, stop, step = spans[axis]
    return Part(source, start, stop) if not others and step == 1 and start < stop else None


def _whole(graph: Graph, parts: Sequence[Part | None], concat: Node) -> tuple[str, ...]:
    """Return the inputs of a concat with values in place of all of their parts."""
    names, at = list[str](), 0
    while at < len(parts):
        part, end = parts[at], at + 1
        if part is not None and part.start == 0:
            size = graph.specs[part.value].dims[_axis(concat, len(graph.specs[part.value].dims))]
            reached = part.stop
            while reached < size and end < len(parts):
                follows = parts[end]
                if follows is None or follows.value != part.value or follows.start != reached:
                    break
                reached, end = follows.stop, end + 1
            if reached == size and end > at + 1:
                names.append(part.value)
                at = end
                continue
        names.append(concat.inputs[at])
        at += 1
    return tuple(names)
