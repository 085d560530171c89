"""Fold an inference batch norm into the convolution or matrix product before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.graph import Graph, Names, Node
from weft.core.layout import Array, Shape
from weft.core.op import Op, find_op

FOLDING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""The ops that multiply by weights, their second input, and can add a bias, the third."""


def fold_batch_norm(graph: Graph) -> Graph:
    """Return the graph with the factors and shifts of every batch norm in the weights and biases before it.

    That is exact in real arithmetic: computed in float64 and rounded once. It is done behind Conv,
    ConvTranspose, Gemm and the MatMul of two matrices, which becomes a Gemm, where nobody else reads the
    result, all parameters are constants, and the new ones are finite.
    """
    out, names = graph.copy(), Names(graph)
    readers = graph.readers()
    makers: dict[str, int] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        place = makers.get(node.inputs[0]) if node.op.type == "BatchNormalization" else None
        merged = None
        if place is not None and readers[node.inputs[0]] == 1:
            merged = _merge(out, nodes[place], node, names)
        if place is not None and merged is not None:
            nodes[place] = merged
        else:
            place = len(nodes)
            nodes.append(node)
        makers.update(dict.fromkeys(node.outputs, place))
    out.nodes = nodes
    return out


def _merge(graph: Graph, node: Node, norm: Node, names: Names) -> Node | None:
    """Return the node that does the work of both, None if there is none; its weights join the graph."""
    params, known = graph.input_constants(norm)[1:5], graph.input_constants(node)
    given = [k for i, k in zip(node.inputs[1:], known[1:], strict=True) if i]
    if node.op.type not in FOLDING or any(p is None for p in (*params, *given)):
        return None
    weight, old = known[1], known[2] if len(known) > 2 else None
    assert weight is not None
    op: Any = norm.op
    scale, shift, mean, var = (np.asarray(p, np.float64) for p in params)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(var + op.epsilon)
        spread = _spread(graph, node, weight.shape, factor)
        bias = _vector(node, old, scale.size)
        if spread is None or bias is None:
            return None
        # In double precision and rounded once, but by pieces that stay in the cache.
        product = np.multiply(weight, spread, out=np.empty_like(weight), dtype=np.float64, casting="same_kind")
        parts = {"weight": product, "bias": ((bias - mean) * factor + shift).astype(weight.dtype)}
    if not all(np.isfinite(part).all() for part in parts.values()):
        return None
    added = []
    for tag, value in parts.items():
        name = names.fresh(f"{node.name}.{tag}")
        graph.constants[name] = value
        graph.specs[name] = replace(graph.specs[node.inputs[1]], shape=value.shape)
        added.append(name)
    return Node(node.name, _with_bias(node.op), (node.inputs[0], *added), norm.outputs[:1])


def _spread(graph: Graph, node: Node, weight: Shape, factor: Array) -> Array | None:
    """Return the factors of the channels as they multiply weights of that shape; None if they cannot."""
    op: Any = node.op
    if op.type == "Conv":
        return factor.reshape(-1, *[1] * (len(weight) - 1))
    if op.type == "ConvTranspose":
        groups = np.repeat(factor.reshape(op.group, -1), weight[0] // op.group, axis=0)
        return groups.reshape(*groups.shape, *[1] * (len(weight) - 2))
    if op.type == "Gemm" and op.transB:
        return factor[:, None]
    matrices = len(weight) == len(graph.specs[node.inputs[0]].dims) == 2
    return factor if matrices else None


def _vector(node: Node, bias: Array | None, channels: int) -> Array | None:
    """Return what a node adds to each channel; None if that is not one number for each."""
    if bias is None:
        return np.zeros(channels)
    if bias.ndim == 2 and bias.shape[0] != 1:
        return None
    op: Any = node.op
    beta = op.beta if op.type == "Gemm" else 1.0
    return np.broadcast_to(beta * bias.astype(np.float64).reshape(-1), (channels,))


def _with_bias(op: Op) -> Op:
    """Return an op that computes the same and adds its third input as it is."""
    if op.type == "Gemm":
        return replace(op, beta=1.0)  # type: ignore[call-arg]
    gemm = find_op("Gemm")
    if op.type != "MatMul" or gemm is None:
        return op
    return gemm()
