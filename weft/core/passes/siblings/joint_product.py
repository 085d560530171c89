"""Products of one value with constant matrices, and one product in place of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.core.graph.graph import Node
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft.core.passes.manager import PassContext
from weft.core.passes.reader import Reader


@dataclass(frozen=True, slots=True)
class Projection:
    """A value x times a constant matrix, plus a bias on each row ("": none); `nodes` compute it, and only it."""

    value: str
    x: str
    weight: str
    bias: str
    width: int
    nodes: tuple[Node, ...]


def read_projection(reader: Reader, value: str) -> Projection | None:
    """Return the projection that is this value."""
    total = reader.maker(value, "Add")
    bias, inner = "", value
    if total is not None:
        bias = next((i for i in total.inputs if i in reader.graph.constants), "")
        inner = reader.other(total, bias)
        if not bias or not reader.is_read_once(inner) or reader.dims(value) != reader.dims(inner):
            return None
    product = reader.maker(inner, "MatMul")
    if product is None:
        return None
    x, weight = product.inputs
    if weight not in reader.graph.constants or len(reader.dims(weight)) != 2:
        return None
    if bias and reader.dims(bias) != reader.dims(weight)[1:]:
        return None
    nodes = (product,) if total is None else (product, total)
    return Projection(value, x, weight, bias, reader.dims(weight)[1], nodes)


def join_within_budget(
    reader: Reader, context: PassContext, name: str, parts: Sequence[Projection]
) -> tuple[Node, ...]:
    """Return the nodes of the joint product for a node of that name; () if the budget does not allow its weights."""
    budget = context.budget
    nbytes = sum(reader.graph.constants[p.weight].nbytes for p in parts)
    if not context.allows(name, nbytes, "joined weights"):
        return ()
    began = budget.clock()
    made = _join(reader, name, parts)
    budget.spend(nbytes, began)
    return made


def _join(reader: Reader, name: str, parts: Sequence[Projection]) -> tuple[Node, ...]:
    """Return the node of the joint product of one x, and that of the sum with the biases if there are any.

    The columns are side by side. Parts without a bias get zeros where others have one.
    """
    x, held = parts[0].x, reader.graph.constants
    dtype = reader.graph.specs[x].dtype
    shape = (*reader.dims(x)[:-1], sum(p.width for p in parts))

    def value(tag: str) -> str:
        return reader.new_value(f"{name}.{tag}", shape, x)

    def constant(tag: str, arrays: Sequence[Array]) -> str:
        return reader.add(f"{name}.{tag}", np.concatenate(arrays, axis=-1))

    product = value("joint")
    weights = constant("weights", [held[p.weight] for p in parts])
    nodes = (Node(product, new_op("MatMul"), (x, weights), (product,)),)
    if not any(p.bias for p in parts):
        return nodes
    total = value("joint_biased")
    biases = constant("biases", [held[p.bias] if p.bias else np.zeros(p.width, dtype.numpy) for p in parts])
    return (*nodes, Node(total, new_op("Add"), (product, biases), (total,)))
