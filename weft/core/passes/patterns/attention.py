"""Put one op in the place of an attention: find its softmax and the product behind it, and make the op of all parts.

What is before the softmax, `scores` reads; both take Q, K and V as `operands`. `heads` rewrites the op that is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from weft.core.graph.graph import Node
from weft.core.graph.layout import Shape
from weft.core.graph.masks import LOWEST
from weft.core.graph.op import new_op
from weft.core.graph.symbolic import is_symbolic
from weft.core.passes.manager import PassContext
from weft.core.passes.moves import RESHAPES, Order, compose, is_identity, keeps_elements, order_of, reshape
from weft.core.passes.patterns.operands import (
    Operand,
    in_order,
    keeps_rows,
    moves_within,
    read_einsum,
    shares_heads,
    turned_over,
)
from weft.core.passes.patterns.scores import Scores, read_scores
from weft.core.passes.reader import DEEPEST, Reader, reader_pass

ATTENTION = "weft::Attention"


@reader_pass("Softmax")
def fuse_attention(reader: Reader, context: PassContext) -> None:
    """Replace softmax(scale * Q K^T + mask) V by one op, if only the product with V reads the softmax.

    The scale may be applied to Q, to K, or to their product; a constant factor for each row of the product, or for each
    head, is given to Q. A tanh may cap the scores before the mask is added. Constants may tell where the lowest number,
    or minus infinity, is in place of scores: they become a mask, which is not added there either. A softmax that is NaN
    may be replaced by zeros.
    Between the products the axes before the last two may be joined or divided. Keys, values and the result may have a
    column for each pixel in place of a row, as in images; then they are transposed. There are no more nodes than
    before, if an Einsum counts as its product and moves.
    """
    for softmax in reader.nodes("Softmax"):
        op: Any = softmax.op
        given = reader.dims(softmax.outputs[0])
        mixed = _mixed(reader, softmax.outputs[0]) if op.axis % len(given) == len(given) - 1 else None
        scores = read_scores(reader, softmax.inputs[0]) if mixed is not None else None
        if mixed is None or scores is None or not reader.graph.specs[softmax.outputs[0]].size:
            continue
        leads = [*scores.leads, given[:-2], mixed.lead]
        lead = scores.place(reader, leads, softmax.name, context)
        if lead is not None:
            _replace(reader, scores, mixed, lead)


@dataclass(frozen=True, slots=True)
class _Mixed:
    """The product of a softmax with values; `count` nodes from the softmax on compute it."""

    product: Node
    operand: str
    values: Operand
    count: int
    zero_nan: int
    lead: Shape
    turned: bool = False
    """Whether the product has a column for each query, as in images: it is V^T P^T."""


def _mixed(reader: Reader, shares: str) -> _Mixed | None:
    """Return the product with values that alone reads a softmax.

    The first axes of the softmax may be reshaped for it, and its last two swapped.
    """
    read, zero_nan = _without_nan(reader, shares)
    count = 4 if zero_nan else 2
    turned = False
    while (move := reader.only_reader(read, "Transpose", *RESHAPES)) is not None:
        order = order_of(reader.graph, move)
        if not (keeps_rows(reader, move) if order is None else order == turned_over(len(order))):
            return None
        read, count, turned = move.outputs[0], count + 1, turned != (order is not None)
    product = reader.only_reader(read, "MatMul", "Einsum")
    if product is None:
        return None
    summed, lead = read_einsum(reader, product), reader.dims(read)[:-2]
    if summed is not None:
        (first, order), (second, (*ahead, column, inner)) = summed
        count += moves_within(summed)
        if first == read and is_identity(order) and not turned:
            values = in_order(reader, second, (*ahead, inner, column))
            return _Mixed(product, second, values, count, zero_nan, lead)
        if second == read and is_identity((*ahead, column, inner)) and not turned:
            values = in_order(reader, first, compose(order, turned_over(len(order))))
            return _Mixed(product, first, values, count, zero_nan, lead, turned=True)
        return None
    if product.op.type != "MatMul" or product.inputs[turned] != read:
        return None
    operand = product.inputs[not turned]
    if not shares_heads(lead, reader.dims(operand)[:-2]):
        return None
    values = in_order(reader, operand, turned_over(len(lead) + 2)) if turned else Operand(operand)
    return _Mixed(product, operand, values, count, zero_nan, lead, turned)


def _replace(reader: Reader, scores: Scores, mixed: _Mixed, lead: Shape) -> None:
    """Put one op in the place of all, if that takes no more nodes."""
    count = scores.count + mixed.count
    parts = _placed(reader, scores, mixed, lead)
    result = _result(reader, mixed, lead)
    if parts is None or result is None:
        return
    root, order = result.root, result.order
    inputs = [*(each.value for each in parts), *scores.masks]
    lowest_hides = int(any(_holds_lowest(reader, mask) for mask in scores.masks))
    flags = {"zero_nan": mixed.zero_nan, "lowest_hides": lowest_hides, "low_replaces": int(scores.are_replaced)}
    ops = [new_op(ATTENTION, scale=scores.scale, softcap=scores.softcap, **flags)]
    shapes = [result.dims]
    if not is_identity(order):
        ops.append(new_op("Transpose", perm=order))
        shapes.append(tuple(result.dims[axis] for axis in order))
    is_reshaped = reader.dims(root.outputs[0]) != shapes[-1]
    made = list[Node]()
    for op, dims in zip(ops if is_reshaped else ops[:-1], shapes, strict=False):
        name = reader.new_value(f"{root.outputs[0]}.apart", dims, root.outputs[0])
        made.append(Node(reader.names.fresh(f"{root.name}.attention"), op, tuple(inputs), (name,)))
        inputs = [name]
    if is_reshaped:
        made.append(reshape(reader.graph, reader.names, root.name, inputs[0], root.outputs[0]))
    else:
        made.append(Node(root.name, ops[-1], tuple(inputs), root.outputs))
    nodes = [*(node for each in parts for node in each.nodes), *made]
    operands = zip((*scores.operands, mixed.operand), parts, strict=True)
    if len(nodes) <= count + result.count + sum(each.spared(reader, before) for before, each in operands):
        reader.put(root, *nodes)


def _placed(reader: Reader, scores: Scores, mixed: _Mixed, lead: Shape) -> Sequence[Operand] | None:
    """Return Q, K and V with the same axes before the last two, or with one head of K and V for all; else None."""
    q, k, v = parts = scores.q, scores.k, mixed.values
    whole = scores.leads[-1], mixed.lead
    alone = [reader.dims(each.value)[:-2] != own for each, own in zip((k, v), whole, strict=True)]
    if not any(alone):
        return [each.with_lead(reader, lead) for each in parts]
    return (q.with_lead(reader, lead), k, v) if all(alone) and whole == (lead, lead) else None


@dataclass(frozen=True, slots=True)
class _Result:
    """What is to be made in place of `root`: an attention of shape `dims`, with its axes in an order, and reshaped."""

    root: Node
    dims: Shape
    order: Order
    count: int
    """Nodes that the moves replace."""


def _result(reader: Reader, mixed: _Mixed, lead: Shape) -> _Result | None:
    """Return what to make of an attention, and where; None if that would be two moves in a row."""
    root, count = mixed.product, 0
    *before, first, second = reader.dims(root.outputs[0])
    dims = (*lead, second, first) if mixed.turned else (*lead, first, second)
    order = turned_over(len(dims)) if mixed.turned else tuple(range(len(dims)))
    if mixed.turned and reader.readers(root.outputs[0], "Transpose"):
        back = reader.only_reader(root.outputs[0], "Transpose")
        after = None if back is None else order_of(reader.graph, back)
        if back is None or after is None or tuple(before) != lead:
            return None
        root, order, count = back, compose(order, after), 1
    if not is_identity(order) and keeps_elements(dims, order):
        return None
    moved = tuple(dims[axis] for axis in order)
    if reader.dims(root.outputs[0]) != moved and (outer := reader.only_reader(root.outputs[0], *RESHAPES)) is not None:
        root, count = outer, count + 1
    if reader.dims(root.outputs[0]) != moved and reader.readers(root.outputs[0], *RESHAPES):
        return None
    return _Result(root, dims, order, count)


def _holds_lowest(reader: Reader, mask: str) -> bool:
    """Tell whether a mask is 0 or about the lowest float32, of which fp16 leaves its own lowest number."""
    for _ in range(DEEPEST):
        node = reader.maker(mask, *RESHAPES, "Transpose", "Slice", "Expand", "Cast")
        mask = mask if node is None else node.inputs[0]
    chosen = reader.maker(mask, "Where", "Mul")  # one of two numbers, or how much is hidden times the lowest number
    if chosen is not None:
        numbers = map(reader.number, chosen.inputs[-2:])
        return any(number is not None and -inf < number <= LOWEST for number in numbers)
    array = reader.graph.constants.get(mask)
    return array is not None and not is_symbolic(array) and bool(((array > -inf) & (array <= LOWEST)).any())


def _without_nan(reader: Reader, shares: str) -> tuple[str, int]:
    """Return what is read in place of a softmax, and whether that is zeros where the softmax is NaN."""
    choice, check = ([*reader.readers(shares, kind), None][0] for kind in ("Where", "IsNaN"))
    if choice is None or check is None or reader.count(shares) != 2 or not reader.is_read_once(check.outputs[0]):
        return shares, 0
    hidden, zero, kept = choice.inputs
    fits = (hidden, kept) == (check.outputs[0], shares) and reader.number(zero) == 0
    return (choice.outputs[0], 1) if fits and reader.dims(choice.outputs[0]) == reader.dims(shares) else (shares, 0)
