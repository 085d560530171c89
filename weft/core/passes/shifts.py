"""Fold what is added to each channel before a convolution into the convolution's bias."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array
from weft.core.graph.symbolic import known
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import Property


def _foldable(graph: Graph) -> list[str]:
    makers, readers = graph.producers(), graph.readers()
    return [node.name for node in graph.nodes if _shifted(graph, makers, readers, node) is not None]


SHIFTS_FOLDED = Property("no constant is added before a convolution whose bias could hold it", _foldable)


@graph_pass(ensures=(SHIFTS_FOLDED,))
def fold_shifts(graph: Graph, context: PassContext) -> Graph:
    """Move constants that are added to the channels of what a convolution reads into its bias.

    The convolution must be the only reader, not pad its image, and have constant weights. The new bias is computed in
    float64 and rounded once.
    """
    makers, readers = graph.producers(), graph.readers()
    out, names, budget = graph.copy(), Names(graph), context.budget
    gone: set[str] = set()
    for k, node in enumerate(graph.nodes):
        while (found := _shifted(out, makers, readers, node)) is not None:
            image, shift = found
            weight = graph.specs[node.inputs[1]]
            if not budget.allows((), weight.dims[0] * weight.dtype.itemsize):
                context.leave(node.name, "its new bias would go beyond the limits of folding")
                break
            began = budget.clock()
            bias = _bias(out, node, shift)
            budget.spend(bias.nbytes, began)
            if not np.isfinite(bias).all():
                context.leave(node.name, "its new bias would not be finite")
                break
            name = names.fresh(f"{node.name}.bias")
            out.constants[name], out.specs[name] = bias, replace(weight, shape=bias.shape)
            gone.add(node.inputs[0])
            out.nodes[k] = node = replace(node, inputs=(image, node.inputs[1], name))
    if not gone:
        return graph
    out.nodes = [node for node in out.nodes if node.outputs[0] not in gone]
    return out


def _shifted(
    graph: Graph, makers: dict[str, Node], readers: dict[str, int], node: Node
) -> tuple[str, Array] | None:
    """Return what is computed before the sum that a convolution reads, and what is added to each of its channels."""
    op: Any = node.op
    if op.type != "Conv" or op.auto_pad not in ("NOTSET", "VALID") or any(op.pads):
        return None
    total = makers.get(node.inputs[0])
    if total is None or total.op.type != "Add" or readers[node.inputs[0]] != 1:
        return None
    if any(i and known(graph.constants.get(i)) is None for i in node.inputs[1:]):
        return None
    dims = graph.specs[node.inputs[0]].dims
    for image, name in (total.inputs, total.inputs[::-1]):
        shift = known(graph.constants.get(name))
        if shift is None or image in graph.constants or graph.specs[image].dims != dims:
            continue
        full = (1,) * (len(dims) - shift.ndim) + shift.shape
        if full in ((1,) * len(dims), (1, dims[1], *(1,) * (len(dims) - 2))):
            return image, np.broadcast_to(shift.reshape(-1), (dims[1],))
    return None


def _bias(graph: Graph, node: Node, shift: Array) -> Array:
    """Return the bias of a convolution whose image lacks a shift of each channel."""
    weight, old = (*graph.input_constants(node)[1:], None)[:2]
    assert weight is not None
    op: Any = node.op
    with np.errstate(all="ignore"):
        sums = weight.reshape(op.group, -1, *weight.shape[1:]).sum(axis=tuple(range(3, weight.ndim + 1)), dtype=float)
        moved = np.einsum("goc,gc->go", sums, shift.astype(float).reshape(op.group, -1)).reshape(-1)
        return np.asarray(moved if old is None else moved + old.astype(float)).astype(weight.dtype)
