"""Compute products of one value with several constant matrices by one product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.graph.graph import Node
from weft.core.graph.layout import PACK, Array
from weft.core.graph.op import new_op
from weft.core.graph.widened import joined
from weft.core.passes.manager import PassContext
from weft.core.passes.moves import RESHAPES, is_move, keeps_elements, order_of
from weft.core.passes.parts import split
from weft.core.passes.patterns.attention import ATTENTION
from weft.core.passes.reader import Reader, reader_pass

HEAVY = ("MatMul", "Gemm", "Conv", "Einsum", ATTENTION)
"""Ops that begin another step of a network, if they do not read the value that siblings read."""
READ_PARTS = (
    *(ATTENTION, "RMSNormalization", "LayerNormalization"),
    *("Slice", "Split", "Gather", "Expand", "Concat"),
)
"""Ops that read a part of a value as they read a whole one."""


@reader_pass("MatMul")
def join_sibling_products(reader: Reader, context: PassContext) -> None:
    """Compute products of one value with constant matrices by one product, and split its result.

    So it is with Q, K and V in decoders, where K and V are narrower than Q, or heads are rotated or normalized before
    the attention. A bias of each is added, too. The results must be read where a part of another value serves as well,
    and not by element-wise nodes alone, which the kernel of the product computes as it stores. Columns are joined
    within the budget.
    """
    for parts in _siblings(reader):
        made = join_within_budget(reader, context, parts[0].nodes[0].name, parts)
        if made:
            _replace(reader, parts, made)


def _siblings(reader: Reader) -> Iterator[list[Projection]]:
    """Return groups of projections of one value, between which no other step of the network stands.

    Else parts would be kept for long, such as the keys and values of all layers of a decoder, which are made of what
    its encoder has put out. Columns come in fours: one more would keep kernels from reading any part as vectors.
    """
    groups: dict[str, list[Projection]] = {}
    ended: list[list[Projection]] = []
    for node in reader.graph.nodes:
        if node.op.type in HEAVY:
            ended += [groups.pop(x) for x in list(groups) if x not in node.inputs]
        part = _projection(reader, node) if node.op.type == "MatMul" else None
        if part is not None and part.width % PACK == 0 and _is_read_as_part(reader, part.value):
            groups.setdefault(part.x, []).append(part)
    return (parts for parts in (*ended, *groups.values()) if len(parts) > 1)


def _projection(reader: Reader, product: Node) -> Projection | None:
    """Return the projection that a product is, with the bias that is added to it."""
    total = reader.only_reader(product.outputs[0], "Add")
    return read_projection(reader, (total or product).outputs[0])


def _is_read_as_part(reader: Reader, value: str) -> bool:
    """Tell whether a value can as well be a part of another one: no launch is added, and none does more than before."""
    ahead, elementwise = [(value, False)], list[bool]()
    while ahead:
        each, turned = ahead.pop()
        if each in reader.graph.outputs:
            if not turned:
                return False  # the product writes it where it must lie
            elementwise.append(False)
        for node in reader.readers(each):
            if is_move(node):
                stays = node.op.type in RESHAPES or keeps_elements(reader.dims(each), order_of(reader.graph, node))
                ahead.append((node.outputs[0], turned or not stays))
                continue
            if not _reads_parts(reader, node, turned) or (not turned and _is_step(reader, node, each)):
                return False
            elementwise.append(node.op.is_elementwise)
    return not all(elementwise)


def _reads_parts(reader: Reader, node: Node, turned: bool) -> bool:
    """Tell whether a node reads a part of a value as it reads all of one, which may be transposed for it."""
    if node.op.type == "Concat" and not turned:
        return False  # the product writes it where it must lie
    if node.op.type == "MatMul":  # rows for a constant matrix lie side by side: those of other values are copied
        return turned or not any(i in reader.graph.constants for i in node.inputs)
    return node.op.is_elementwise or node.op.type in READ_PARTS


def _is_step(reader: Reader, node: Node, value: str) -> bool:
    """Tell whether a kernel can compute an element-wise node as it stores a value, even if others read that, too."""
    if not node.op.is_elementwise:
        return False
    specs, dims, held = reader.graph.specs, reader.dims(value), reader.graph.constants
    others = [i for i in node.inputs if i and i != value]
    rows = all((i in held and len(reader.dims(i)) < 2) or specs[i].size == 1 or reader.dims(i) == dims for i in others)
    return rows and reader.dims(node.outputs[0]) == dims


def _replace(reader: Reader, parts: Sequence[Projection], made: Sequence[Node]) -> None:
    """Put the joint product, and the split of its result, in the place of the first product."""
    first = parts[0].nodes[0]
    parted = split(reader, f"{first.name}.parts", made[-1].outputs[0], [part.value for part in parts], -1)
    for node in (node for part in parts for node in part.nodes):
        reader.put(node)
    reader.put(first, *made, parted)


# -- one product in place of several ----------------------------------------------------------------------


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
        return reader.add(f"{name}.{tag}", joined(arrays, -1))

    product = value("joint")
    weights = constant("weights", [held[p.weight] for p in parts])
    nodes = (Node(product, new_op("MatMul"), (x, weights), (product,)),)
    if not any(p.bias for p in parts):
        return nodes
    total = value("joint_biased")
    biases = constant("biases", [held[p.bias] if p.bias else np.zeros(p.width, dtype.numpy) for p in parts])
    return (*nodes, Node(total, new_op("Add"), (product, biases), (total,)))


# -- what makes Q, K and V --------------------------------------------------------------------------------


@reader_pass(ATTENTION)
def join_projections(reader: Reader, context: PassContext) -> None:
    """Compute an attention's Q, K and V by one matrix product where three products read one value.

    Weights and biases must be constants. Where only some have a bias, as in BEiT, the others get zeros. Their columns
    are joined side by side, within the budget.
    """
    for node in reader.nodes(ATTENTION):
        op: Any = node.op
        if not op.heads or op.packed:
            continue
        parts = [p for i in node.inputs[:3] if reader.is_read_once(i) and (p := read_projection(reader, i)) is not None]
        equal = len({(p.x, reader.dims(p.weight)) for p in parts}) == 1
        made = join_within_budget(reader, context, node.name, parts) if len(parts) == 3 and equal else ()
        if made:
            packed = replace(op, packed=1)
            reader.put(node, *made, replace(node, op=packed, inputs=(made[-1].outputs[0], *node.inputs[3:])))
