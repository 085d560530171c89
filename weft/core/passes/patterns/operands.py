"""The operands of an attention's products, Q, K and V, without the moves and factors that lie before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.core.graph.graph import Node
from weft.core.graph.layout import Shape
from weft.core.passes.moves import (
    RESHAPES,
    Order,
    compose,
    is_identity,
    keeps_elements,
    order_of,
    reshape,
    transpose,
)
from weft.core.passes.reader import Reader


@dataclass(frozen=True, slots=True)
class Operand:
    """A number times a value; `nodes` holds the moves and factors that must be added for it."""

    value: str
    scale: float = 1.0
    nodes: tuple[Node, ...] = ()

    def times(self, scale: float) -> Operand:
        """Return it times another number."""
        return replace(self, scale=self.scale * scale)

    def with_lead(self, reader: Reader, lead: Shape) -> Operand:
        """Return it with other axes before the last two."""
        dims = (*lead, *reader.dims(self.value)[-2:])
        if reader.dims(self.value) == dims:
            return self
        *before, last = self.nodes or (reader.maker(self.value, *RESHAPES),)
        source, kept = self.value, self.nodes
        if last is not None and last.op.type in RESHAPES:  # of two reshapes in a row one is enough
            source, kept = last.inputs[0], tuple(n for n in before if n is not None)
        if reader.dims(source) == dims:
            return Operand(source, self.scale, kept)
        name = reader.new_value(f"{self.value}.apart", dims, source)
        return Operand(name, self.scale, (*kept, reshape(reader.graph, reader.names, name, source, name)))

    def spared(self, reader: Reader, before: str) -> int:
        """Return how many nodes nothing reads any more if this is read in place of the value `before`."""
        made = {o for node in self.nodes for o in node.outputs}
        sources = {i for node in self.nodes for i in node.inputs if i not in made} | {self.value}
        count = 0
        while before not in sources and reader.is_read_once(before):
            node = reader.maker(before, "Transpose", "Mul", "Div", *RESHAPES)
            if node is None:
                break
            scaled = None if node.op.type in ("Transpose", *RESHAPES) else reader.with_number(node)
            before, count = (scaled[1] if scaled else node.inputs[0]), count + 1
        return count


def shares_heads(lead: Shape, own: Shape) -> bool:
    """Tell whether values with the axes `own` before the last two are for all heads of `lead`, or one for all."""
    return own == lead or (len(lead) == 2 and own == (lead[0], 1))


def turned_over(rank: int) -> Order:
    """Return the order that swaps the last two axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


def keeps_rows(reader: Reader, node: Node) -> bool:
    """Tell whether a reshape only joins or divides axes before the last two."""
    before, after = (reader.dims(value) for value in (node.inputs[0], node.outputs[0]))
    return min(len(before), len(after)) > 2 and before[-2:] == after[-2:]


# -- of an Einsum ----------------------------------------------------------------------------------------


Ordered = tuple[str, Order]
"""An operand of a product, and the order in which its axes belong."""


def read_einsum(reader: Reader, node: Node) -> tuple[Ordered, Ordered] | None:
    """Return the operands of an Einsum of (lead..., i, d) and (lead..., j, d), in any order, to (lead..., i, j).

    None if it is another sum of products, or repeats an operand along an axis.
    """
    if node.op.type != "Einsum" or len(node.inputs) != 2 or len(reader.dims(node.outputs[0])) < 3:
        return None
    op: Any = node.op
    equation = op.read([reader.dims(value) for value in node.inputs])
    *lead, row, column = equation.result
    operands = [*zip(node.inputs, equation.terms, strict=True)]
    if row not in operands[0][1]:
        operands.reverse()
    found: list[Ordered] = []
    for (value, labels), own in zip(operands, (row, column), strict=True):
        inner = [label for label in labels if label not in equation.result]
        wanted = [*lead, own, *inner]
        sizes = [equation.sizes[label] for label in labels]
        if len(inner) != 1 or sorted(labels) != sorted(wanted) or list(reader.dims(value)) != sizes:
            return None
        found.append((value, tuple(labels.index(label) for label in wanted)))
    return (found[0], found[1]) if inner[0] in operands[0][1] else None


def moves_within(operands: Sequence[Ordered]) -> int:
    """Return the moves that an Einsum does besides a product: it stands for as many nodes more."""
    return sum(not is_identity(order) for _, order in operands)


# -- in another order, and without their scale -----------------------------------------------------------


def in_order(reader: Reader, value: str, order: Order) -> Operand:
    """Return a value with its axes in another order, and whatever it was multiplied by."""
    before = reader.maker(value, "Transpose")
    first = None if before is None else order_of(reader.graph, before)
    if before is not None and first is not None and is_identity(compose(first, order)):
        return Operand(before.inputs[0])
    return Operand(value) if is_identity(order) else transposed(reader, value, value, order, takes_scale=False)


def ordered(reader: Reader, value: str, order: Order) -> Operand:
    """Return a value without its scale, with its axes in another order."""
    return unscaled(reader, value) if is_identity(order) else transposed(reader, value, value, order)


def times_factor(reader: Reader, queries: Operand, factor: Node) -> Operand:
    """Return queries times a factor of scores, which is the same for all keys."""
    name = reader.names.fresh(f"{queries.value}.times")
    reader.graph.specs[name] = reader.graph.specs[queries.value]
    node = Node(name, factor.op, (queries.value, factor.inputs[1]), (name,))
    return Operand(name, queries.scale, (*queries.nodes, node))


def unscaled(reader: Reader, value: str) -> Operand:
    """Return a value without its scale, which may lie before a transpose, and before the reshape of that."""
    scale, value = reader.scaled(value)
    node = reader.maker(value, "Transpose")
    order = None if node is None else order_of(reader.graph, node)
    if node is None or order is None or not reader.is_read_once(value):
        return Operand(value, scale)
    (source,) = node.inputs
    is_scaled = reader.scaled(source)[1] != source or _scaled_before_reshape(reader, source) is not None
    return transposed(reader, value, source, order, scale) if is_scaled else Operand(value, scale)


def _scaled_before_reshape(reader: Reader, value: str) -> tuple[float, str] | None:
    """Return the number and the value whose product is reshaped to this one; None if it is not made so."""
    apart = reader.maker(value, *RESHAPES)
    if apart is None or not reader.is_read_once(value):
        return None
    scale, inner = reader.scaled(apart.inputs[0])
    return None if inner == apart.inputs[0] else (scale, inner)


def _before_reshape(reader: Reader, value: str) -> Operand:
    """Return a value without the scale that lies before the reshape that makes it, if there is one."""
    found = _scaled_before_reshape(reader, value)
    if found is None:
        return Operand(value)
    scale, inner = found
    name = reader.names.fresh(f"{value}.unscaled")
    reader.graph.specs[name] = reader.graph.specs[value]
    return Operand(name, scale, (reshape(reader.graph, reader.names, name, inner, name),))


def transposed(
    reader: Reader, value: str, source: str, order: Order, scale: float = 1.0, *, takes_scale: bool = True
) -> Operand:
    """Return `source`, transposed, in place of something like `value`; its scale is apart if `takes_scale`.

    Moves that the scale was between become one, so that there is nothing left to squash.
    """
    more, source = reader.scaled(source) if takes_scale else (1.0, source)
    flat = _before_reshape(reader, source) if takes_scale else Operand(source)
    source, scale = flat.value, scale * more * flat.scale
    before = reader.maker(source, "Transpose")
    first = None if before is None else order_of(reader.graph, before)
    if before is not None and first is not None:
        source, order = before.inputs[0], compose(first, order)
    dims = tuple(reader.dims(source)[axis] for axis in order)
    free = keeps_elements(reader.dims(source), order)
    if free:
        apart = reader.maker(source, *RESHAPES)
        source = source if apart is None else apart.inputs[0]
        if reader.dims(source) == dims:
            return Operand(source, scale, flat.nodes)
    name = reader.new_value(f"{value}.turned", dims, source)
    moved = reshape(reader.graph, reader.names, name, source, name) if free else transpose(name, source, order, name)
    return Operand(name, scale, (*flat.nodes, moved))


def turned_back(reader: Reader, value: str) -> Operand | None:
    """Return the value that `value` is with its last two axes swapped; axes before these may be joined or divided."""
    node = reader.maker(value, "Transpose", *RESHAPES)
    order = None if node is None else order_of(reader.graph, node)
    if node is None:
        return None
    if order is None:
        scale, inner = reader.scaled(node.inputs[0])
        swaps = reader.maker(inner, "Transpose") is not None and keeps_rows(reader, node)
        found = turned_back(reader, inner) if swaps else None
        return found and found.times(scale)
    swapped = compose(order, turned_over(len(order)))
    if is_identity(swapped):
        return unscaled(reader, node.inputs[0])
    return transposed(reader, value, node.inputs[0], swapped)
