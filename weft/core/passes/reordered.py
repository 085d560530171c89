"""Ops that are told axes or that broadcast, for operands whose axes come in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.op import Op
from weft.core.graph.symbolic import int_array, is_symbolic
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.moves import Order

REDUCTIONS = frozenset({
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
})  # fmt: skip
QUANTISERS = frozenset({"QuantizeLinear", "DequantizeLinear"})
MOVABLE = frozenset({"Concat", "Pad", "Slice", *REDUCTIONS, *QUANTISERS})
"""The ops that may have a form for operands in another order."""


@dataclass(frozen=True)
class Reordered:
    """A node for operands in another order; `parameters` are what it reads behind these."""

    op: Op
    operands: int
    """How many of its inputs are operands; they come first."""
    parameters: tuple[str, ...] = ()
    is_in_order: bool = False
    """Whether its result has its axes in their order, as those that moved are gone."""


def is_layout(order: Order) -> bool:
    """Tell whether an order moves channels behind all other axes, or from there behind the first, and nothing else."""
    rank = len(order)
    return rank > 2 and order in ((0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1)))


def reordered(graph: Graph, names: Names, node: Node, back: Order) -> Reordered | None:
    """Return what a node is if its operands come with axes in the order `back`; None if it has no such form here.

    Constants that it then reads are added to the graph.
    """
    op: Any = node.op
    at = [back.index(axis) for axis in range(len(back))]
    rank = len(back)
    if op.type == "Concat":
        return Reordered(replace(op, axis=at[op.axis % rank]), len(node.inputs))
    if op.type in QUANTISERS and not op.block_size:
        return Reordered(replace(op, axis=at[op.axis % rank]) if -rank <= op.axis < rank else op, 1, node.inputs[1:])
    if op.type in REDUCTIONS:
        return _reduction(graph, names, node, at)
    if op.type == "Pad":
        return _pad(graph, names, node, back)
    if op.type == "Slice":
        return _slice(graph, names, node, at)
    return None


def _integers(graph: Graph, node: Node, k: int) -> list[int] | None:
    """Return the numbers of an input that is a constant; None for one that is missing, or that a run tells."""
    name = node.inputs[k] if k < len(node.inputs) else ""
    value = graph.constants.get(name)
    return None if value is None or is_symbolic(value) else [int(n) for n in value.reshape(-1)]


def _constant(graph: Graph, names: Names, node: Node, values: Sequence[int]) -> str:
    name = names.fresh(f"{node.name}.reordered")
    graph.constants[name] = int_array(values)
    graph.specs[name] = TensorSpec(graph.constants[name].shape, graph.specs[node.inputs[1]].dtype)
    graph.constants[name] = graph.constants[name].astype(graph.specs[name].dtype.numpy)
    return name


def _reduction(graph: Graph, names: Names, node: Node, at: Sequence[int]) -> Reordered | None:
    op: Any = node.op
    axes = _integers(graph, node, 1)
    if not axes:
        return None
    reduced = {axis % len(at) for axis in axes}
    if not {0, _channels(at)}.isdisjoint(reduced):  # where channels are last, to add them up is quick
        return None
    left = [place for axis, place in enumerate(at) if axis not in reduced]
    if not op.keepdims and left != sorted(left):
        return None
    moved = _constant(graph, names, node, sorted(at[axis] for axis in reduced))
    return Reordered(op, 1, (moved,), is_in_order=not op.keepdims)


def _channels(at: Sequence[int]) -> int:
    """Return which axis of the operands has the channels, given where each axis comes from."""
    return len(at) - 1 if at[-1] == 1 else 1


def _pad(graph: Graph, names: Names, node: Node, back: Order) -> Reordered | None:
    pads = _integers(graph, node, 1)
    if pads is None or len(pads) != 2 * len(back) or any(node.inputs[3:]):
        return None
    pairs = np.array(pads).reshape(2, -1)[:, list(back)]
    return Reordered(node.op, 1, (_constant(graph, names, node, pairs.reshape(-1).tolist()), *node.inputs[2:]))


def _slice(graph: Graph, names: Names, node: Node, at: Sequence[int]) -> Reordered | None:
    axes, count = _integers(graph, node, 3), graph.specs[node.inputs[1]].size
    if axes is None:
        if len(node.inputs) > 3 and node.inputs[3]:
            return None
        axes = list(range(count))
    moved = _constant(graph, names, node, [at[axis % len(at)] for axis in axes])
    return Reordered(node.op, 1, (*node.inputs[1:3], moved, *node.inputs[4:]))
