"""Ops that stand for many, taken apart where the device that would run them knows only their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import pi, sqrt
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Names, Node, infer_node
from weft.core.graph.layout import Array
from weft.core.graph.op import find_op
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.journal import Journal
from weft.core.placement.assign import Backends, why_not
from weft.core.placement.hints import Hints
from weft.errors import WeftError


def expand_refused(
    graph: Graph,
    backends: Backends,
    hints: Mapping[str, str] | Hints | None = None,
    journal: Journal | None = None,
) -> tuple[Graph, list[str]]:
    """Return the graph with parts in the place of whole ops, and notes that say which and why.

    It is done where a node's device (the one hinted at, else the first) refuses the op, one that the passes
    may have made of such parts, and takes every part. Else the node stays, for the devices behind. `Hints`
    get the parts of what they place, and the `journal` what was done.
    """
    out, notes, names, hints = graph.copy(), list[str](), Names(graph), Hints.of(hints)
    reasons: dict[str, str] = {}
    out.nodes = []
    for node in graph.nodes:
        device = hints.device(node.name) or next(iter(backends))
        backend, expand = backends[device], EXPANSIONS.get(node.op.type)
        reason = why_not(graph, node, device, backend) if expand else None
        if expand is None or reason is None:
            out.nodes.append(node)
            continue
        parts = _Parts(out, node, names)
        if expand(parts) and not any(why_not(out, n, device, backend) for n in parts.nodes):
            out.nodes += parts.nodes
            reasons[node.name] = f"{device} refuses {node.op.type} and takes its parts: {reason}"
            hints.carry(node.name, [n.name for n in parts.nodes])
            notes.append(f"{node.name!r} ({node.op.type}) runs in {len(parts.nodes)} parts: {device}: {reason}")
        else:
            parts.drop()
            out.nodes.append(node)
    if notes and journal is not None:
        purpose = "Take ops apart of which a device runs the parts alone."
        journal.note("expand_refused", graph.nodes, out.nodes, out.outputs, purpose=purpose, reasons=reasons)
    return out, notes


class _Parts:
    """The nodes that do the work of one; the graph gets their specs and constants, until these are dropped."""

    def __init__(self, graph: Graph, whole: Node, names: Names) -> None:
        self.graph, self.whole, self.names = graph, whole, names
        self.op: Any = whole.op
        self.nodes: list[Node] = []
        self._added: list[str] = []

    def drop(self) -> None:
        """Take out of the graph what was added to it."""
        for name in self._added:
            self.graph.specs.pop(name, None)
            self.graph.constants.pop(name, None)

    def dims(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.graph.specs[value].dims

    def constant(self, value: Array) -> str:
        """Add a constant."""
        name = self.names.fresh(f"{self.whole.name}.constant")
        self._added.append(name)
        self.graph.constants[name] = value
        self.graph.specs[name] = TensorSpec(value.shape, DType.of(value.dtype))
        return name

    def number(self, value: float) -> str:
        """Add a scalar of the type of the result."""
        return self.constant(np.asarray(value, self.graph.specs[self.whole.outputs[0]].dtype.numpy))

    def add(self, kind: str, *inputs: str, made: int = 1, **attributes: Any) -> str:
        """Add a node of `made` outputs and return the first."""
        found = find_op(kind)
        if found is None:
            raise WeftError(f"no {kind} op is registered", fix="import weft.ops")
        name = self.names.fresh(f"{self.whole.name}.{kind}")
        node = Node(name, found(**attributes), inputs, (name, *(self.names.fresh(name) for _ in range(1, made))))
        self._added += node.outputs
        infer_node(self.graph, node)
        self.nodes.append(node)
        return name

    def finish(self) -> bool:
        """Let the last node make the output of the whole."""
        self.nodes[-1] = replace(self.nodes[-1], name=self.whole.name, outputs=self.whole.outputs)
        return True


def _gelu(parts: _Parts) -> bool:
    (x,) = parts.whole.inputs
    if parts.op.approximate == "tanh":
        cube = parts.add("Mul", parts.add("Mul", x, x), x)
        total = parts.add("Add", x, parts.add("Mul", cube, parts.number(0.044715)))
        share = parts.add("Tanh", parts.add("Mul", total, parts.number(sqrt(2 / pi))))
    else:
        share = parts.add("Erf", parts.add("Mul", x, parts.number(sqrt(0.5))))
    half = parts.add("Mul", x, parts.number(0.5))
    parts.add("Mul", half, parts.add("Add", share, parts.number(1)))
    return parts.finish()


def _layer_norm(parts: _Parts) -> bool:
    x, *parameters = parts.whole.inputs
    if parts.graph.specs[x].dtype is not DType.FLOAT32 or len(parts.whole.outputs) > 1:
        return False  # float16 has no room for the epsilon, nor for large squares
    rank = len(parts.dims(x))
    axes = parts.constant(np.arange(parts.op.axis % rank, rank))
    centred = parts.add("Sub", x, parts.add("ReduceMean", x, axes))
    variance = parts.add("ReduceMean", parts.add("Mul", centred, centred), axes)
    root = parts.add("Sqrt", parts.add("Add", variance, parts.number(parts.op.epsilon)))
    value = parts.add("Div", centred, root)
    for kind, parameter in zip(("Mul", "Add"), parameters, strict=False):
        value = parts.add(kind, value, parameter) if parameter else value
    return parts.finish()


def _attention(parts: _Parts) -> bool:
    count, heads = (1 if parts.op.packed else 3), parts.op.heads
    given, mask = list(parts.whole.inputs[:count]), [i for i in parts.whole.inputs[count:] if i]
    if parts.op.packed:
        each = parts.dims(given[0])[-1] // 3
        parts.add("Split", given[0], parts.constant(np.full(3, each)), made=3, axis=-1, outputs=3)
        given = list(parts.nodes[-1].outputs)
    if heads:
        given = [_apart(parts, value, heads) for value in given]
    q, k, v = given
    rank = len(parts.dims(k))
    turned = parts.add("Transpose", k, perm=(*range(rank - 2), rank - 1, rank - 2))
    scores = parts.add("Mul", parts.add("MatMul", q, turned), parts.number(parts.op.scale))
    for each_mask in mask:
        scores = parts.add("Add", scores, each_mask)
    mixed = parts.add("MatMul", parts.add("Softmax", scores), v)
    if heads:
        shape = parts.constant(np.array(parts.dims(parts.whole.outputs[0])))
        parts.add("Reshape", parts.add("Transpose", mixed, perm=(0, 2, 1, 3)), shape)
    return parts.finish()


def _apart(parts: _Parts, value: str, heads: int) -> str:
    """Return (batch, heads, rows, elements) of a value (batch, rows, heads * elements)."""
    batch, rows, width = parts.dims(value)
    shape = parts.constant(np.array([batch, rows, heads, width // heads]))
    return parts.add("Transpose", parts.add("Reshape", value, shape), perm=(0, 2, 1, 3))


EXPANSIONS: dict[str, Callable[[_Parts], bool]] = {
    "Gelu": _gelu,
    "LayerNormalization": _layer_norm,
    "weft::Attention": _attention,
}
"""What adds the parts of an op, by its type; False if there are none for this node."""
