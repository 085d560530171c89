"""Compute element-wise nodes between two reshapes that undo each other in the shape that the values had before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from weft.core.graph.graph import Graph, Names, Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.symbolic import has_open_size, is_symbolic
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.dead import without_dead_nodes
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES

ROUNDS = 8
"""Dead nodes go with a round that changes anything, and may leave a value to one reader, and so work to the next."""


@graph_pass(rounds=ROUNDS)
def undo_reshapes(graph: Graph, context: PassContext) -> Graph:
    """Let an element-wise node read what was reshaped, if its own result is reshaped back.

    All its operands must be such reshapes, scalars or constants, which are reshaped here, within the budget; and only
    the reshape back may read the result. Then both reshapes are gone.
    """
    if not any(node.op.type in RESHAPES for node in graph.nodes):
        return graph
    out, names, makers, readers = graph.copy(), Names(graph), graph.producers(), graph.readers()
    gone: set[str] = set()
    for position, back in enumerate(graph.nodes):
        node = makers.get(back.inputs[0]) if back.op.type in RESHAPES else None
        if node is None or not node.op.is_elementwise or readers[back.inputs[0]] != 1 or len(node.outputs) != 1:
            continue
        inner, outer = (graph.specs[o].dims for o in (node.outputs[0], back.outputs[0]))
        if 0 in inner:
            continue
        began = context.budget.clock()
        operands = [_operand(graph, makers, name, inner, outer) for name in node.inputs]
        made = {k: each for k, each in enumerate(operands) if isinstance(each, np.ndarray)}
        nbytes = sum(array.nbytes for array in made.values())
        if any(each is None for each in operands) or len(made) == len(operands):
            continue
        if not context.allows(node.name, nbytes, "its constants in another shape"):
            continue
        inputs = [names.fresh(f"{node.name}.operand") if k in made else str(each) for k, each in enumerate(operands)]
        for k, array in made.items():
            out.constants[inputs[k]] = array
            out.specs[inputs[k]] = TensorSpec(array.shape, graph.specs[node.inputs[k]].dtype)
        context.budget.spend(nbytes, began)
        out.nodes[position] = replace(node, inputs=tuple(inputs), outputs=back.outputs)
        makers[back.outputs[0]] = out.nodes[position]  # what it was reshaped from is gone
        gone.add(node.name)
    out.nodes = [node for k, node in enumerate(out.nodes) if graph.nodes[k].name not in gone]
    return without_dead_nodes(out) if gone else graph


def _operand(graph: Graph, makers: dict[str, Node], name: str, inner: Shape, outer: Shape) -> str | Array | None:
    """Return what replaces an operand: the value that was reshaped, or a constant in another shape; None if nothing."""
    if name in graph.constants:
        found = graph.constants[name]
        if is_symbolic(found):
            return None
        if found.size == 1 and found.ndim <= len(outer):
            return name
        return None if has_open_size((*inner, *outer)) else broadcast_reshape(found, inner, outer)
    maker = makers.get(name)
    if not name or maker is None or maker.op.type not in RESHAPES or graph.specs[name].dims != inner:
        return None
    return maker.inputs[0] if graph.specs[maker.inputs[0]].dims == outer else None


def broadcast_reshape(value: Array, inner: Shape, outer: Shape) -> Array | None:
    """Return a constant that broadcasts to `inner` as one that broadcasts to `outer`, which has the same elements.

    Axes along which it is repeated stay repeated if a reshape joins or splits them with such axes only.
    """
    if value.ndim > len(inner):
        return None
    full = value.reshape((1,) * (len(inner) - value.ndim) + value.shape)
    dims: list[int] = []
    for before, after in _groups(inner, outer):
        sizes = [full.shape[a] for a in before]
        whole = prod(inner[a] for a in before)
        if prod(sizes) == 1:
            dims += [1] * len(after)
        elif prod(sizes) == whole:
            dims += [outer[a] for a in after]
        else:
            shape = [inner[a] if a in before else n for a, n in enumerate(full.shape)]
            full = np.broadcast_to(full, shape)
            dims += [outer[a] for a in after]
    return np.ascontiguousarray(full).reshape(dims)


def _groups(inner: Shape, outer: Shape) -> Iterator[tuple[range, range]]:
    """Yield the shortest runs of axes of both shapes that have the same number of elements; no size may be 0."""
    i = o = 0
    while i < len(inner) or o < len(outer):
        a, b = i, o
        left = right = 1
        while a == i or b == o or left != right:
            if (left <= right and a < len(inner)) or b == len(outer):
                if a == len(inner):
                    break
                left, a = left * inner[a], a + 1
            else:
                right, b = right * outer[b], b + 1
        yield range(i, a), range(o, b)
        i, o = a, b
