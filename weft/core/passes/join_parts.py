"""Concatenate a value instead of all of its parts in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.core.graph.graph import Graph, Node
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.parts import Interval, axis_of, interval_of, select_of


@graph_pass()
def join_parts(graph: Graph, context: PassContext) -> Graph:
    """Let a Concat read a value in place of its parts, where it reads all of them in order.

    Parts are outputs of a Split, Slices with step 1, and single indices that get their axis back, along the axis of the
    Concat.
    """
    makers = graph.producers()
    out = graph.copy()
    for position, node in enumerate(graph.nodes):
        if node.op.type == "Concat":
            axis = axis_of(node, len(graph.specs[node.outputs[0]].dims))
            inputs = _whole(graph, [_part(graph, makers, name, axis) for name in node.inputs], node, axis)
            if inputs != node.inputs:
                out.nodes[position] = replace(node, inputs=inputs)
    return out


def _part(graph: Graph, makers: Mapping[str, Node], name: str, axis: int) -> Interval | None:
    """Return of what value a value is a part along an axis."""
    maker = makers.get(name)
    if maker is None or maker.op.type not in ("Unsqueeze", "Reshape"):
        return interval_of(graph, maker, name, axis)
    found, dims = select_of(graph, makers, maker.inputs[0]), graph.specs[name].dims
    if found is None or found.axis != axis or len(graph.specs[found.value].dims) != len(dims) or dims[axis] != 1:
        return None
    same = (*dims[:axis], *dims[axis + 1 :]) == graph.specs[maker.inputs[0]].dims
    return Interval(found.value, found.index, found.index + 1) if same else None


def _whole(graph: Graph, parts: Sequence[Interval | None], concat: Node, axis: int) -> tuple[str, ...]:
    """Return the inputs of a concat with values in place of all of their parts."""
    names, at = list[str](), 0
    while at < len(parts):
        part, end = parts[at], at + 1
        if part is not None and part.start == 0:
            size = graph.specs[part.value].dims[axis]
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
