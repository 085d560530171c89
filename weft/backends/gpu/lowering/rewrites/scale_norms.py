"""Write batch norms that no weights could take as a factor and a shift for each channel, which fuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.backends.gpu.lowering.layout.layouts import IsCustom
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array
from weft.core.graph.tensor import TensorSpec
from weft.ops.norm import BatchNormalization, ScaleShift


def scale_norms(graph: Graph, is_custom: IsCustom) -> Graph:
    """Return the graph with a `ScaleShift` for each batch norm whose parameters are known; the graph if there is none.

    The factors are of the type that kernels compute in, so nothing is rounded that the norm would not round.
    """
    found = {node.name: params for node in graph.nodes if (params := _factor_and_shift(graph, node, is_custom))}
    if not found:
        return graph
    out, names = graph.copy(), Names(graph)
    for k, node in enumerate(out.nodes):
        if node.name not in found:
            continue
        shape = (-1, *[1] * (len(graph.specs[node.inputs[0]].shape) - 2))
        read = [node.inputs[0]]
        for tag, value in zip(("factor", "shift"), found[node.name], strict=True):
            read.append(names.fresh(f"{node.name}.{tag}"))
            constant = out.constants[read[-1]] = value.reshape(shape)
            out.specs[read[-1]] = TensorSpec(constant.shape, DType.of(constant.dtype))
        out.nodes[k] = replace(node, op=ScaleShift(), inputs=tuple(read))
    return out


def _factor_and_shift(graph: Graph, node: Node, is_custom: IsCustom) -> tuple[Array, Array] | None:
    """Return what a batch norm multiplies by and adds; None for other nodes, and if that is not known or not finite."""
    if not isinstance(node.op, BatchNormalization) or is_custom(node.op):
        return None
    spec, params = graph.specs[node.inputs[0]], [graph.constants.get(name) for name in node.inputs[1:5]]
    known = [p for p in params if p is not None]
    if len(known) < 4 or len(spec.shape) < 2:
        return None
    kind = ScaleShift.factor_type(spec.dtype).numpy
    with np.errstate(all="ignore"):
        factor, shift = (each.astype(kind) for each in node.op.factor_and_shift(known))
    return (factor, shift) if np.isfinite(factor).all() and np.isfinite(shift).all() else None
