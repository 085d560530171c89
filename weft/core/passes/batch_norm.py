"""Fold an inference batch norm into the convolution or matrix product before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Op, new_op
from weft.core.graph.symbolic import known
from weft.core.host.threads import in_threads
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import axis_before, is_move
from weft.core.passes.properties import Property
from weft.core.passes.rounding import exceeds, loses_more

FOLDING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""The ops that multiply by weights, their second input."""

BATCH_NORMS_FOLDED = Property(
    "no batch norm that the weights before it could hold", lambda graph: [row.behind[-1].name for row in _rows(graph)]
)


@graph_pass(ensures=(BATCH_NORMS_FOLDED,))
def fold_batch_norm(graph: Graph, context: PassContext) -> Graph:
    """Move the factors and shifts of every batch norm into the weights and biases before it.

    It folds into Conv, ConvTranspose, Gemm, the MatMul of two matrices, which becomes a Gemm, and the MatMul of stacks,
    which an Add follows then. Between may be transposes, reshapes that keep the axis of the channels, Adds of a
    constant to each channel, and other batch norms. No other node may read a value before the batch norm, all
    parameters must be constants, and the new ones finite and within the budget. New weights are computed in float64 and
    rounded once. Where they lose more in the type that they are stored in than the old ones do, the norm stays, whose
    own factors are exact. Of norms in a row the first may fold without the last.
    """
    budget, allowed = context.budget, list[_Row]()
    for row in _rows(graph):
        asked = [context.allows(fold.norm.name, row.weight.nbytes, "its new weights") for fold in row.folds]
        if all(asked):
            allowed.append(row)
            budget.spend(row.weight.nbytes, budget.clock())
    began, nbytes = budget.clock(), sum(row.weight.nbytes for row in allowed)
    tried = in_threads(lambda row: _tried(row, context.stored), allowed, nbytes)
    budget.spend(0, began)
    out, names = graph.copy(), Names(graph)
    placed: dict[str, list[Node]] = {}
    for row, (made, refused) in zip(allowed, tried, strict=True):
        for name, why in refused.items():
            context.leave(name, why)
        if made is not None:
            placed |= {each.name: [] for each in row.behind[: made.fold.end]}
            placed[row.node.name] = _merged(out, row, made, names)
    if not placed:
        return graph
    out.nodes = [new for node in graph.nodes for new in placed.get(node.name, [node])]
    return out


@dataclass(frozen=True, slots=True)
class _Fold:
    """A batch norm of a row, and what it and all before it make of each channel, in float64."""

    norm: Node
    end: int
    """How many nodes of the row fold, or move."""
    factor: Array
    shift: Array


@dataclass(frozen=True, slots=True)
class _Row:
    """Batch norms, and what is between them, behind a node that could take over their work."""

    node: Node
    behind: tuple[Node, ...]
    """What the node's result goes through, in order: moves, Adds and batch norms, of which one is the last."""
    folds: tuple[_Fold, ...]
    """One for each norm, in order."""
    weight: Array
    bias: Array
    """That of each channel, in float64."""


@dataclass(frozen=True, slots=True)
class _Made:
    """The new weights and bias that do the work of norms."""

    fold: _Fold
    weight: Array
    bias: Array


def _rows(graph: Graph) -> list[_Row]:
    """Return the rows of batch norms behind a node with weights."""
    norms = [n for n in graph.nodes if n.op.type == "BatchNormalization"]
    if not norms:
        return []
    makers, readers = graph.producers(), graph.readers()
    rows, seen = list[_Row](), set[str]()
    for norm in reversed(norms):
        if norm.name not in seen and (row := _row(graph, makers, readers, norm, seen)) is not None:
            rows.append(row)
    return rows[::-1]


def _row(
    graph: Graph, makers: Mapping[str, Node], readers: Mapping[str, int], norm: Node, seen: set[str]
) -> _Row | None:
    """Return the row of which a batch norm is the last; its other norms, which are in no row else, join `seen`."""
    affine = _affine(graph, norm)
    if affine is None:
        return None
    value, axis, above = norm.inputs[0], 1, [(norm, affine)]
    while (node := makers.get(value)) is not None and node.op.type not in FOLDING and readers[value] == 1:
        before = _above(graph, node, axis)
        if before is None:
            return None
        value, axis, own = before
        above.append((node, own))
        seen.add(node.name)
    if node is None or readers[value] != 1 or axis != _channel_axis(graph, node):
        return None
    held = graph.input_constants(node)
    weight, old = held[1], held[2] if len(held) > 2 else None
    if weight is None or (old is None and any(node.inputs[2:])):
        return None
    bias = _vector(node, old, affine[0].size)
    if bias is None:
        return None
    above.reverse()
    return _Row(node, tuple(each for each, _ in above), tuple(_summed_up(above)), weight, bias)


def _summed_up(behind: Sequence[tuple[Node, _Affine]]) -> Iterator[_Fold]:
    """Yield for each norm of a row what it does to each channel together with all before it."""
    factor, shift = NOTHING
    with np.errstate(all="ignore"):
        for k, (node, (own, added)) in enumerate(behind):
            factor, shift = factor * own, shift * own + added
            if node.op.type == "BatchNormalization":
                yield _Fold(node, k + 1, factor, shift)


_Affine = tuple[Array, Array]
"""What each channel is multiplied by, and what is added then, in float64."""
NOTHING: _Affine = (np.ones(1), np.zeros(1))
"""What leaves channels as they are."""


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
    if is_move(node):
        before = axis_before(graph, node, axis)
        return None if before is None else (node.inputs[0], before, NOTHING)
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
            return value, axis, (NOTHING[0], constant.astype(np.float64).reshape(-1))
    return None


def _channel_axis(graph: Graph, node: Node) -> int:
    """Return which axis of a node's result has an index for each column or filter of its weights; -1 if none has."""
    if node.op.type != "MatMul":
        return 1
    weights = graph.specs[node.inputs[1]].dims
    return len(graph.specs[node.outputs[0]].dims) - 1 if len(weights) > 1 else -1


def _tried(row: _Row, stored: DType) -> tuple[_Made | None, dict[str, str]]:
    """Return the new weights and bias for as many norms of a row as can fold, and why each norm behind these cannot."""
    refused: dict[str, str] = {}
    for fold in reversed(row.folds):
        made = _made(row, fold)
        why = _why_not(row, made, stored)
        if not why:
            return made, refused
        refused[fold.norm.name] = why
    return None, refused


def _made(row: _Row, fold: _Fold) -> _Made:
    weight = row.weight
    with np.errstate(all="ignore"):
        # numpy converts to float64 piece by piece, in the cache: there is no float64 copy of the weights.
        spread, product = _spread(row.node, weight.shape, fold.factor), np.empty_like(weight)
        np.multiply(weight, spread, out=product, dtype=np.float64, casting="same_kind")
        return _Made(fold, product, (row.bias * fold.factor + fold.shift).astype(weight.dtype))


def _why_not(row: _Row, made: _Made, stored: DType) -> str:
    """Return why a row does not take new weights and a bias; nothing if it does."""
    if not (np.isfinite(made.bias).all() and np.isfinite(made.weight).all()):
        return "its new weights or biases would not be finite"
    if loses_more(made.weight, [row.weight], stored):
        return f"{stored.value} would hold its new weights less exactly than the old ones"
    if exceeds(made.bias, stored) and not exceeds(row.bias.astype(made.bias.dtype), stored):
        return f"its new biases would be beyond what {stored.value} holds"
    return ""


def _merged(graph: Graph, row: _Row, made: _Made, names: Names) -> list[Node]:
    """Return the nodes that do the work of all; their weights and results join the graph."""
    node, norm, added = row.node, made.fold.norm, []
    for tag, value in (("weight", made.weight), ("bias", made.bias)):
        name = names.fresh(f"{node.name}.{tag}")
        graph.constants[name] = value
        graph.specs[name] = replace(graph.specs[node.inputs[1]], shape=value.shape)
        added.append(name)
    weight, bias = added
    x, result = node.inputs[0], norm.outputs[0]
    if node.op.type == "MatMul" and not len(graph.specs[x].dims) == len(graph.specs[weight].dims) == 2:
        shift = Node(names.fresh(f"{norm.name}.shift"), new_op("Add"), (result, bias), node.outputs)
        line = [replace(node, inputs=(x, weight)), shift]
    else:
        line = [replace(node, op=_with_bias(node.op), inputs=(x, weight, bias))]
    line += [each for each in row.behind[: made.fold.end] if is_move(each)]
    nodes: list[Node] = []
    for each in line:
        # Other numbers than before have another name.
        last = each is line[-1]
        written = result if last else names.fresh(f"{each.outputs[0]}.normed")
        graph.specs[written] = graph.specs[result if last else each.outputs[0]]
        nodes.append(replace(each, inputs=(x, *each.inputs[1:]), outputs=(written,)))
        x = written
    return nodes


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
    op: Any = node.op
    beta = op.beta if op.type == "Gemm" else 1.0
    if bias is None or beta == 0:
        return np.zeros(channels)
    if bias.ndim == 2 and bias.shape[0] != 1:
        return None
    return np.broadcast_to(beta * bias.astype(np.float64).reshape(-1), (channels,))


def _with_bias(op: Op) -> Op:
    """Return an op that computes the same of two matrices, or convolves, and adds its third input unscaled."""
    if op.type == "Gemm":
        return replace(op, beta=1.0)  # type: ignore[call-arg]
    return new_op("Gemm") if op.type == "MatMul" else op
