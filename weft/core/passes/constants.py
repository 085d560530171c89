"""Fold constants: nodes whose inputs are all known are computed once, on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.contract.error_context import is_error
from weft.core.graph.graph import Graph, Node, infer_node
from weft.core.graph.interpreter import evaluate
from weft.core.graph.later_constants import fold_symbolic, follows_from_open_sizes
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.core.host.derived_arrays import derived_arrays
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.properties import SHAPES_INFERRED, Property
from weft.core.passes.quantisation import DEQUANTIZE, grid_of
from weft.errors import ModelError, brief, said_of


def _is_known(graph: Graph, node: Node) -> bool:
    return node.op.reads_shape or all(i in graph.constants for i in node.inputs if i)


CONSTANTS_FOLDED = Property(
    "no node that depends on constants alone",
    lambda graph: [n.name for n in graph.nodes if n.outputs and _is_known(graph, n)],
)


@graph_pass(requires=(), ensures=(SHAPES_INFERRED, CONSTANTS_FOLDED))
def fold_constants(graph: Graph, context: PassContext) -> Graph:
    """Compute the nodes that depend on constants alone, once, and infer all shapes on the way.

    Ops that read only a shape count too, because shapes are bound. The graph may come with specs of inputs and
    constants only. Three kinds of nodes stay: one that fails, so that a run reports its error; one without outputs,
    which runs for its effect; and one beyond the budget. ModelError if the shapes of another node depend on one beyond
    the budget.
    """
    out, budget = graph.copy(), context.budget
    out.nodes = []
    for node in graph.nodes:
        try:
            infer_node(out, node)
        except ModelError as e:
            blocking = budget.blocking(node.inputs, f"node {node.name!r} ({node.op.type})")
            raise blocking or e from e
        values = fold_node(out, node, context) if node.outputs else None
        if values is None:
            out.nodes.append(node)
            continue
        for name, value in zip(node.outputs, values, strict=False):
            if name:
                out.constants[name] = value
        _keep_grid(out, node)
    return out


def _keep_grid(graph: Graph, node: Node) -> None:
    """Note the integers that a constant stands for: a kernel may multiply those."""
    if node.op.type in DEQUANTIZE:
        grid = grid_of(graph, node)
    elif node.op.type == "Transpose":
        grid = graph.specs[node.inputs[0]].grid
        order: Any = node.op
        if grid is not None:
            axes = order.order(len(graph.specs[node.inputs[0]].dims))
            grid = grid.moved(axes.index(grid.axis % len(axes)))
    else:
        return
    if grid is not None:
        made = node.outputs[0]
        graph.specs[made] = replace(graph.specs[made], grid=grid)


def fold_node(graph: Graph, node: Node, context: PassContext) -> list[Array] | None:
    """Return the outputs of a node that depends on constants or shapes alone; None if it does not, or is to stay.

    The specs of its inputs are there; the budget is asked, and told what it took.
    """
    op, inputs, budget = node.op, node.inputs, context.budget
    if not _is_known(graph, node):
        return None
    if follows_from_open_sizes(graph, node):
        return fold_symbolic(graph, node, budget)
    if op.reads_shape:
        # The op reads only the shape, so an array that holds one zero will do.
        spec = graph.specs[inputs[0]]
        arrays: list[Array | None] = [np.broadcast_to(np.zeros((), spec.dtype.numpy), spec.dims)]
    else:
        arrays = [graph.constants[i] if i else None for i in inputs]
    specs = op.inferred([graph.specs[i] if i else None for i in inputs], [graph.constants.get(i) for i in inputs])
    nbytes = sum(s.size * s.dtype.itemsize for s in specs)
    flops = op.flops([graph.specs[i].dims if i else None for i in inputs], [s.dims for s in specs])
    read = sum(a.nbytes for a in arrays if a is not None)
    if not context.allows(node.name, nbytes, "computing it once", values=node.outputs, flops=flops, read=read):
        return None
    began = budget.clock()
    given = [a for a in arrays if a is not None]
    try:
        if op.is_random or op.reads_shape or not _has_hash(op):
            return list(evaluate(op, arrays))
        what = (op, tuple(a is None for a in arrays))
        return list(derived_arrays.make(what, given, lambda: evaluate(op, arrays)))
    except Exception as e:  # the reference of a foreign op may raise anything
        if not is_error(e):
            raise
        context.leave(node.name, f"computing it fails with {brief(said_of(e), 100)}")
        return None
    finally:
        budget.spend(nbytes, began)


def _has_hash(op: Op) -> bool:
    try:
        hash(op)
    except TypeError:  # an attribute, such as a graph, has none
        return False
    return True
