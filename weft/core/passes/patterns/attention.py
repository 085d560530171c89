"""Find attention among its parts, drop the transposes around it, and compute Q, K and V by one product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np

from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Shape
from weft.core.graph.limits import Budget
from weft.core.graph.symbolic import is_symbolic
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.manager import PassContext, graph_pass
from weft.core.passes.moves import RESHAPES, Order, compose, keeps_elements, order_of, reshape
from weft.core.passes.patterns.reading import DEEPEST, Reader, make

ATTENTION = "weft::Attention"
LOWEST = -1e30
"""A finite mask below this leaves nothing of a score, in float32."""
HEADS_APART = (0, 2, 1, 3)
"""The order that takes (batch, rows, heads, elements) to (batch, heads, rows, elements), and back."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores as scale * q k^T + mask; `nodes` holds the transposes and reshapes that must be added for it."""

    scale: float
    q: str
    k: str
    mask: str = ""
    nodes: tuple[Node, ...] = ()


# -- one op ----------------------------------------------------------------------------------------------


@graph_pass()
def fuse_attention(graph: Graph, context: PassContext) -> Graph:
    """Replace softmax(scale * Q K^T + mask) V by one op, if only the product with V reads the softmax.

    The scale may be applied to Q, to K, or to their product. A softmax that is NaN may be replaced by zeros.
    """
    if not Reader.has(graph, "Softmax"):
        return graph
    reader = Reader(graph)
    for softmax in reader.nodes("Softmax"):
        op: Any = softmax.op
        given = reader.dims(softmax.outputs[0])
        shares, zero_nan = _without_nan(reader, softmax.outputs[0])
        product = reader.only_reader(shares, "MatMul")
        if product is None or op.axis % len(given) != len(given) - 1 or product.inputs[0] != shares:
            continue
        scores, v, last = _scores(reader, softmax.inputs[0], context.budget), _Scaled(1.0, product.inputs[1]), product
        if scores is None and (whole := _in_rank_4(reader, softmax.inputs[0], product)) is not None:
            value, last = whole
            lead = reader.dims(value)[:-2]
            scores, v = _scores(reader, value, context.budget), _with_lead(reader, v, lead)
        if scores is None:
            continue
        shapes = [reader.dims(each)[:-2] for each in (scores.q, scores.k, v.value, last.outputs[0])]
        if all(shape == shapes[0] for shape in shapes) and len(shapes[0]) in (1, 2) and reader.graph.specs[shares].size:
            inputs = [scores.q, scores.k, v.value] + [scores.mask] * bool(scores.mask)
            lowest_hides = int(_holds_lowest(reader, scores.mask))
            fused = make(ATTENTION, scale=scores.scale, zero_nan=zero_nan, lowest_hides=lowest_hides)
            reader.put(last, *scores.nodes, *v.nodes, Node(last.name, fused, tuple(inputs), last.outputs))
    return reader.finish()


def _holds_lowest(reader: Reader, mask: str) -> bool:
    """Tell whether a mask is 0 or about the lowest float32, of which fp16 leaves its own lowest number."""
    for _ in range(DEEPEST):
        node = reader.maker(mask, *RESHAPES, "Transpose", "Slice", "Expand", "Cast")
        mask = mask if node is None else node.inputs[0]
    choice = reader.maker(mask, "Where")
    if choice is not None:
        return any(number is not None and -inf < number < LOWEST for number in map(reader.number, choice.inputs[1:]))
    array = reader.graph.constants.get(mask)
    return array is not None and not is_symbolic(array) and bool(((array > -inf) & (array < LOWEST)).any())


def _in_rank_4(reader: Reader, value: str, product: Node) -> tuple[str, Node] | None:
    """Return scores of rank 4 that are reshaped to `value`, of rank 3, and the reshape of the result to such heads.

    A mask for each batch is added in rank 4 where batch and heads are one axis of the products.
    """
    joined = reader.maker(value, *RESHAPES)
    apart = reader.only_reader(product.outputs[0], *RESHAPES)
    if joined is None or apart is None or not reader.is_read_once(value) or len(reader.dims(value)) != 3:
        return None
    dims, out = reader.dims(joined.inputs[0]), reader.dims(apart.outputs[0])
    fits = len(dims) == len(out) == 4 and dims[2:] == reader.dims(value)[1:] and out[:3] == dims[:3]
    return (joined.inputs[0], apart) if fits else None


def _with_lead(reader: Reader, found: _Scaled, lead: Shape) -> _Scaled:
    """Return a value of rank 3 with these axes in place of the first."""
    dims = (*lead, *reader.dims(found.value)[1:])
    joined = reader.maker(found.value, *RESHAPES)
    source = found.value if joined is None else joined.inputs[0]
    if reader.dims(source) == dims:
        return replace(found, value=source)
    name = reader.names.fresh(f"{found.value}.heads")
    reader.graph.specs[name] = TensorSpec(dims, reader.graph.specs[source].dtype)
    node = Node(name, make("Identity"), (source,), (name,))
    return replace(found, value=name, nodes=(*found.nodes, reshape(reader.graph, node, source, reader.names)))


def _without_nan(reader: Reader, shares: str) -> tuple[str, int]:
    """Return what is read in place of a softmax, and whether that is zeros where the softmax is NaN."""
    choice, check = ([*reader.readers(shares, kind), None][0] for kind in ("Where", "IsNaN"))
    if choice is None or check is None or reader.count(shares) != 2 or not reader.is_read_once(check.outputs[0]):
        return shares, 0
    hidden, zero, kept = choice.inputs
    fits = (hidden, kept) == (check.outputs[0], shares) and reader.number(zero) == 0
    return (choice.outputs[0], 1) if fits and reader.dims(choice.outputs[0]) == reader.dims(shares) else (shares, 0)


def _scores(reader: Reader, value: str, budget: Budget) -> _Scores | None:
    """Return the parts of the scores, if nothing else reads an intermediate value; constant masks are added up."""
    total = reader.maker(value, "Add")
    if not reader.is_read_once(value):
        return None
    if total is None:
        return _scaled(reader, value)
    for rest, mask in (total.inputs, total.inputs[::-1]):
        if not reader.is_read_once(rest) or reader.dims(rest) != reader.dims(value):
            continue
        found = _scaled(reader, rest)
        if found is not None:
            return replace(found, mask=mask)
        if mask in reader.graph.constants and (found := _scores(reader, rest, budget)) is not None:
            joint = _sum(reader, found.mask, mask, budget)
            return replace(found, mask=joint) if joint else None
    return None


def _sum(reader: Reader, first: str, second: str, budget: Budget) -> str:
    """Return the sum of two constants as a constant; "" if one is none, or the sum is too large."""
    constants = reader.graph.constants
    if first not in constants or any(map(is_symbolic, (constants[first], constants[second]))):
        return ""
    spec = reader.graph.specs[first]
    dims = np.broadcast_shapes(constants[first].shape, constants[second].shape)
    nbytes, began = prod(dims) * spec.dtype.itemsize, budget.clock()
    if not budget.allows((), nbytes):
        return ""
    name = reader.names.fresh(f"{first}.masks")
    constants[name] = constants[first] + constants[second]
    reader.graph.specs[name] = TensorSpec(dims, spec.dtype)
    budget.spend(nbytes, began)
    return name


def _scaled(reader: Reader, value: str) -> _Scores | None:
    scale, inner = reader.scaled(value)
    lead: Shape = ()
    apart = reader.maker(inner, *RESHAPES)
    if apart is not None and reader.is_read_once(inner):  # heads are an axis of their own for the mask alone
        dims, whole = reader.dims(apart.inputs[0]), reader.dims(inner)
        lead = whole[:2] if len(dims) == 3 and len(whole) == 4 and dims[1:] == whole[2:] else ()
        scale_apart, inner = reader.scaled(apart.inputs[0])
        scale *= scale_apart
    product = reader.maker(inner, "MatMul")
    if product is None or not reader.is_read_once(inner) or bool(lead) != (apart is not None):
        return None
    scale_k, turned = reader.scaled(product.inputs[1])
    if len(reader.dims(product.inputs[0])) != len(reader.dims(turned)) or len(reader.dims(turned)) < 3:
        return None
    keys = _turned_back(reader, turned)
    if keys is None:
        return None
    queries = _unscaled(reader, product.inputs[0])
    if lead:
        queries, keys = _with_lead(reader, queries, lead), _with_lead(reader, keys, lead)
    scale *= scale_k * keys.scale * queries.scale
    return _Scores(scale, queries.value, keys.value, "", (*queries.nodes, *keys.nodes))


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A number times a value; `nodes` holds the transpose or reshape that must be added for it, if one must."""

    scale: float
    value: str
    nodes: tuple[Node, ...] = ()


def _unscaled(reader: Reader, value: str) -> _Scaled:
    """Return a value without its scale, which may lie before a transpose."""
    scale, value = reader.scaled(value)
    node = reader.maker(value, "Transpose")
    order = None if node is None else order_of(reader.graph, node)
    if node is None or order is None or not reader.is_read_once(value) or reader.scaled(node.inputs[0])[0] == 1:
        return _Scaled(scale, value)
    return _transposed(reader, value, node.inputs[0], order, scale)


def _transposed(reader: Reader, value: str, source: str, order: Order, scale: float = 1.0) -> _Scaled:
    """Return `source`, transposed and without its scale, in place of something like `value`.

    Moves that the scale was between become one, so that there is nothing left to squash.
    """
    more, source = reader.scaled(source)
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
            return _Scaled(scale * more, source)
    name = reader.names.fresh(f"{value}.turned")
    reader.graph.specs[name] = TensorSpec(dims, reader.graph.specs[source].dtype)
    node = Node(name, make("Transpose", perm=order), (source,), (name,))
    return _Scaled(scale * more, name, (reshape(reader.graph, node, source, reader.names) if free else node,))


def _turned_back(reader: Reader, value: str) -> _Scaled | None:
    """Return the value that `value` is with its last two axes swapped."""
    node = reader.maker(value, "Transpose", *RESHAPES)
    order = None if node is None else order_of(reader.graph, node)
    if node is None:
        return None
    if order is None:
        return _turned_in_rank_3(reader, value, node)
    swapped = (*order[:-2], order[-1], order[-2])
    if swapped == tuple(range(len(order))):
        return _unscaled(reader, node.inputs[0])
    return _transposed(reader, value, node.inputs[0], swapped)


def _turned_in_rank_3(reader: Reader, value: str, outer: Node) -> _Scaled | None:
    """Return what `_turned_back` does where the axes are swapped by way of one axis for batch and heads."""
    middle = reader.maker(outer.inputs[0], "Transpose")
    inner = middle and reader.maker(middle.inputs[0], *RESHAPES)
    if middle is None or inner is None or order_of(reader.graph, middle) != (0, 2, 1):
        return None
    dims, source = reader.dims(value), inner.inputs[0]
    wanted = (*dims[:-2], dims[-1], dims[-2])
    if reader.dims(outer.inputs[0])[1:] != dims[-2:]:
        return None
    if reader.dims(source) == wanted:
        return _unscaled(reader, source)
    name = reader.names.fresh(f"{value}.turned")  # heads that were repeated are reshaped once, to one axis
    reader.graph.specs[name] = TensorSpec(wanted, reader.graph.specs[value].dtype)
    apart = Node(name, inner.op, inner.inputs, (name,))
    return _Scaled(1.0, name, (reshape(reader.graph, apart, source, reader.names),))


# -- keys that heads share -------------------------------------------------------------------------------


@graph_pass()
def share_keys(graph: Graph, context: PassContext) -> Graph:
    """Let heads of attention share keys and values that were repeated for them.

    It applies where K and V of (batch, heads, rows, elements) are expanded, and reshaped to as many heads as Q has.
    """
    if not Reader.has(graph, ATTENTION) or not Reader.has(graph, "Expand"):
        return graph
    reader = Reader(graph)
    for node in reader.nodes(ATTENTION):
        op: Any = node.op
        if op.heads or len(reader.dims(node.outputs[0])) != 4:
            continue
        keys, values = (_before_repeats(reader, i) for i in node.inputs[1:3])
        if keys is not None and values is not None and keys.shape[:2] == values.shape[:2]:
            nodes = (*keys.nodes(reader), *values.nodes(reader))
            inputs = (node.inputs[0], keys.name, values.name, *node.inputs[3:])
            reader.put(node, *nodes, replace(node, inputs=inputs))
    return reader.finish()


@dataclass(slots=True)
class _Repeated:
    """The heads that were repeated, as the value `name` of this shape, or as what must be reshaped to it."""

    name: str
    shape: Shape

    def nodes(self, reader: Reader) -> tuple[Node, ...]:
        """Return the reshape that must be added, after which `name` is its result."""
        if reader.dims(self.name) == self.shape:
            return ()
        source, self.name = self.name, reader.names.fresh(f"{self.name}.heads")
        reader.graph.specs[self.name] = TensorSpec(self.shape, reader.graph.specs[source].dtype)
        made = Node(self.name, make("Identity"), (source,), (self.name,))
        return (reshape(reader.graph, made, source, reader.names),)


def _before_repeats(reader: Reader, value: str) -> _Repeated | None:
    """Return the heads of (batch, heads, rows, elements) of which `value` repeats each several times."""
    joined = reader.maker(value, *RESHAPES)
    wide = reader.maker(joined.inputs[0] if joined is not None else value, "Expand")
    batch, heads, rows, each = reader.dims(value)
    if wide is None:
        return None
    narrow, dims = reader.dims(wide.inputs[0]), reader.dims(wide.outputs[0])
    if joined is None:
        one = (batch, 1, rows, each)
        return _Repeated(wide.inputs[0], one) if narrow == one else None
    if len(dims) != 5:
        return None
    shape = (batch, dims[1], rows, each)
    if narrow != (*shape[:2], 1, *shape[2:]) or dims != (*shape[:2], dims[2], *shape[2:]) or dims[1] * dims[2] != heads:
        return None
    apart = reader.maker(wide.inputs[0], *RESHAPES)
    return _Repeated(apart.inputs[0] if apart is not None else wide.inputs[0], shape)


# -- heads where they lie --------------------------------------------------------------------------------


@graph_pass()
def attend_in_place(graph: Graph, context: PassContext) -> Graph:
    """Let attention read heads that lie side by side, without transposes.

    It applies where Q, K and V are reshaped from (batch, rows, heads * elements), and the result is reshaped back.
    """
    if not Reader.has(graph, ATTENTION):
        return graph
    reader = Reader(graph)
    for node in reader.nodes(ATTENTION):
        op: Any = node.op
        sources = [_side_by_side(reader, i) for i in node.inputs[:3]]
        turned = reader.only_reader(node.outputs[0], "Transpose")
        flat = turned and reader.only_reader(turned.outputs[0], *RESHAPES)
        if op.heads or None in sources or turned is None or flat is None:
            continue
        batch, heads, rows, width = reader.dims(node.outputs[0])
        whole = reader.dims(flat.outputs[0]) == (batch, rows, heads * width)
        if whole and order_of(reader.graph, turned) == HEADS_APART:
            inputs = (*(s for s in sources if s is not None), *node.inputs[3:])
            reader.put(flat, replace(node, op=replace(op, heads=heads), inputs=inputs, outputs=flat.outputs))
    return reader.finish()


def _side_by_side(reader: Reader, value: str) -> str | None:
    """Return the (batch, rows, heads * elements) value that was reshaped to `value`, (batch, heads, rows, elements)."""
    turned = reader.maker(value, "Transpose")
    if turned is None or order_of(reader.graph, turned) != HEADS_APART:
        return None
    apart = reader.maker(turned.inputs[0], *RESHAPES)
    if apart is None:
        return None
    batch, rows, heads, each = reader.dims(apart.outputs[0])
    return apart.inputs[0] if reader.dims(apart.inputs[0]) == (batch, rows, heads * each) else None


# -- one product for three -------------------------------------------------------------------------------


@graph_pass()
def join_projections(graph: Graph, context: PassContext) -> Graph:
    """Compute an attention's Q, K and V by one matrix product where three products read one value.

    Weights and biases must be constants. Their columns are joined side by side, within the budget.
    """
    if not Reader.has(graph, ATTENTION):
        return graph
    reader, budget = Reader(graph), context.budget
    for node in reader.nodes(ATTENTION):
        op: Any = node.op
        if not op.heads or op.packed:
            continue
        parts = [p for i in node.inputs[:3] if (p := _projection(reader, i)) is not None]
        nbytes = sum(graph.constants[p.weight].nbytes for p in parts)
        if not budget.allows((), nbytes):
            continue
        began = budget.clock()
        made = _join(reader, node, parts)
        budget.spend(nbytes if made else 0, began)
        if made is not None:
            packed = replace(op, packed=1)
            reader.put(node, *made, replace(node, op=packed, inputs=(made[-1].outputs[0], *node.inputs[3:])))
    return reader.finish()


@dataclass(frozen=True, slots=True)
class _Projection:
    """A value x times a constant matrix, plus a bias on each row ("": none)."""

    x: str
    weight: str
    bias: str


def _projection(reader: Reader, value: str) -> _Projection | None:
    bias = ""
    total = reader.maker(value, "Add")
    if total is not None:
        bias = next((i for i in total.inputs if i in reader.graph.constants), "")
        value = reader.other(total, bias) if reader.is_read_once(value) else ""
    product = reader.maker(value, "MatMul")
    if product is None or not reader.is_read_once(value) or (total is not None and not bias):
        return None
    x, weight = product.inputs
    columns: Shape = reader.dims(value)[-1:]
    fits = weight in reader.graph.constants and len(reader.dims(weight)) == 2
    return _Projection(x, weight, bias) if fits and (not bias or reader.dims(bias) == columns) else None


def _join(reader: Reader, node: Node, parts: list[_Projection]) -> tuple[Node, ...] | None:
    """Return the node of the joint product, and that of the sum with the biases if there are any."""
    shapes = {reader.dims(p.weight) for p in parts}
    same = len({p.x for p in parts}) == len(shapes) == len({bool(p.bias) for p in parts}) == 1
    if len(parts) != 3 or not same:
        return None
    x, dtype = parts[0].x, reader.graph.specs[parts[0].x].dtype
    shape = (*reader.dims(x)[:-1], 3 * shapes.pop()[1])

    def value(tag: str) -> str:
        name = reader.names.fresh(f"{node.name}.{tag}")
        reader.graph.specs[name] = TensorSpec(shape, dtype)
        return name

    def constant(tag: str, sources: list[str]) -> str:
        array = np.concatenate([reader.graph.constants[s] for s in sources], axis=-1)
        name = reader.names.fresh(f"{node.name}.{tag}")
        reader.graph.constants[name] = array
        reader.graph.specs[name] = TensorSpec(array.shape, dtype)
        return name

    product = value("qkv")
    nodes = (Node(product, make("MatMul"), (x, constant("weights", [p.weight for p in parts])), (product,)),)
    if not parts[0].bias:
        return nodes
    total = value("qkv_biased")
    return (*nodes, Node(total, make("Add"), (product, constant("biases", [p.bias for p in parts])), (total,)))
