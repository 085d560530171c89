"""Fold constants: nodes whose inputs are all known are computed once, on the host."""

from __future__ import annotations

import numpy as np

from weft.core.graph.graph import Graph, Node, infer_node
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import SHAPES_INFERRED, Property
from weft.errors import ModelError, WeftError, brief

SHAPE_OPS = ("Shape", "Size")
"""Ops whose results follow from the shape of their input, which is known."""


def _is_known(graph: Graph, node: Node) -> bool:
    return node.op.type in SHAPE_OPS or all(i in graph.constants for i in node.inputs if i)


CONSTANTS_FOLDED = Property(
    "no node that depends on constants alone",
    lambda graph: [n.name for n in graph.nodes if n.outputs and _is_known(graph, n)],
)


@graph_pass(requires=(), ensures=(SHAPES_INFERRED, CONSTANTS_FOLDED))
def fold_constants(graph: Graph, context: PassContext) -> Graph:
    """Compute the nodes that depend on constants alone, once, and infer all shapes on the way.

    `Shape` and `Size` count too, since shapes are bound: what follows from a shape is a constant. Specs
    are inferred on the way, so the graph may come with specs of inputs and constants only. A node that
    fails stays, so that running it says what is wrong with it, and so does one without outputs, which is
    there for what it does. What the budget does not allow stays as well: ModelError if another node must know it.
    """
    out, budget = graph.copy(), context.budget
    out.nodes = []
    for node in graph.nodes:
        try:
            infer_node(out, node)
        except ModelError as e:
            blocking = budget.blocking(node.inputs, f"node {node.name!r} ({node.op.type})")
            raise blocking or e from e
        values = _evaluate(out, node, context) if node.outputs else None
        if values is None:
            out.nodes.append(node)
            continue
        for name, value in zip(node.outputs, values, strict=False):
            if name:
                out.constants[name] = value
    return out


def _evaluate(graph: Graph, node: Node, context: PassContext) -> list[Array] | None:
    op, inputs, budget = node.op, node.inputs, context.budget
    if not _is_known(graph, node):
        return None
    if op.type in SHAPE_OPS:
        # Only the shape is read: a zero-stride array stands for the value.
        spec = graph.specs[inputs[0]]
        arrays: list[Array | None] = [np.broadcast_to(np.zeros((), spec.dtype.numpy), spec.dims)]
    else:
        arrays = [graph.constants[i] if i else None for i in inputs]
    specs = op.inferred([graph.specs[i] if i else None for i in inputs], [graph.constants.get(i) for i in inputs])
    nbytes = sum(s.size * s.dtype.itemsize for s in specs)
    flops = op.flops([graph.specs[i].dims if i else None for i in inputs], [s.dims for s in specs])
    if not budget.allows(node.outputs, nbytes, flops=flops, read=sum(a.nbytes for a in arrays if a is not None)):
        limit = next((budget.left[o][0] for o in node.outputs if o), "folding_bytes")
        context.leave(node.name, f"computing it once would go beyond the limit {limit!r}, so each run does")
        return None
    began = budget.clock()
    try:
        return list(evaluate(op, arrays))
    except (WeftError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as e:
        context.leave(node.name, f"computing it fails with {brief(f'{type(e).__name__}: {e}', 100)}")
        return None
    finally:
        budget.spend(nbytes, began)
