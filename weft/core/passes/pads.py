"""Fold a Pad into the convolution or pooling that is its only reader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import order_of, transpose
from weft.core.passes.properties import Property
from weft.core.passes.reordered import is_layout, reordered
from weft.errors import WeftError

Amounts = tuple[int, ...]


def _foldable(graph: Graph) -> list[str]:
    makers, readers = graph.producers(), graph.readers()
    pairs = ((_pad_before(node, makers, readers), node) for node in graph.nodes)
    return [pad.name for pad, node in pairs if pad and _merge(graph, pad, node, makers.get(pad.inputs[0]))]


PADS_FOLDED = Property("no Pad before a convolution or pooling that could pad by itself", _foldable)


@graph_pass(ensures=(PADS_FOLDED,))
def fold_pads(graph: Graph, context: PassContext) -> Graph:
    """Move constant padding of spatial axes into the `pads` of the convolution or pooling that reads it.

    Conv and LpPool take zeros, and so does an AveragePool that counts its padding or has none. A MaxPool pads with a
    number that never wins. So it takes a padding that is no larger than any element (minus infinity; zero behind a
    Relu), if each of its windows sees at least one element. A transpose between the two is computed first.
    """
    graph = _behind_transposes(graph)
    out = graph.copy()
    producers, readers = graph.producers(), graph.readers()
    dropped: set[str] = set()
    nodes = []
    for node in graph.nodes:
        while (pad := _pad_before(node, producers, readers)) is not None:
            merged = _merge(graph, pad, node, producers.get(pad.inputs[0]))
            if merged is None:
                break
            dropped.add(pad.name)
            node = merged
        nodes.append(node)
    out.nodes = [n for n in nodes if n.name not in dropped]
    return out


def _behind_transposes(graph: Graph) -> Graph:
    """Return the graph with each Pad behind the transpose that reads it, where what reads that could then pad itself.

    Files of TensorFlow pad images whose channels are last, and convolve them with channels first.
    """
    out, producers, readers, names = graph.copy(), graph.producers(), graph.readers(), Names(graph)
    changed: dict[str, list[Node]] = {}
    for node in graph.nodes:
        above = producers.get(node.inputs[0]) if node.inputs else None
        order = order_of(graph, above) if above is not None else None
        if above is None or order is None or not is_layout(order) or readers[above.outputs[0]] != 1:
            continue
        pad = _pad_before(above, producers, readers)
        form = None if pad is None else reordered(out, names, pad, order)
        if pad is None or form is None:
            continue
        spec, moved = graph.specs[pad.inputs[0]], names.fresh(f"{pad.inputs[0]}.transposed")
        out.specs[moved] = TensorSpec(tuple(spec.dims[axis] for axis in order), spec.dtype)
        behind = replace(pad, op=form.op, inputs=(moved, *form.parameters), outputs=above.outputs)
        if _merge(out, behind, node, producers.get(pad.inputs[0])) is not None:
            changed[pad.name] = []
            changed[above.name] = [transpose(above.name, pad.inputs[0], order, moved), behind]
    if not changed:
        return graph
    out.nodes = [each for node in graph.nodes for each in changed.get(node.name, [node])]
    return out


def _pad_before(node: Node, producers: dict[str, Node], readers: dict[str, int]) -> Node | None:
    pad = producers.get(node.inputs[0]) if node.inputs else None
    return pad if pad is not None and pad.op.type == "Pad" and readers[pad.outputs[0]] == 1 else None


def _merge(graph: Graph, pad: Node, node: Node, above: Node | None) -> Node | None:
    """Return the node with the padding folded in, or None if it cannot be; `above` makes what `pad` reads."""
    op: Any = node.op
    if op.type not in ("Conv", "AveragePool", "LpPool", "MaxPool") or op.auto_pad != "NOTSET":
        return None
    amounts = _spatial(graph, pad)
    fill = _fill(graph, pad)
    if amounts is None or fill is None or op.attributes().get("ceil_mode"):
        return None
    old = op.pads or (0,) * len(amounts)
    padded: Any = replace(op, pads=tuple(a + b for a, b in zip(old, amounts, strict=True)))
    if op.type == "AveragePool":
        if any(old) and not op.count_include_pad:
            return None
        padded = replace(padded, count_include_pad=1)
    merged = replace(node, op=padded, inputs=(pad.inputs[0], *node.inputs[1:]))
    if not _is_same(graph, node, merged):
        return None
    if op.type != "MaxPool":
        return merged if fill == 0 else None
    loses = len(node.outputs) == 1 and fill <= _least(graph, pad.inputs[0], above)
    return merged if loses and _sees_elements(graph, pad.inputs[0], padded) else None


def _spatial(graph: Graph, pad: Node) -> Amounts | None:
    """Return how much a Pad adds before and behind the spatial axes; None if it does anything else."""
    op: Any = pad.op
    known = graph.input_constants(pad)
    if op.mode != "constant" or any(i and k is None for i, k in zip(pad.inputs[1:], known[1:], strict=True)):
        return None
    rank = len(graph.specs[pad.inputs[0]].dims)
    pairs = op.pairs(rank, _numbers(known[1]), _numbers(known[3]) if len(known) > 3 and pad.inputs[3] else None)
    if any(min(pair) < 0 for pair in pairs) or any(map(any, pairs[:2])):
        return None
    return (*(before for before, _ in pairs[2:]), *(after for _, after in pairs[2:]))


def _numbers(value: Array | None) -> Amounts:
    return () if value is None else tuple(int(v) for v in value.reshape(-1))


def _fill(graph: Graph, pad: Node) -> float | None:
    """Return the number that a Pad pads with, or None if it is not known."""
    value = graph.constants.get(pad.inputs[2]) if len(pad.inputs) > 2 else None
    if value is None:
        return 0.0
    number = float(value.reshape(-1)[0])
    return None if np.isnan(number) else number


def _least(graph: Graph, value: str, maker: Node | None) -> float:
    """Return a lower bound of a value's elements."""
    dtype = graph.specs[value].dtype
    least = -np.inf if dtype.is_float else float(np.iinfo(dtype.numpy).min)
    if maker is not None and dtype.is_float and maker.op.not_negative:
        return 0.0
    if maker is not None and maker.op.type == "Clip":
        _, low, high = (*graph.input_constants(maker), None, None)[:3]
        if low is not None and (high is not None or len(maker.inputs) < 3 or not maker.inputs[2]):
            bounds = [float(b.reshape(-1)[0]) for b in (low, high) if b is not None]
            return max(least, min(bounds))
    return least


def _sees_elements(graph: Graph, value: str, pool: Any) -> bool:
    """Tell whether every window of a pool sees at least one element that is not padding."""
    window = pool.window(graph.specs[value].dims)
    for axis in range(window.rank):
        first = np.arange(window.outputs[axis]) * window.strides[axis] - window.begin[axis]
        taps = first[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        if not ((taps >= 0) & (taps < window.inputs[axis])).any(axis=1).all():
            return False
    return True


def _is_same(graph: Graph, node: Node, merged: Node) -> bool:
    """Tell whether two nodes infer the same specs; a node that pads more than its op allows infers none."""
    try:
        specs = merged.op.inferred(graph.input_specs(merged), graph.input_constants(merged))
    except WeftError:
        return False
    return list(specs[: len(node.outputs)]) == graph.output_specs(node)
