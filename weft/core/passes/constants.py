"""Fold constants: nodes whose inputs are all known are computed once, on the host."""

from __future__ import annotations

import numpy as np

from weft.core.graph.graph import Graph, Node, infer_node
from weft.core.graph.layout import Array
from weft.core.graph.limits import Budget
from weft.errors import ModelError, WeftError


def fold_constants(graph: Graph, budget: Budget | None = None) -> Graph:
    """Return the graph without the nodes that depend on constants alone.

    `Shape` and `Size` count too, since shapes are bound: what follows from a shape is a constant. Specs
    are inferred on the way, so the graph may come with specs of inputs and constants only. A node that
    fails stays, so that running it says what is wrong with it, and so does one without outputs, which is
    there for what it does. What the budget does not allow stays as well: ModelError if another node must know it.
    """
    out, budget = graph.copy(), budget or Budget()
    out.nodes = []
    for node in graph.nodes:
        try:
            infer_node(out, node)
        except ModelError as e:
            blocking = budget.blocking(node.inputs, f"node {node.name!r} ({node.op.type})")
            raise blocking or e from e
        values = _evaluate(out, node, budget) if node.outputs else None
        if values is None:
            out.nodes.append(node)
            continue
        for name, value in zip(node.outputs, values, strict=False):
            if name:
                out.constants[name] = value
    return out


def _evaluate(graph: Graph, node: Node, budget: Budget) -> list[Array] | None:
    op, inputs = node.op, node.inputs
    if op.type in ("Shape", "Size"):
        # Only the shape is read: a zero-stride array stands for the value.
        spec = graph.specs[inputs[0]]
        arrays: list[Array | None] = [np.broadcast_to(np.zeros((), spec.dtype.numpy), spec.dims)]
    elif all(i in graph.constants for i in inputs if i):
        arrays = [graph.constants[i] if i else None for i in inputs]
    else:
        return None
    specs = op.inferred([graph.specs[i] if i else None for i in inputs], [graph.constants.get(i) for i in inputs])
    nbytes = sum(s.size * s.dtype.itemsize for s in specs)
    flops = op.flops([graph.specs[i].dims if i else None for i in inputs], [s.dims for s in specs])
    if not budget.allows(node.outputs, nbytes, flops=flops, read=sum(a.nbytes for a in arrays if a is not None)):
        return None
    began = budget.clock()
    try:
        with np.errstate(all="ignore"):
            result = op.reference(*arrays)
    except (WeftError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError):
        return None
    finally:
        budget.spend(nbytes, began)
    return [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]
