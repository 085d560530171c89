"""Fold an inference batch norm into the convolution or matrix product before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op, find_op
from weft.core.host.threads import in_threads
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import Property

FOLDING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""The ops that multiply by weights, their second input, and can add a bias, the third."""


def _behind(graph: Graph) -> dict[str, Node]:
    """Return the batch norms that are the only reader of a value, by that value."""
    readers = graph.readers()
    return {n.inputs[0]: n for n in graph.nodes if n.op.type == "BatchNormalization" and readers[n.inputs[0]] == 1}


BATCH_NORMS_FOLDED = Property(
    "no batch norm that the weights before it could hold",
    lambda graph: [f.norm.name for f in _folds(graph, list(_behind(graph).values()), graph.producers())],
)


@graph_pass(ensures=(BATCH_NORMS_FOLDED,))
def fold_batch_norm(graph: Graph, context: PassContext) -> Graph:
    """Move the factors and shifts of every batch norm into the weights and biases before it.

    It folds into Conv, ConvTranspose, Gemm and the MatMul of two matrices, which becomes a Gemm, if the batch norm is
    the only reader, all parameters are constants, and the new ones are finite and within the budget. New weights are
    computed in float64 and rounded once.
    """
    out, names, budget = graph.copy(), Names(graph), context.budget
    behind, makers = _behind(graph), graph.producers()
    merged: dict[str, Node] = {}
    gone: set[str] = set()
    norms = list(behind.values())
    while folds := _folds(out, norms, makers):
        norms = []
        allowed = []
        for fold in folds:
            if budget.allows((), fold.weight.nbytes):
                allowed.append(fold)
                budget.spend(fold.weight.nbytes, budget.clock())
            else:
                context.leave(fold.norm.name, "its new weights would go beyond the limits of folding")
        began, nbytes = budget.clock(), sum(fold.weight.nbytes for fold in allowed)
        computed = in_threads(_computed, allowed, nbytes)
        budget.spend(0, began)
        for fold, parts in zip(allowed, computed, strict=True):
            if parts is None:
                context.leave(fold.norm.name, "its new weights or biases would not be finite")
                continue
            node = _merged(out, fold, parts, names)
            merged[node.name] = makers[node.outputs[0]] = node
            gone.add(fold.norm.name)
            norms += [behind[o] for o in node.outputs if o in behind]
    out.nodes = [merged.get(n.name, n) for n in graph.nodes if n.name not in gone]
    return out


@dataclass(frozen=True)
class _Fold:
    """A batch norm and the node before it, which takes over its work."""

    node: Node
    norm: Node
    weight: Array
    spread: Array
    """The factors of the weights."""
    bias: Array


def _folds(graph: Graph, norms: list[Node], makers: Mapping[str, Node]) -> list[_Fold]:
    """Return which of these batch norms can be folded now; each is the only reader of its input."""
    found = []
    for norm in norms:
        node = makers.get(norm.inputs[0])
        if node and node.op.type in FOLDING:
            fold = _fold(graph, node, norm)
            found += [fold] if fold else []
    return found


def _fold(graph: Graph, node: Node, norm: Node) -> _Fold | None:
    params, known = graph.input_constants(norm)[1:5], graph.input_constants(node)
    given = [k for i, k in zip(node.inputs[1:], known[1:], strict=True) if i]
    if any(p is None for p in (*params, *given)):
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
        return _Fold(node, norm, weight, spread, ((bias - mean) * factor + shift).astype(weight.dtype))


def _computed(fold: _Fold) -> dict[str, Array] | None:
    """Return the new weights and bias by what their names end with; None if they are not finite."""
    with np.errstate(all="ignore"):
        # numpy converts to float64 piece by piece, in the cache: there is no float64 copy of the weights.
        made = np.empty_like(fold.weight)
        product = np.multiply(fold.weight, fold.spread, out=made, dtype=np.float64, casting="same_kind")
    parts = {"weight": product, "bias": fold.bias}
    return parts if all(np.isfinite(part).all() for part in parts.values()) else None


def _merged(graph: Graph, fold: _Fold, parts: Mapping[str, Array], names: Names) -> Node:
    """Return the node that does the work of both; its weights join the graph."""
    node, added = fold.node, []
    for tag, value in parts.items():
        name = names.fresh(f"{node.name}.{tag}")
        graph.constants[name] = value
        graph.specs[name] = replace(graph.specs[node.inputs[1]], shape=value.shape)
        added.append(name)
    return Node(node.name, _with_bias(node.op), (node.inputs[0], *added), fold.norm.outputs[:1])


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
    """Return the bias of each channel in float64; None if the node does not add one number to each channel."""
    if bias is None:
        return np.zeros(channels)
    if bias.ndim == 2 and bias.shape[0] != 1:
        return None
    op: Any = node.op
    beta = op.beta if op.type == "Gemm" else 1.0
    return np.broadcast_to(beta * bias.astype(np.float64).reshape(-1), (channels,))


def _with_bias(op: Op) -> Op:
    """Return an op that computes the same and adds its third input unscaled."""
    if op.type == "Gemm":
        return replace(op, beta=1.0)  # type: ignore[call-arg]
    gemm = find_op("Gemm")
    if op.type != "MatMul" or gemm is None:
        return op
    return gemm()
