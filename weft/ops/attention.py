"""Scaled dot-product attention as one op; the passes in `weft.core.passes.patterns` build it from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.masks import LOWEST_HALF, replaces_from
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.ops.elementwise import FLOATS, broadcast, check_type, misfit, take_inputs, widen


@dataclass(frozen=True, slots=True)
class Extents:
    """The sizes of an attention: `queries` rows and `keys` rows a head, of `depth` and `width` elements.

    `lead` are the axes before these two in the scores: (batch, heads), or one axis. So many heads of queries that
    follow each other share one of keys and values as `shared` tells.
    """

    lead: Shape
    queries: int
    keys: int
    depth: int
    width: int
    shared: int = 1

    @property
    def scores(self) -> Shape:
        """Return the shape to which a mask is broadcast."""
        return (*self.lead, self.queries, self.keys)


@standard_op(
    type="weft::Attention", op_class="reduction",
    flags=("packed", "zero_hidden", "zero_nan", "lowest_hides", "low_replaces"),
)
class Attention(Op):
    """Compute softmax(scale * Q K^T + mask) V for every head; the mask is optional.

    With heads = 0, Q is (lead..., s, d), K (lead..., t, d), V (lead..., t, e) and the result
    (lead..., s, e), where `lead` are one or two axes. Else heads lie side by side: Q is
    (batch, s, heads * d), K (batch, t, heads * d), V (batch, t, heads * e), the result
    (batch, s, heads * e). With `packed` Q, K and V are one input, side by side along its last axis. K and V
    may have fewer heads than Q, each for as many of Q's that follow each other; then `lead` is Q's. The
    mask is broadcast to (lead..., s, t), or (batch, heads, s, t). A query from which the mask hides every key
    yields NaN; with `zero_hidden` it yields zeros, and what hides a key does so even if the score is NaN.
    With `zero_nan` a query whose softmax is NaN for any reason yields zeros. With `lowest_hides` the lowest number
    of a float16 mask takes the place of the score, of which the lowest float32 leaves nothing that it is added to.
    With `low_replaces` numbers of a mask of -1e30 or less, in float16 its lowest number or less, take the place of any
    score, an infinite one too: they are added to none.
    A `softcap` keeps scores between two numbers before the mask is added: they are softcap * tanh(score / softcap).
    """

    scale: float = 1.0
    heads: int = 0
    packed: int = 0
    zero_hidden: int = 0
    zero_nan: int = 0
    lowest_hides: int = 0
    low_replaces: int = 0
    softcap: float = 0.0
    """Scores are c * tanh(score / c); 0: as they are."""

    def extents(self, shapes: Sequence[Shape]) -> Extents:
        """Return the sizes for the shapes of all inputs except the mask; ModelError if they do not fit."""
        parts = self._parts(shapes)
        q, k, v = self._split(parts) if self.heads else parts
        fits = len(q) in (3, 4) and len(q) == len(k) == len(v) and k[:-2] == v[:-2] and q[0] == k[0]
        if not fits or q[-1] != k[-1] or k[-2] != v[-2] or not k[-1] or not v[-1] or not _shares(q, k):
            raise misfit(self, f"Q, K and V of shapes {q}, {k} and {v} do not belong together")
        return Extents(q[:-2], q[-2], k[-2], q[-1], v[-1], q[1] // k[1] if q[:-2] != k[:-2] else 1)

    def _parts(self, shapes: Sequence[Shape]) -> Sequence[Shape]:
        """Return the shapes of Q, K and V."""
        if not self.packed:
            return shapes
        (whole,) = shapes
        if not whole or whole[-1] % 3:
            raise misfit(self, f"the last axis of {whole} is not Q, K and V side by side")
        return [(*whole[:-1], whole[-1] // 3)] * 3

    def _split(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return (batch, heads, rows, elements of a head) of Q, K and V."""
        q, k, _ = shapes
        each = q[-1] // self.heads if len(q) == 3 else 0
        groups = k[-1] // each if each and len(k) == 3 else self.heads
        counts = (self.heads, groups, groups)
        for shape, heads in zip(shapes, counts, strict=True):
            if len(shape) != 3 or not heads or shape[2] % heads:
                raise misfit(self, f"{shape} is not (batch, rows, {heads or self.heads} heads)")
        return [(s[0], heads, s[1], s[2] // heads) for s, heads in zip(shapes, counts, strict=True)]

    def count(self) -> int:
        """Return the number of inputs without the mask."""
        return 1 if self.packed else 3

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        if self.packed and not self.heads:
            raise misfit(self, "packed inputs need a number of heads")
        *given, mask = take_inputs(self, inputs, self.count(), 1)
        specs = [s for s in given if s is not None]
        check_type(self, specs[0], FLOATS)
        if any(s.dtype is not specs[0].dtype for s in (*specs, mask) if s is not None):
            raise misfit(self, f"inputs must have one type, got {', '.join(map(str, inputs))}")
        each = self.extents([s.dims for s in specs])
        if mask is not None and broadcast(self, [each.scores, mask.dims]) != each.scores:
            raise misfit(self, f"a mask of {mask} does not broadcast to {each.scores}")
        if self.heads:
            shape: Shape = (each.lead[0], each.queries, self.heads * each.width)
        else:
            shape = (*each.lead, each.queries, each.width)
        return (TensorSpec(shape, specs[0].dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        arrays = [widen(np.asarray(a)) for a in inputs[: self.count()]]
        mask = inputs[self.count()] if len(inputs) > self.count() else None
        dtype = np.asarray(inputs[0]).dtype
        if self.packed:
            arrays = np.split(arrays[0], 3, axis=-1)
        shared = self.extents([a.shape for a in inputs[: self.count()] if a is not None]).shared
        if self.heads:
            shapes = self._split([a.shape for a in arrays])
            arrays = [
                a.reshape(batch, rows, heads, width).swapaxes(1, 2)
                for a, (batch, heads, rows, width) in zip(arrays, shapes, strict=True)
            ]
        q, k, v = arrays
        if shared > 1:
            k, v = np.repeat(k, shared, 1), np.repeat(v, shared, 1)
        with np.errstate(all="ignore"):
            scores = np.matmul(q * q.dtype.type(self.scale), np.ascontiguousarray(k.swapaxes(-1, -2)))
            if self.softcap:
                scores /= self.softcap
                np.tanh(scores, out=scores)
                scores *= self.softcap
            if mask is not None:
                scores = self._masked(scores, np.asarray(mask))
            largest = scores.max(-1, keepdims=True, initial=-np.inf)
            scores -= largest  # in place: scores are large, and fresh memory takes longer than the sums
            shares = np.exp(scores, out=scores)
            shares /= shares.sum(-1, keepdims=True)
            if self.zero_hidden:
                shares = np.where(np.isneginf(largest), np.zeros_like(shares), shares)
            if self.zero_nan:
                shares[np.isnan(shares)] = 0
            out = np.matmul(shares, v)
        if self.heads:
            out = out.swapaxes(1, 2).reshape(out.shape[0], out.shape[2], self.heads * out.shape[3])
        return np.ascontiguousarray(out).astype(dtype, copy=False)

    def _masked(self, scores: Array, mask: Array) -> Array:
        """Add a mask to the scores, or put it in their place where it alone counts; return them."""
        wide = widen(mask)
        alone: Array = np.isneginf(mask) if self.zero_hidden else np.zeros((), bool)
        if self.lowest_hides and mask.dtype == np.float16:
            alone = alone | (mask == LOWEST_HALF)
        if self.low_replaces:
            alone = alone | (mask <= replaces_from(DType.of(mask.dtype)))
        scores += wide
        if alone.any():
            np.copyto(scores, wide, where=alone)
        return scores

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return the operations of the two products, two for a multiply-add; the softmax is not counted."""
        each = self.extents([shape for shape in inputs[: self.count()] if shape is not None])
        return 2 * prod(each.scores) * (each.depth + each.width)


def _shares(q: Shape, k: Shape) -> bool:
    """Tell whether each head of K is for one or several heads of Q."""
    return q[:-2] == k[:-2] or bool(len(q) == 4 and k[1] and q[1] % k[1] == 0)


@decomposition("weft::Attention")
def _attention(op: Attention, make: Body, node: Node) -> Sequence[str]:
    count, heads = (1 if op.packed else 3), op.heads
    given, mask = list(node.inputs[:count]), [i for i in node.inputs[count:] if i]
    if op.packed:
        given = list(make.split(given[0], *[make.dims(given[0])[-1] // 3] * 3))
    shared = op.extents([make.dims(value) for value in node.inputs[:count]]).shared
    if heads:
        groups = heads // shared
        given = [heads_apart(make, value, n) for value, n in zip(given, (heads, groups, groups), strict=True)]
    q, k, v = given
    if shared > 1:
        k, v = _repeated(make, k, shared), _repeated(make, v, shared)
    rank = len(make.dims(k))
    turned = make.add("Transpose", k, perm=(*range(rank - 2), rank - 1, rank - 2))
    scores = make.add("Mul", make.add("MatMul", q, turned), make.number(op.scale, q))
    if op.softcap:
        cap = make.number(op.softcap, q)
        scores = make.add("Mul", make.add("Tanh", make.add("Div", scores, cap)), cap)
    for each in mask:
        hidden = make.add("Equal", each, make.number(-np.inf, each)) if op.zero_hidden else ""
        if op.low_replaces:
            hidden = make.add("LessOrEqual", each, make.number(replaces_from(make.dtype(each)), each))
        scores = make.add("Add", scores, each)
        scores = make.add("Where", hidden, each, scores) if hidden else scores
    shares = make.add("Softmax", scores)
    if op.zero_hidden:
        axis = make.ints(len(make.dims(scores)) - 1)
        hidden = make.add("Equal", make.add("ReduceMax", scores, axis), make.number(-np.inf, q))
        shares = make.add("Where", hidden, make.number(0, q), shares)
    if op.zero_nan:
        shares = make.add("Where", make.add("IsNaN", shares), make.number(0, q), shares)
    mixed = make.add("MatMul", shares, v)
    return [heads_joined(make, mixed) if heads else mixed]


def heads_apart(make: Body, value: str, heads: int) -> str:
    """Return (batch, heads, rows, elements) of (batch, rows, heads * elements)."""
    batch, rows, width = make.dims(value)
    return make.add("Transpose", make.reshape(value, batch, rows, heads, width // heads), perm=(0, 2, 1, 3))


def heads_joined(make: Body, value: str) -> str:
    """Return (batch, rows, heads * elements) of (batch, heads, rows, elements)."""
    batch, heads, rows, width = make.dims(value)
    return make.reshape(make.add("Transpose", value, perm=(0, 2, 1, 3)), batch, rows, heads * width)


def _repeated(make: Body, value: str, count: int) -> str:
    """Return (batch, heads * count, rows, elements) of (batch, heads, rows, elements), each head so many times."""
    batch, heads, rows, width = make.dims(value)
    apart = make.reshape(value, batch, heads, 1, rows, width)
    wide = make.add("Expand", apart, make.ints(batch, heads, count, rows, width))
    return make.reshape(wide, batch, heads * count, rows, width)
