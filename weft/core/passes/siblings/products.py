"""Compute products of one value with several constant matrices by one product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import PACK
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES, is_move, keeps_elements, order_of
from weft.core.passes.parts import split
from weft.core.passes.patterns.attention import ATTENTION
from weft.core.passes.reader import Reader
from weft.core.passes.siblings.joint_product import Projection, join_within_budget, read_projection

HEAVY = ("MatMul", "Gemm", "Conv", "Einsum", ATTENTION)
"""Ops that begin another step of a network, if they do not read the value that siblings read."""
READ_PARTS = (
    *(ATTENTION, "RMSNormalization", "LayerNormalization"),
    *("Slice", "Split", "Gather", "Expand", "Concat"),
)
"""Ops that read a part of a value as they read a whole one."""


@graph_pass()
def join_sibling_products(graph: Graph, context: PassContext) -> Graph:
    """Compute products of one value with constant matrices by one product, and split its result.

    So it is with Q, K and V in decoders, where K and V are narrower than Q, or heads are rotated or normalized before
    the attention. A bias of each is added, too. The results must be read where a part of another value serves as well,
    and not by element-wise nodes alone, which the kernel of the product computes as it stores. Columns are joined
    within the budget.
    """
    if not Reader.has(graph, "MatMul"):
        return graph
    reader = Reader(graph)
    for parts in _siblings(reader):
        made = join_within_budget(reader, context, parts[0].nodes[0].name, parts)
        if made:
            _replace(reader, parts, made)
    return reader.finish()


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
