"""ONNX's Attention (opsets 23 to 25), and what it shares with the attentions of ONNX Runtime.

The core is `weft::Attention`. Heads that share keys and values need no copies: their queries are stacked, as if that
one head had more queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from weft.core.graph.composite import Body, Composite
from weft.core.graph.dtypes import DType
from weft.core.graph.op import Op, standard_op
from weft.ops.attention import heads_apart, heads_joined
from weft.ops.elementwise import FLOATS, misfit

RAW, CAPPED, MASKED, SHARES = range(4)
"""What the fourth output shows: products, those with a soft cap, with the mask, or what the softmax makes of them."""


@dataclass
class Masks:
    """What is added to scores: one constant for all that is known beforehand, and values computed at run time."""

    make: Body
    dtype: DType
    fixed: str = ""
    computed: list[str] = field(default_factory=list)

    def show_near(self, distance: str, kind: str, bound: int) -> None:
        """Show only the keys whose distance, a constant that broadcasts to the scores, is `kind` ("Less") a bound."""
        added = self._added(self.make.add(kind, distance, self.make.integer(bound)))
        self.fixed = self.make.add("Min", self.fixed, added) if self.fixed else added

    def show(self, allowed: str) -> None:
        """Hide the keys where a value computed at run time is false."""
        self.computed.append(self._added(allowed))

    def _added(self, allowed: str) -> str:
        make, kind = self.make, self.dtype.numpy
        zero, hidden = make.constant(np.zeros((), kind)), make.constant(np.asarray(-np.inf, kind))
        return make.add("Where", allowed, zero, hidden)

    def add(self, mask: str) -> None:
        """Add a mask: of booleans that say which keys are seen, or of numbers."""
        if self.make.dtype(mask) is DType.BOOL:
            self.show(mask)
        else:
            self.computed.append(self.make.cast(mask, self.dtype))

    def total(self) -> str:
        """Return the sum of all, "" if there are none."""
        parts = [*self.computed, *filter(None, [self.fixed])]
        whole = parts[0] if parts else ""
        for part in parts[1:]:
            whole = self.make.add("Add", whole, part)
        return whole


def attend(
    make: Body, q: str, k: str, v: str, mask: str, *,
    scale: float, softcap: float = 0.0, shown: int | None = None, sink: str = "",
) -> tuple[str, str]:
    """Return the attention of heads apart, and the scores as they are `shown`, if at all.

    q is (batch, heads, queries, depth), k and v (batch, fewer heads, keys, elements), the mask "" or what
    broadcasts to (batch, heads, queries, keys). `sink` has a score for each head that stands for no key and takes its
    share all the same.
    """
    batch, heads, queries, depth = make.dims(q)
    groups, keys, width = (*make.dims(k)[1:3], make.dims(v)[3])
    each = heads // max(groups, 1)
    if shown is None and not sink:
        if each > 1:
            q = make.reshape(q, batch, groups, each * queries, depth)
            mask = _grouped(make, mask, heads, groups, queries)
        inputs = (q, k, v, mask) if mask else (q, k, v)
        out = make.add("weft::Attention", *inputs, scale=scale, softcap=softcap, zero_hidden=int(bool(mask)))
        return make.reshape(out, batch, heads, queries, width), ""
    kind = make.dtype(q)
    wide = DType.FLOAT32 if kind.itemsize == 2 else kind
    q, k, v = (make.cast(each_value, wide) for each_value in (q, k, v))
    mask = make.cast(mask, wide) if mask else ""
    rows = make.reshape(make.add("Mul", q, make.number(scale, q)), batch, groups, each * queries, depth)
    scores = make.add("MatMul", rows, make.add("Transpose", k, perm=(0, 1, 3, 2)))
    scores = make.reshape(scores, batch, heads, queries, keys)
    stages = {RAW: scores}
    if softcap:
        turned = make.add("Tanh", make.add("Div", scores, make.number(softcap, scores)))
        scores = make.add("Mul", turned, make.number(softcap, scores))
    stages[CAPPED] = scores
    if mask:
        # What hides a key does so even where the score is NaN.
        hidden = make.add("Equal", mask, make.number(-np.inf, mask))
        scores = make.add("Where", hidden, mask, make.add("Add", scores, mask))
    stages[MASKED] = scores
    if sink:
        each_head = make.reshape(make.cast(sink, wide), 1, heads, 1, 1)
        column = make.add("Expand", each_head, make.ints(batch, heads, queries, 1))
        scores = make.add("Concat", scores, column, axis=3)
    shares = make.add("Softmax", scores, axis=-1)
    if sink:
        shares = make.part(shares, 3, 0, keys)
    elif mask:
        most = make.add("ReduceMax", scores, make.ints(3), keepdims=1)
        empty = make.add("Equal", most, make.number(-np.inf, most))
        shares = make.add("Where", empty, make.number(0, shares), shares)
    stages[SHARES] = shares
    out = make.add("MatMul", make.reshape(shares, batch, groups, each * queries, keys), v)
    out = make.cast(make.reshape(out, batch, heads, queries, width), kind)
    return out, make.cast(stages[shown], kind) if shown is not None else ""


def _grouped(make: Body, mask: str, heads: int, groups: int, queries: int) -> str:
    """Return a mask for (batch, groups, heads of a group * queries, keys)."""
    if not mask:
        return ""
    shape = (1,) * (4 - len(make.dims(mask))) + make.dims(mask)
    batch, own, rows, keys = shape
    mask = make.reshape(mask, *shape)
    if own == 1 and rows == 1:
        return mask
    each = heads // max(groups, 1)
    if own == 1:
        wide = make.add("Expand", mask, make.ints(batch, each, rows, keys))
        return make.reshape(wide, batch, 1, each * rows, keys)
    wide = make.add("Expand", mask, make.ints(batch, own, queries, keys)) if rows == 1 else mask
    return make.reshape(wide, batch, groups, each * queries, keys)


def check_heads(op: Op, heads: int, groups: int) -> None:
    """Raise ModelError unless the heads of queries are a multiple of those of keys."""
    if heads < 1 or groups < 1 or heads % groups:
        raise misfit(op, f"{heads} heads of queries do not share {groups} heads of keys and values evenly")


@standard_op(type="Attention", op_class="reduction", most_inputs=7, flags=("is_causal",))
class OnnxAttention(Composite):
    """Attention of heads; inputs Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen.

    Q is (batch, heads, queries, depth) or (batch, queries, heads * depth), K and V likewise, with heads that several
    of Q's may share. Outputs Y, present_key, present_value, and the scores as `qk_matmul_output_mode` says.
    """

    is_causal: int = 0
    kv_num_heads: int = 0
    left_window_size: int = -1
    q_num_heads: int = 0
    qk_matmul_output_mode: int = RAW
    right_window_size: int = -1
    scale: float | None = None
    softcap: float = 0.0
    softmax_precision: int | None = None
    """Sums and softmax are computed in float32, or in float64 for such inputs, whatever is asked for."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Bring heads apart, append to the past, add up what hides keys, and attend."""
        q, k, v, mask, past_k, past_v, lengths = (*inputs, *[""] * 7)[:7]
        self._check(make, q, k, v, past_k, past_v)
        flat = len(make.dims(q)) == 3
        heads, groups = (self.q_num_heads, self.kv_num_heads) if flat else (make.dims(q)[1], make.dims(k)[1])
        check_heads(self, heads, groups)
        shown = self.qk_matmul_output_mode if self.outputs > 3 else None
        whole = flat and heads == groups and not past_k and shown is None
        sides = (q, k, make.cast(v, make.dtype(q)))
        if flat:
            q, k, v = heads_apart(make, q, heads), heads_apart(make, k, groups), heads_apart(make, v, groups)
        if past_k:
            k, v = make.add("Concat", past_k, k, axis=2), make.add("Concat", past_v, v, axis=2)
        batch, _, _, depth = make.dims(q)
        if make.dims(k)[:2] != (batch, groups) or make.dims(k)[3] != depth or make.dims(v)[:3] != make.dims(k)[:3]:
            shapes = ", ".join(str(make.dims(value)) for value in (q, k, v))
            raise misfit(self, f"Q, K and V of {shapes} do not belong together")
        total = self._masks(make, q, k, mask, make.dims(past_k)[2] if past_k else 0, lengths).total()
        scale = 1 / sqrt(max(depth, 1)) if self.scale is None else self.scale
        if whole:  # heads are read where they lie; what takes them apart is then not needed
            given = (*sides, total) if total else sides
            y = make.add(
                "weft::Attention", *given,
                heads=heads, scale=scale, softcap=self.softcap, zero_hidden=int(bool(total)),
            )
            scores = ""
        else:
            narrow = make.cast(v, make.dtype(q))
            y, scores = attend(make, q, k, narrow, total, scale=scale, softcap=self.softcap, shown=shown)
            y = heads_joined(make, y) if flat else y
        return [y, k, v, scores]

    def _check(self, make: Body, q: str, k: str, v: str, past_k: str, past_v: str) -> None:
        shapes = [make.dims(value) for value in (q, k, v)]
        for sides in ((q, k, past_k), (v, past_v)):
            kinds = [make.dtype(value) for value in sides if value]
            if kinds[0] not in FLOATS or len({*kinds}) > 1:
                raise misfit(self, f"Q and K, and V, must be floats of one type, not {[t.value for t in kinds]}")
        if len({len(shape) for shape in shapes}) > 1 or len(shapes[0]) not in (3, 4):
            raise misfit(self, f"Q, K and V must have rank 3 or 4, not {shapes}")
        if len(shapes[0]) == 3:
            check_heads(self, self.q_num_heads, self.kv_num_heads)
            if any(s[2] % h for s, h in zip(shapes, (self.q_num_heads, *[self.kv_num_heads] * 2), strict=True)):
                raise misfit(self, f"{shapes} are not heads side by side")
        if bool(past_k) != bool(past_v):
            raise misfit(self, "past_key and past_value come together")
        if not 0 <= self.qk_matmul_output_mode <= SHARES or min(self.left_window_size, self.right_window_size) < -1:
            raise misfit(self, "qk_matmul_output_mode is 0 to 3, and windows are -1 or more")

    def _masks(self, make: Body, q: str, k: str, mask: str, past: int, lengths: str) -> Masks:
        (batch, _, queries, _), keys = make.dims(q), make.dims(k)[2]
        masks = Masks(make, make.dtype(q))
        if mask:
            missing = keys - make.dims(mask)[-1] if make.dims(mask)[-1] > 1 or keys == 1 else 0
            if missing:
                alone = Masks(make, masks.dtype)
                alone.add(mask)
                pads = make.ints(*[0] * (2 * len(make.dims(mask)) - 1), missing)
                mask = make.add("Pad", alone.total(), pads, make.number(-np.inf, q))
            masks.add(mask)
        bounds = [(self.right_window_size, 1), (self.left_window_size, -1)]
        bounds = [(size, side) for size, side in bounds if size >= 0] + [(0, 1)] * self.is_causal
        near = distances(make, queries, keys) if bounds else ""
        for size, side in bounds:
            within = "LessOrEqual" if side > 0 else "GreaterOrEqual"
            if not lengths:
                masks.show_near(near, within, past + side * size)
                continue
            # The last query stands at the last key of its image: key - query + queries <= length + size.
            length = make.reshape(make.cast(lengths, DType.INT64), batch, 1, 1, 1)
            least = make.add("Add", near, make.integer(queries - side * size))
            masks.show(make.add(within, make.reshape(least, 1, 1, queries, keys), length))
        if lengths:
            length = make.reshape(make.cast(lengths, DType.INT64), batch, 1, 1, 1)
            masks.show(make.add("Less", make.counting(keys, 1, 1, 1, keys), length))
        return masks


def distances(make: Body, queries: int, keys: int) -> str:
    """Return the constant number of each key, less that of each query: (queries, keys) of int64."""
    return make.add("Sub", make.counting(keys, 1, keys), make.counting(queries, queries, 1))


__all__ = ["Masks", "OnnxAttention", "attend", "check_heads", "distances"]
