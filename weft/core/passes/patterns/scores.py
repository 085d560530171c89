"""Read the scores of an attention, what its softmax reads, back to Q, K, a cap and masks, and place the masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.masks import LOWEST
from weft.core.graph.symbolic import has_open_size, is_symbolic
from weft.core.graph.tensor import TensorSpec
from weft.core.passes.manager import PassContext
from weft.core.passes.moves import RESHAPES
from weft.core.passes.patterns.operands import (
    Operand,
    keeps_rows,
    moves_within,
    ordered,
    read_einsum,
    shares_heads,
    times_factor,
    transposed,
    turned_back,
    turned_over,
    unscaled,
)
from weft.core.passes.reader import Reader
from weft.core.passes.undo_reshapes import broadcast_reshape

LONGEST = 16
"""Exporters write no more moves, factors and masks between the product and the softmax."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """What is added to scores of the shape `scores`, or bools that tell where a number is in place of them."""

    value: str
    scores: Shape
    number: str = ""
    hides: bool = True
    """Which of the bools have the number."""


@dataclass(slots=True)
class Scores:
    """Scores as scale * q k^T plus masks; `count` nodes compute them, from the product of the `operands` on.

    An Einsum counts as a product and its moves. With a `softcap`, masks are added to
    softcap * tanh(scale * q k^T / softcap).
    """

    q: Operand
    k: Operand
    operands: tuple[str, ...]
    count: int
    leads: list[Shape]
    """The axes before the last two at each sum with a mask, the last one first, and at the product."""
    softcap: float = 0.0
    added: list[_Mask] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    """The sum of all masks, once `place` was called and if there are any."""

    @property
    def are_replaced(self) -> bool:
        """Tell whether masks have numbers in place of scores."""
        return any(mask.number for mask in self.added)

    @property
    def scale(self) -> float:
        """Return the number by which scores are multiplied."""
        return self.q.scale * self.k.scale

    def times(self, number: float) -> Scores:
        """Return scores without masks times a number: a cap grows with the scores."""
        return replace(self, q=self.q.times(number), softcap=self.softcap * number)

    def place(self, reader: Reader, leads: list[Shape], softmax: str, context: PassContext) -> Shape | None:
        """Return one or two axes for heads to which all masks can be broadcast, the first such of `leads`, or None.

        Axes are joined where there are more than two. Masks are reshaped, and added up if they are constants, within
        the budget: else the softmax of that name stays.
        """
        masks = _Masks(reader, softmax, context)
        tried: list[Shape] = []
        for each in sorted((_joined(lead) for lead in leads if lead), key=len, reverse=True):
            if each in tried:
                continue
            tried.append(each)
            rows = self.added[0].scores[-2:] if self.added else ()
            total: list[str] = []
            for k, mask in enumerate(self.added):
                fitting = masks.fitting(mask, (*each, *rows))
                replaced = any(before.number for before in self.added[:k])
                total = [masks.added(total, replaced, mask, fitting) if fitting and all(total) else ""]
            if all(total):
                self.masks = total
                return each
        return None


def _joined(lead: Shape) -> Shape:
    """Return axes of which the first are joined if there are more than two."""
    return lead if len(lead) <= 2 else (prod(lead[:-1]), lead[-1])


def read_scores(reader: Reader, value: str, masked: bool = True, depth: int = LONGEST) -> Scores | None:
    """Return the parts of the scores, if nothing else reads an intermediate value.

    Factors come before masks, and so does a cap, b * tanh(scores / a). Any a and b will do: it is the cap b of scores
    that are b / a times as large. All masks but the first must be constants, and so must what tells where the lowest
    number is in place of scores.
    """
    node = reader.maker(value, "MatMul", "Einsum", "Add", "Where", "Mul", "Div", "Tanh", *RESHAPES)
    if node is None or not reader.is_read_once(value) or not depth:
        return None
    if node.op.type in ("MatMul", "Einsum"):
        return _product(reader, node)
    if node.op.type in ("Add", "Where"):
        return _masked(reader, node, depth) if masked else None
    if node.op.type in RESHAPES:
        found = read_scores(reader, node.inputs[0], masked, depth - 1) if keeps_rows(reader, node) else None
        return found and replace(found, count=found.count + 1)
    if node.op.type == "Tanh":
        found = read_scores(reader, node.inputs[0], False, depth - 1)
        return None if found is None or found.softcap else replace(found, count=found.count + 1, softcap=1.0)
    number, inner = ([*reader.scalings(value)][:2])[-1]
    factor = _factor(reader, node) if inner == value else None
    inner = inner if factor is None else factor.inputs[0]
    found = read_scores(reader, inner, False, depth - 1) if inner != value else None
    if found is None or (factor is not None and reader.dims(inner)[:-2] != found.leads[-1]):
        return None
    if factor is None:
        return replace(found.times(number), count=found.count + 1)
    if found.softcap:  # heads or rows would have caps of their own
        return None
    return replace(found, q=times_factor(reader, found.q, factor), count=found.count + 1)


def _masked(reader: Reader, node: Node, depth: int) -> Scores | None:
    """Return the parts of scores and a mask."""
    dims = reader.dims(node.outputs[0])
    for rest, mask in _masks(reader, node):
        if reader.dims(rest) != dims:
            continue
        found = read_scores(reader, rest, mask.value in reader.graph.constants, depth - 1)
        if found is not None:
            added = [*found.added, mask]
            return replace(found, count=found.count + 1, leads=[dims[:-2], *found.leads], added=added)
    return None


def _masks(reader: Reader, node: Node) -> Iterator[tuple[str, _Mask]]:
    """Yield what an Add or a Where may mask, with the mask."""
    dims = reader.dims(node.outputs[0])
    if node.op.type == "Add":
        first, second = node.inputs
        yield first, _Mask(second, dims)
        yield second, _Mask(first, dims)
        return
    bools, *choices = node.inputs
    for hides, (low, rest) in ((True, choices), (False, choices[::-1])):
        number = reader.number(low)
        if number is not None and number <= LOWEST and bools in reader.graph.constants:
            yield rest, _Mask(bools, dims, low, hides)


# -- masks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Masks:
    """Makes constants of masks, within the budget; without that, the softmax of that name stays."""

    reader: Reader
    softmax: str
    context: PassContext

    def fitting(self, mask: _Mask, wanted: Shape) -> str:
        """Return a mask for scores of another shape; "" if only a constant, or a smaller one, can be made to fit."""
        if mask.scores == wanted:
            return mask.value
        reader = self.reader
        dims = reader.dims(mask.value)
        own = len(dims) - next((axis for axis, size in enumerate(dims) if size != 1), len(dims))
        same = mask.scores[-own:] == wanted[-own:] and own <= min(len(mask.scores), len(wanted))
        if same and len(dims) <= len(wanted):
            return mask.value
        constant = reader.graph.constants.get(mask.value)
        if constant is None or is_symbolic(constant) or has_open_size((*mask.scores, *wanted)):
            return ""
        began = self.context.budget.clock()
        if not self.context.allows(self.softmax, prod(wanted) * constant.itemsize, "its mask in another shape"):
            return ""
        made = broadcast_reshape(constant, mask.scores, wanted)
        return "" if made is None else self._constant(f"{mask.value}.apart", made, mask.value, began)

    def added(self, before: list[str], replaced: bool, mask: _Mask, value: str) -> str:
        """Return the masks before with another, whose value fits.

        "" if one of several is no constant, or it is too large. So it is if numbers that are added are as low as those
        in place of scores, of which there are some before if `replaced` says so: one mask would not tell them apart.
        Layers share what is made of the same.
        """
        if not before and not mask.number:
            return value
        constants, computed = self.reader.graph.constants, self.reader.computed
        parts = [*before, value]
        if any(each not in constants or is_symbolic(constants[each]) for each in parts):
            return ""
        key, like = (*parts, mask.number, mask.hides), mask.number or value
        if key in computed:
            return computed[key]
        began, last = self.context.budget.clock(), constants[value]
        total = constants[before[0]] if before else np.zeros((), constants[like].dtype)
        nbytes = prod(np.broadcast_shapes(total.shape, last.shape)) * total.itemsize
        if not self.context.allows(self.softmax, nbytes, "the sum of its masks"):
            return ""
        with np.errstate(over="ignore"):
            low = constants[mask.number].reshape(()) if mask.number else None
            made = total + last if low is None else np.where(last == mask.hides, low, total)
        in_place = np.zeros(made.shape, bool)
        if replaced:
            in_place |= total <= LOWEST
        if low is not None:
            in_place |= last == mask.hides
        mixed = (replaced or low is not None) and not np.array_equal(made <= LOWEST, in_place)
        computed[key] = "" if mixed else self._constant(f"{parts[0]}.masks", made, like, began)
        return computed[key]

    def _constant(self, name: str, array: Array, like: str, began: float) -> str:
        """Add a constant of the type of another, and return the name that it got."""
        graph = self.reader.graph
        name = self.reader.names.fresh(name)
        graph.constants[name] = array
        graph.specs[name] = TensorSpec(array.shape, graph.specs[like].dtype)
        self.context.budget.spend(array.nbytes, began)
        return name


# -- products --------------------------------------------------------------------------------------------


def _product(reader: Reader, product: Node) -> Scores | None:
    """Return the parts of a product of queries and keys."""
    summed, count = read_einsum(reader, product), 1
    if summed is not None:
        (q, order), (k, order_k) = summed
        count += moves_within(summed)
        queries, keys = (ordered(reader, value, each) for value, each in ((q, order), (k, order_k)))
    elif product.op.type == "MatMul":
        q, k = product.inputs
        scale, turned = reader.scaled(k)
        lead = reader.dims(turned)[:-2]
        if not lead or not shares_heads(reader.dims(q)[:-2], lead):
            return None
        # Keys that are columns already, as those of images are, become rows.
        found = turned_back(reader, turned) or transposed(reader, turned, turned, turned_over(len(lead) + 2))
        queries, keys = unscaled(reader, q), found.with_lead(reader, lead)
        if not keys.nodes:
            keys = unscaled(reader, keys.value).times(keys.scale)
        keys = keys.times(scale)
    else:
        return None
    return Scores(queries, keys, (q, k), count, [reader.dims(product.outputs[0])[:-2]])


def _factor(reader: Reader, node: Node) -> Node | None:
    """Return a product with a constant that is the same for all keys, with the constant as its last operand."""
    inner, factor = node.inputs
    if node.op.type == "Mul" and inner in reader.graph.constants:
        inner, factor = factor, inner
    array = reader.graph.constants.get(factor)
    if array is None or is_symbolic(array) or not array.ndim or reader.dims(inner) != reader.dims(node.outputs[0]):
        return None
    fits = array.shape[-1] == 1 and np.all(np.isfinite(array) & (array != 0))
    return replace(node, inputs=(inner, factor)) if fits else None
