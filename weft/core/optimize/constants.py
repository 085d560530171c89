"""Fold constants: nodes whose inputs are all known are computed once, on the host."""

from __future__ import annotations

import numpy as np

from weft.core.graph import Graph, infer_node
from weft.core.layout import Array
from weft.core.op import Op
from weft.errors import WeftError

MAX_FOLDED_BYTES = 1 << 30
"""A node whose result is larger stays in the graph: folding must not blow up memory."""


def fold_constants(graph: Graph) -> Graph:
    """Return the graph without the nodes that depend on constants alone.

    `Shape` and `Size` count too, since shapes are bound: what follows from a shape is a constant. Specs
    are inferred on the way, so the graph may come with specs of inputs and constants only. A node that
    fails stays, so that running it says what is wrong with it, and so does one without outputs, which is
    there for what it does.
    """
    out = graph.copy()
    out.nodes = []
    for node in graph.nodes:
        infer_node(out, node)
        values = _evaluate(out, node.op, node.inputs) if node.outputs else None
        if values is None:
            out.nodes.append(node)
            continue
        for name, value in zip(node.outputs, values, strict=False):
            if name:
                out.constants[name] = value
    return out


def _evaluate(graph: Graph, op: Op, inputs: tuple[str, ...]) -> list[Array] | None:
    if op.type in ("Shape", "Size"):
        # Only the shape is read: a zero-stride array stands for the value.
        spec = graph.specs[inputs[0]]
        arrays: list[Array | None] = [np.broadcast_to(np.zeros((), spec.dtype.numpy), spec.dims)]
    elif all(i in graph.constants for i in inputs if i):
        arrays = [graph.constants[i] if i else None for i in inputs]
    else:
        return None
    specs = op.inferred([graph.specs[i] if i else None for i in inputs], [graph.constants.get(i) for i in inputs])
    if sum(s.size * s.dtype.itemsize for s in specs) > MAX_FOLDED_BYTES:
        return None
    try:
        with np.errstate(all="ignore"):
            result = op.reference(*arrays)
    except (WeftError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError):
        return None
    return [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]
