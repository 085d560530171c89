"""Write batch norms that no weights could take as a Mul and an Add, where a kernel before them takes these over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.backends.gpu.lowering.layouts import IsCustom
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array
from weft.core.passes.fuse import CanFuse, fuse_groups
from weft.ops.binary import Add, Mul
from weft.ops.norm import BatchNormalization


def spell_out_norms(graph: Graph, can_fuse: CanFuse, is_custom: IsCustom) -> Graph:
    """Return the graph with a Mul and an Add for each batch norm whose factors can be a step of the node before it.

    That is the graph itself if there is none.
    """
    norms = {n.name for n in graph.nodes if n.op.type == "BatchNormalization" and not is_custom(n.op)}
    if not norms:
        return graph
    readers, names = graph.readers(), Names(graph)
    makers = graph.producers() | {o: fused for _, fused in fuse_groups(graph, can_fuse) for o in fused.outputs}
    out, nodes = graph.copy(), list[Node]()
    for node in graph.nodes:
        maker = makers.get(node.inputs[0]) if node.name in norms else None
        params = None if maker is None or readers[node.inputs[0]] != 1 else _factor_and_shift(graph, node)
        if maker is None or params is None or node.inputs[0] in graph.outputs:
            nodes.append(node)
            continue
        spec = graph.specs[node.outputs[0]]
        shape = (1, -1, *[1] * (len(spec.shape) - 2))
        kept = dict(out.specs), dict(out.constants)
        given = [names.fresh(f"{node.name}.{tag}") for tag in ("factor", "shift", "scaled")]
        for name, value in zip(given, params, strict=False):
            out.constants[name] = value.reshape(shape)
            out.specs[name] = replace(spec, shape=out.constants[name].shape)
        out.specs[given[2]] = spec
        scaled = Node(names.fresh(f"{node.name}.Mul"), Mul(), (node.inputs[0], given[0]), (given[2],))
        if can_fuse(out, maker, scaled, frozenset({0})):
            nodes += [scaled, Node(node.name, Add(), (given[2], given[1]), node.outputs)]
        else:
            (out.specs, out.constants), nodes = kept, [*nodes, node]
    if len(nodes) == len(graph.nodes):
        return graph
    out.nodes = nodes
    return out


def _factor_and_shift(graph: Graph, node: Node) -> tuple[Array, Array] | None:
    """Return what a batch norm multiplies by and adds, in the type of its result; None if they are not known."""
    params = [p for p in graph.input_constants(node)[1:5] if p is not None]
    spec = graph.specs[node.outputs[0]]
    if not isinstance(node.op, BatchNormalization) or len(params) < 4 or len(spec.shape) < 2:
        return None
    with np.errstate(all="ignore"):
        factor, shift = (each.astype(spec.dtype.numpy) for each in node.op.factor_and_shift(params))
    return (factor, shift) if np.isfinite(factor).all() and np.isfinite(shift).all() else None
