"""Compute norms of single elements once: whatever an element is, it is its own mean, and only the shift is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.symbolic import known
from weft.core.passes.constants import fold_constants
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass


@graph_pass()
def fold_single_norms(graph: Graph, context: PassContext) -> Graph:
    """Replace norms of one element each, less its mean, by their shift, and compute what follows from that once.

    A LayerNormalization over axes of size 1, an InstanceNormalization or GroupNormalization of groups of one element,
    and the difference of a value and its mean over such axes are the same for all finite numbers. The parameters must
    be constants, and epsilon more than 0.
    """
    makers = graph.producers()
    shifts = {node.name: shift for node in graph.nodes if (shift := _shift(graph, makers, node)) is not None}
    out, found = graph.copy(), False
    out.nodes = []
    for node in graph.nodes:
        shift, began = shifts.get(node.name), context.budget.clock()
        spec = None if shift is None else graph.specs[node.outputs[0]]
        nbytes = 0 if spec is None else spec.size * spec.dtype.itemsize
        if shift is None or spec is None or not context.allows(node.name, nbytes, values=node.outputs):
            out.nodes.append(node)
            continue
        out.constants[node.outputs[0]] = np.ascontiguousarray(np.broadcast_to(shift, spec.dims), spec.dtype.numpy)
        context.budget.spend(nbytes, began)
        found = True
    return without_dead_nodes(fold_constants.rewrite(out, context)) if found else graph


def _shift(graph: Graph, makers: Mapping[str, Node], node: Node) -> Array | None:
    """Return what a node makes of single elements, in a shape that broadcasts to its result's; None if it varies."""
    if node.op.type == "Sub":
        return np.zeros(()) if _is_own_mean(graph, makers.get(node.inputs[1]), node.inputs[0]) else None
    op: Any = node.op
    elements = _ELEMENTS.get(op.type)
    if elements is None or len(node.outputs) > 1 or not op.epsilon > 0:
        return None
    dims = graph.specs[node.inputs[0]].dims
    if not all(isinstance(size, int) for size in dims) or elements(op, dims) != 1:
        return None
    parameters = [known(graph.constants.get(name)) for name in node.inputs[1:] if name]
    finite = [each for each in parameters if each is not None and np.isfinite(each).all()]
    if len(finite) < len(parameters):
        return None
    shift = finite[1] if len(finite) > 1 else np.zeros(1)
    return shift if op.type == "LayerNormalization" else shift.reshape(-1, *(1 for _ in dims[2:]))


_ELEMENTS: dict[str, Callable[[Any, Shape], int]] = {
    "LayerNormalization": lambda op, dims: prod(dims[op.axis % len(dims) :]),
    "InstanceNormalization": lambda op, dims: prod(dims[2:]),
    "GroupNormalization": lambda op, dims: prod(dims[1:]) // op.num_groups,
}
"""How many elements are normalized together."""


def _is_own_mean(graph: Graph, mean: Node | None, value: str) -> bool:
    """Tell whether a node makes the mean of each element of a value of floats alone, in the shape of the value."""
    if mean is None or mean.op.type != "ReduceMean" or mean.inputs[0] != value:
        return False
    spec = graph.specs[value]
    return spec == graph.specs[mean.outputs[0]] and spec.dtype.is_float and all(isinstance(d, int) for d in spec.dims)
