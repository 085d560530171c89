"""Fold a zero Pad into the convolution or pooling that alone reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.core.graph import Graph, Node


def fold_pads(graph: Graph) -> Graph:
    """Return the graph with constant zero padding of spatial axes moved into the reader's `pads`.

    Conv takes it always, AveragePool where it counts the padding (count_include_pad); a MaxPool pads with
    minus infinity and takes none.
    """
    out = graph.copy()
    producers, readers = graph.producers(), graph.readers()
    dropped: set[str] = set()
    nodes = []
    for node in graph.nodes:
        pad = producers.get(node.inputs[0]) if node.inputs else None
        merged = None
        if pad is not None and pad.op.type == "Pad" and readers[pad.outputs[0]] == 1:
            merged = _merge(graph, pad, node)
        if merged is not None and pad is not None:
            dropped.add(pad.name)
        nodes.append(merged or node)
    out.nodes = [n for n in nodes if n.name not in dropped]
    return out


def _merge(graph: Graph, pad: Node, node: Node) -> Node | None:
    op: Any = node.op
    mode: Any = pad.op
    takes = op.type == "Conv" or (op.type == "AveragePool" and op.count_include_pad and not op.ceil_mode)
    if not takes or op.auto_pad != "NOTSET" or mode.mode != "constant":
        return None
    known = graph.input_constants(pad)
    if known[1] is None or any(i and k is None for i, k in zip(pad.inputs[1:], known[1:], strict=True)):
        return None
    fill = known[2] if len(known) > 2 else None
    if fill is not None and float(fill.reshape(-1)[0] if fill.size else 0) != 0:
        return None
    rank = len(graph.specs[pad.inputs[0]].shape)
    axes_in = known[3] if len(known) > 3 else None
    axes = list(range(rank)) if axes_in is None else [int(a) % rank for a in axes_in]
    amounts = [int(v) for v in known[1]]
    begin, end = [0] * rank, [0] * rank
    for k, axis in enumerate(axes):
        begin[axis], end[axis] = amounts[k], amounts[k + len(axes)]
    if min(begin + end) < 0 or begin[0] or end[0] or begin[1] or end[1]:
        return None
    old = op.pads or (0,) * (2 * (rank - 2))
    pads = tuple(a + b for a, b in zip(old, (*begin[2:], *end[2:]), strict=True))
    return replace(node, op=replace(op, pads=pads), inputs=(pad.inputs[0], *node.inputs[1:]))
