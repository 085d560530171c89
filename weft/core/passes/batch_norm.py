"""Fold an inference batch norm into the convolution or matrix product before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op, find_op
from weft.core.graph.symbolic import known
from weft.core.host.threads import in_threads
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import axis_before, is_move
from weft.core.passes.properties import Property
from weft.errors import WeftError

FOLDING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""The ops that multiply by weights, their second input."""

BATCH_NORMS_FOLDED = Property(
    "no batch norm that the weights before it could hold", lambda graph: [f.norm.name for f in _folds(graph, set())]
)


@graph_pass(ensures=(BATCH_NORMS_FOLDED,))
def fold_batch_norm(graph: Graph, context: PassContext) -> Graph:
    """Move the factors and shifts of every batch norm into the weights and biases before it.

    It folds into Conv, ConvTranspose, Gemm, the MatMul of two matrices, which becomes a Gemm, and the MatMul of stacks,
    which an Add follows then. Between may be transposes, reshapes that keep the axis of the channels, Adds of a
    constant to each channel, and other batch norms. No other node may read a value before the batch norm, all
    parameters must be constants, and the new ones finite and within the budget. New weights are computed in float64 and
    rounded once.
    """
    out, names, budget = graph.copy(), Names(graph), context.budget
    stay: set[str] = set()
    while folds := _folds(out, stay):
        allowed = []
        for fold in folds:
            if context.allows(fold.norm.name, fold.weight.nbytes, "its new weights"):
                allowed.append(fold)
                budget.spend(fold.weight.nbytes, budget.clock())
            else:
                stay.add(fold.norm.name)
        began, nbytes = budget.clock(), sum(fold.weight.nbytes for fold in allowed)
        computed = in_threads(_computed, allowed, nbytes)
        budget.spend(0, began)
        placed: dict[str, list[Node]] = {}
        for fold, parts in zip(allowed, computed, strict=True):
            if parts is None:
                stay.add(fold.norm.name)
                context.leave(fold.norm.name, "its new weights or biases would not be finite")
                continue
            placed |= {each.name: [] for each in (*fold.between, fold.norm)}
            placed[fold.node.name] = _merged(out, fold, parts, names)
        out.nodes = [new for node in out.nodes for new in placed.get(node.name, [node])]
    return out


@dataclass(frozen=True)
class _Fold:
    """A batch norm and the node before it, which takes over its work."""

    node: Node
    between: tuple[Node, ...]
    """What the node's result goes through, in order: moves, Adds and other batch norms."""
    norm: Node
    weight: Array
    spread: Array
    """The factors of the weights."""
    bias: Array


def _folds(graph: Graph, stay: set[str]) -> list[_Fold]:
    """Return which batch norms can be folded now, but for those that stay, by name; of several in a row the last."""
    norms = [n for n in graph.nodes if n.op.type == "BatchNormalization" and n.name not in stay]
    if not norms:
        return []
    makers, readers = graph.producers(), graph.readers()
    folds, seen = list[_Fold](), set[str]()
    for norm in reversed(norms):
        if norm.name not in seen and (fold := _fold(graph, makers, readers, norm, seen)) is not None:
            folds.append(fold)
    return folds[::-1]


def _fold(
    graph: Graph, makers: Mapping[str, Node], readers: Mapping[str, int], norm: Node, seen: set[str]
) -> _Fold | None:
    """Return how a batch norm folds; what is between, which folds with it or not at all, joins those that are seen."""
    affine = _affine(graph, norm)
    if affine is None:
        return None
    factor, shift = affine
    value, axis, between = norm.inputs[0], 1, list[Node]()
    while (node := makers.get(value)) is not None and node.op.type not in FOLDING and readers[value] == 1:
        above = _above(graph, node, axis)
        if above is None:
            return None
        value, axis, own = above
        with np.errstate(all="ignore"):
            factor, shift = factor * own[0], shift + factor * own[1]
        between.append(node)
        seen.add(node.name)
    if node is None or readers[value] != 1 or axis != _channel_axis(graph, node):
        return None
    held = graph.input_constants(node)
    weight, old = held[1], held[2] if len(held) > 2 else None
    if weight is None or (old is None and any(node.inputs[2:])):
        return None
    bias = _vector(node, old, factor.size)
    if bias is None:
        return None
    with np.errstate(all="ignore"):
        total = (bias * factor + shift).astype(weight.dtype)
    return _Fold(node, tuple(reversed(between)), norm, weight, _spread(node, weight.shape, factor), total)


_Affine = tuple[Array, Array]
"""What each channel is multiplied by, and what is added then, in float64."""


def _affine(graph: Graph, norm: Node) -> _Affine | None:
    """Return what a batch norm does to each channel; None if the run decides that."""
    params = [np.asarray(p, np.float64) for p in graph.input_constants(norm)[1:5] if p is not None]
    if len(params) < 4:
        return None
    scale, shift, mean, var = params
    op: Any = norm.op
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(var + op.epsilon)
        return factor, shift - mean * factor


def _above(graph: Graph, node: Node, axis: int) -> tuple[str, int, _Affine] | None:
    """Return what a move, Add or batch norm reads, where the channels are there, and what becomes of each.

    None for other nodes. `axis` is where the channels are in its result.
    """
    one, none = np.ones(1), np.zeros(1)
    if is_move(node):
        before = axis_before(graph, node, axis)
        return None if before is None else (node.inputs[0], before, (one, none))
    if node.op.type == "BatchNormalization":
        affine = _affine(graph, node) if axis == 1 else None
        return None if affine is None else (node.inputs[0], axis, affine)
    dims = graph.specs[node.outputs[0]].dims
    for value, name in (node.inputs, node.inputs[::-1]) if node.op.type == "Add" else ():
        constant = known(graph.constants.get(name))
        if constant is None or value in graph.constants or graph.specs[value].dims != dims:
            continue
        full = (1,) * (len(dims) - constant.ndim) + constant.shape
        if all(size == 1 for k, size in enumerate(full) if k != axis):
            return value, axis, (one, constant.astype(np.float64).reshape(-1))
    return None


def _channel_axis(graph: Graph, node: Node) -> int:
    """Return which axis of a node's result has an index for each column or filter of its weights; -1 if none has."""
    if node.op.type != "MatMul":
        return 1
    weights = graph.specs[node.inputs[1]].dims
    return len(graph.specs[node.outputs[0]].dims) - 1 if len(weights) > 1 else -1


def _computed(fold: _Fold) -> dict[str, Array] | None:
    """Return the new weights and bias by what their names end with; None if they are not finite."""
    with np.errstate(all="ignore"):
        # numpy converts to float64 piece by piece, in the cache: there is no float64 copy of the weights.
        made = np.empty_like(fold.weight)
        product = np.multiply(fold.weight, fold.spread, out=made, dtype=np.float64, casting="same_kind")
    parts = {"weight": product, "bias": fold.bias}
    return parts if all(np.isfinite(part).all() for part in parts.values()) else None


def _merged(graph: Graph, fold: _Fold, parts: Mapping[str, Array], names: Names) -> list[Node]:
    """Return the nodes that do the work of all; their weights and results join the graph."""
    node, added = fold.node, []
    for tag, value in parts.items():
        name = names.fresh(f"{node.name}.{tag}")
        graph.constants[name] = value
        graph.specs[name] = replace(graph.specs[node.inputs[1]], shape=value.shape)
        added.append(name)
    weight, bias = added
    x, result = node.inputs[0], fold.norm.outputs[0]
    if node.op.type == "MatMul" and not len(graph.specs[x].dims) == len(graph.specs[weight].dims) == 2:
        shift = Node(names.fresh(f"{fold.norm.name}.shift"), _make("Add"), (result, bias), node.outputs)
        line = [replace(node, inputs=(x, weight)), shift]
    else:
        line = [replace(node, op=_with_bias(node.op), inputs=(x, weight, bias))]
    line += [each for each in fold.between if is_move(each)]
    made: list[Node] = []
    for each in line:
        # Other numbers than before have another name.
        last = each is line[-1]
        written = result if last else names.fresh(f"{each.outputs[0]}.normed")
        graph.specs[written] = graph.specs[result if last else each.outputs[0]]
        made.append(replace(each, inputs=(x, *each.inputs[1:]), outputs=(written,)))
        x = written
    return made


def _spread(node: Node, weight: Shape, factor: Array) -> Array:
    """Return the factors of the channels as they multiply weights of that shape."""
    op: Any = node.op
    if op.type == "Conv":
        return factor.reshape(-1, *[1] * (len(weight) - 1))
    if op.type == "ConvTranspose":
        groups = np.repeat(factor.reshape(op.group, -1), weight[0] // op.group, axis=0)
        return groups.reshape(*groups.shape, *[1] * (len(weight) - 2))
    return factor[:, None] if op.type == "Gemm" and op.transB else factor


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
    """Return an op that computes the same of two matrices, or convolves, and adds its third input unscaled."""
    if op.type == "Gemm":
        return replace(op, beta=1.0)  # type: ignore[call-arg]
    return _make("Gemm") if op.type == "MatMul" else op


def _make(kind: str) -> Op:
    found = find_op(kind)
    if found is None:
        raise WeftError(f"no {kind} op is registered", fix="import weft.ops")
    return found()
