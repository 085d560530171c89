"""The attentions of ONNX Runtime (`com.microsoft`), which exporters of transformers and its optimiser write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import ClassVar

import numpy as np

from weft.core.graph.composite import Body, Composite, padded
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.op import OpClass, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.symbolic import integer
from weft.errors import ValueNeeded
from weft.ops.attention import heads_apart, heads_joined
from weft.ops.contrib_quantize import MatMulIntegerToFloat
from weft.ops.elementwise import FLOATS, misfit
from weft.ops.onnx_attention import Masks, attend, check_heads, distances

FILTER = -10000.0
"""What ONNX Runtime adds to the scores of keys that a padding mask hides, unless told otherwise."""


@op_dataclass
class _PaddedAttention(Composite):
    """What Attention and MultiHeadAttention share: padding masks, and queries that see no later keys."""

    op_class: ClassVar[OpClass] = "reduction"
    num_heads: int
    mask_filter_value: float = FILTER
    scale: float = 0.0
    unidirectional: int = 0

    def masks(self, make: Body, q: str, k: str, padding: str, bias: str, past: int) -> str:
        """Return what is added to the scores of heads apart, or ""."""
        (batch, _, queries, _), keys = make.dims(q), make.dims(k)[2]
        masks = Masks(make, make.dtype(q))
        if self.unidirectional:
            masks.show_near(distances(make, queries, keys), "LessOrEqual", past)
        if padding:
            masks.computed.append(self._padding(make, q, padding, batch, queries, keys))
        if bias:
            masks.add(bias)
        return masks.total()

    def _padding(self, make: Body, q: str, padding: str, batch: int, queries: int, keys: int) -> str:
        """Return a padding mask as numbers to add: from the number of keys, or from a number that is not 0 a key."""
        shape = make.dims(padding)
        zero, hidden = make.number(0, q), make.number(self.mask_filter_value, q)
        places = make.counting(keys, 1, 1, 1, keys)
        if shape in ((batch,), (2 * batch,)):
            wide = make.reshape(make.cast(padding, DType.INT64), shape[0] // max(batch, 1), batch, 1, 1, 1)
            ends = make.reshape(make.part(wide, 0, 0, 1), batch, 1, 1, 1)
            seen = make.add("Less", places, ends)
            if shape == (2 * batch,):
                starts = make.reshape(make.part(wide, 0, 1, 2), batch, 1, 1, 1)
                seen = make.add("And", seen, make.add("GreaterOrEqual", places, starts))
            return make.add("Where", seen, zero, hidden)
        if len(shape) == 2 and shape[0] == batch and shape[1] in (1, keys):
            padding = make.reshape(padding, batch, 1, 1, shape[1])
        elif shape == (batch, queries, keys):
            padding = make.reshape(padding, batch, 1, queries, keys)
        elif len(shape) == 4 and shape[:2] == (batch, 1) and shape[2] == shape[3] >= keys:
            rows = make.part(padding, 2, keys - queries, keys)
            padding = make.part(rows, 3, 0, keys)
        else:
            raise misfit(self, f"a padding mask of {shape} does not fit {batch} x {queries} queries and {keys} keys")
        seen = make.add("Greater", make.cast(padding, DType.INT64), make.constant(np.zeros((), np.int64)))
        return make.add("Where", seen, zero, hidden)

    def attended(self, make: Body, q: str, k: str, v: str, mask: str) -> str:
        """Return the result with heads side by side."""
        scale = self.scale or 1 / sqrt(max(make.dims(q)[3], 1))
        return heads_joined(make, attend(make, q, k, v, mask, scale=scale)[0])


@standard_op(type="com.microsoft::MultiHeadAttention", most_inputs=10, flags=("unidirectional",))
class MultiHeadAttention(_PaddedAttention):
    """Attention of heads; inputs query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value.

    query is (batch, rows, heads * depth) with key and value alike, or both (batch, heads, keys, elements), or key
    and value in one (batch, keys, heads, 2, depth), or all three in one (batch, rows, heads, 3, depth).
    Outputs output, present_key, present_value.
    """

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Bring heads apart, add the bias, append to the past, and attend."""
        query, key, value, bias, padding, added, past_k, past_v, *rest = padded(inputs, 10)
        if any(rest):
            raise misfit(self, "a past in a buffer of its own, and beams, are not supported: give it as past_key")
        if self.outputs > 3:
            raise misfit(self, "scores as an output are not supported")
        if make.dtype(query) not in FLOATS or self.num_heads < 1 or bool(past_k) != bool(past_v):
            raise misfit(self, "it needs floats, a number of heads, and both or none of past_key and past_value")
        q, k, v = self._apart(make, query, key, value, bias)
        past = 0
        if past_k:
            past = make.dims(past_k)[2]
            k, v = make.add("Concat", past_k, k, axis=2), make.add("Concat", past_v, v, axis=2)
        return [self.attended(make, q, k, v, self.masks(make, q, k, padding, added, past)), k, v]

    def _apart(self, make: Body, query: str, key: str, value: str, bias: str) -> list[str]:
        heads, shape = self.num_heads, make.dims(query)
        if len(shape) == 5 and not key:
            return self._packed(make, query, 3, bias)
        if len(shape) != 3 or shape[2] % heads or not key:
            raise misfit(self, f"a query of {shape} is not {heads} heads side by side")
        if len(make.dims(key)) == 5 and not value:
            if bias:
                raise misfit(self, "a bias goes with Q, K and V that lie apart")
            return [heads_apart(make, query, heads), *self._packed(make, key, 2, "")]
        if not value or len(make.dims(key)) not in (3, 4) or len(make.dims(value)) != len(make.dims(key)):
            raise misfit(self, f"a key of {make.dims(key)} and its value do not fit")
        apart = len(make.dims(key)) == 4
        if bias:
            widths = [shape[2], *(make.dims(t)[-1] * (heads if apart else 1) for t in (key, value))]
            query, *others = (
                make.add("Add", given, part) if not apart or given == query else given
                for given, part in zip((query, key, value), make.split(bias, *widths), strict=True)
            )
            key, value = others
        q = heads_apart(make, query, heads)
        return [q, key, value] if apart else [q, heads_apart(make, key, heads), heads_apart(make, value, heads)]

    def _packed(self, make: Body, whole: str, count: int, bias: str) -> list[str]:
        """Return the parts of (batch, rows, heads, count, depth) with heads apart."""
        batch, rows, heads, found, depth = make.dims(whole)
        if heads != self.num_heads or found != count:
            raise misfit(self, f"{make.dims(whole)} is not {count} times {self.num_heads} heads")
        order = make.add("Transpose", whole, perm=(3, 0, 2, 1, 4))
        parts = [make.reshape(make.part(order, 0, n, n + 1), batch, heads, rows, depth) for n in range(count)]
        if bias:
            each = [make.reshape(b, 1, heads, 1, depth) for b in make.split(bias, *[heads * depth] * count)]
            parts = [make.add("Add", part, b) for part, b in zip(parts, each, strict=True)]
        return parts


@op_dataclass
class _WeightedAttention(_PaddedAttention):
    """Attention with the product of its weights.

    The past and the second output, present, hold keys and values in one (2, batch, heads, rows, depth).
    """

    flags: ClassVar[tuple[str, ...]] = ("unidirectional", "do_rotary", "past_present_share_buffer")
    qkv_hidden_sizes: tuple[int, ...] = ()
    do_rotary: int = 0
    rotary_embedding_dim: int = 0
    past_present_share_buffer: int = 0

    def of_product(
        self, make: Body, whole: str, padding: str, past: str, added: str, shared: str = ""
    ) -> Sequence[str]:
        """Return the outputs for Q, K and V side by side: bring heads apart, append to the past, and attend."""
        if self.do_rotary or self.past_present_share_buffer or shared:
            raise misfit(self, "rotary embeddings, and a past in a buffer of its own, are not supported")
        total = make.dims(whole)[2]
        sizes = self.qkv_hidden_sizes or (total // 3,) * 3
        if len(sizes) != 3 or sum(sizes) != total or self.num_heads < 1 or any(s % self.num_heads for s in sizes):
            raise misfit(self, f"{total} columns are not Q, K and V of {self.num_heads} heads")
        q, k, v = (heads_apart(make, part, self.num_heads) for part in make.split(whole, *sizes))
        length = 0
        if past:
            length = make.dims(past)[3]
            k, v = (self._appended(make, past, side, new) for side, new in ((0, k), (1, v)))
        y = self.attended(make, q, k, v, self.masks(make, q, k, padding, added, length))
        if self.outputs < 2:
            return [y]
        sides = [make.reshape(side, 1, *make.dims(side)) for side in (k, v)]
        return [y, make.add("Concat", *sides, axis=0)]

    def _appended(self, make: Body, past: str, side: int, new: str) -> str:
        before = make.part(past, 0, side, side + 1)
        return make.add("Concat", make.reshape(before, *make.dims(past)[1:]), new, axis=2)


@standard_op(type="com.microsoft::Attention", most_inputs=7)
class ContribAttention(_WeightedAttention):
    """Attention with the product of its weights; inputs input, weights, bias, mask_index, past, attention_bias.

    The past and the second output, present, hold keys and values in one (2, batch, heads, rows, depth).
    """

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, weights, bias, padding, past, added, shared = padded(inputs, 7)
        if len(make.dims(x)) != 3 or make.dtype(x) not in FLOATS:
            raise misfit(self, f"the input must be (batch, rows, elements) of floats, not {make.dims(x)}")
        whole = make.add("MatMul", x, weights)
        whole = make.add("Add", whole, bias) if bias else whole
        return self.of_product(make, whole, padding, past, added, shared)


@standard_op(type="com.microsoft::QAttention", most_inputs=9, keeps_types=True)
class QAttention(_WeightedAttention):
    """Attention of quantised numbers with quantised weights; results are floats.

    Inputs input, weights, bias, the scales of both, mask_index, their zero points, past.
    """

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        x, weights, bias, x_scale, w_scale, padding, x_zero, w_zero, past = padded(inputs, 9)
        whole = make.add(MatMulIntegerToFloat.type, x, weights, x_scale, w_scale, x_zero, w_zero, bias)
        if len(make.dims(x)) != 3:
            raise misfit(self, f"the input must be (batch, rows, elements), not {make.dims(x)}")
        return self.of_product(make, whole, padding, past, "")


@standard_op(
    type="com.microsoft::GroupQueryAttention", op_class="reduction", most_inputs=12,
    flags=("do_rotary", "rotary_interleaved", "smooth_softmax", "shares_buffer"), shaped_by=(6,),
)
class GroupQueryAttention(Composite):
    """Causal attention of heads that share keys, with a cache; the form of most exported language models.

    Each image of the batch has seqlens_k + 1 rows of keys in all, the new ones last; what is behind them is 0. With
    `shares_buffer` the new rows are written into a past that has room for all, and what is behind them stays: finite
    numbers. With a `local_window_size` a query sees so many keys, its own included. Inputs query, key, value, past_key,
    past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache, position_ids, attention_bias, head_sink; without
    key and value, query has Q, K and V side by side. Outputs output, present_key, present_value.
    """

    num_heads: int
    kv_num_heads: int
    do_rotary: int = 0
    local_window_size: int = -1
    rotary_interleaved: int = 0
    scale: float = 0.0
    smooth_softmax: int = 0
    softcap: float = 0.0
    shares_buffer: int = 0

    def sharing(self) -> Composite:
        """Return the op that writes into its past, as onnxruntime's does where past and present share a buffer."""
        return replace(self, shares_buffer=1)

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Turn what is new by its positions, put it behind the past, and attend."""
        query, key, value, past_k, past_v, lengths, total, cos, sin, ids, bias, sink = padded(inputs, 12)
        heads, groups = self.num_heads, self.kv_num_heads
        check_heads(self, heads, groups)
        known = make.known(total)
        if known is None:
            raise ValueNeeded(
                "the shape of the caches depends on a value computed at run time",
                why="input 6 (total_sequence_length) is not a constant",
                index=6,
            )
        if known.size != 1:
            raise misfit(self, f"total_sequence_length is {make.dims(total)}; it must have one element")
        if make.dtype(query) not in FLOATS or len(make.dims(query)) != 3 or bool(past_k) != bool(past_v):
            raise misfit(self, "it needs a query of floats and rank 3, and both or none of past_key and past_value")
        if self.outputs > 3:
            raise misfit(self, "scores as an output are not supported")
        if not key:
            depth = make.dims(query)[2] // (heads + 2 * groups)
            query, key, value = make.split(query, heads * depth, groups * depth, groups * depth)
        q, k, v = heads_apart(make, query, heads), heads_apart(make, key, groups), heads_apart(make, value, groups)
        batch, _, rows, depth = make.dims(q)
        if make.dims(lengths) not in ((batch,), (batch, 1)):
            raise misfit(self, f"seqlens_k is {make.dims(lengths)}; it must be {(batch,)}")
        whole = integer(known.reshape(-1)[0])
        first = rows == whole  # a prompt: there is no past, whatever the buffers hold
        before = make.dims(past_k)[2] if past_k else 0
        keys = max(whole, before)
        # Rows of keys that come before the new ones, for each image: (batch, 1).
        if first:
            past = make.zeros(DType.INT64, batch, 1)
        else:
            ends = make.reshape(make.cast(lengths, DType.INT64), batch, 1)
            past = make.add("Add", ends, make.integer(1 - rows))
        steps = make.counting(rows, 1, rows)
        if self.do_rotary:
            places = ids or make.add("Add", past, steps)
            turned = 2 * make.dims(cos)[1]
            q, k = (
                make.add(
                    "RotaryEmbedding", each, cos, sin, places,
                    interleaved=self.rotary_interleaved, rotary_embedding_dim=turned if turned < depth else 0,
                )
                for each in (q, k)
            )
        if before or keys > rows:
            k, v = (self._cached(make, old, new, past, first, keys) for old, new in ((past_k, k), (past_v, v)))
        mask = self._mask(make, q, past, steps, bias, first, keys)
        scale = self.scale or 1 / sqrt(max(depth, 1))
        extra = sink or (make.constant(np.zeros(heads, make.dtype(q).numpy)) if self.smooth_softmax else "")
        y, _ = attend(make, q, k, v, mask, scale=scale, softcap=self.softcap, sink=extra)
        return [heads_joined(make, y), k, v]

    def _cached(self, make: Body, old: str, new: str, past: str, first: bool, keys: int) -> str:
        """Return (batch, groups, keys, depth): rows of the past, then the new ones, then zeros or what was there."""
        batch, groups, rows, depth = make.dims(new)
        if self.shares_buffer and old and make.dims(old)[2] >= keys:
            places = [] if first else [make.reshape(past, batch)]
            return make.add("TensorScatter", old, new, *places)
        before = make.dims(old)[2] if old and not first else 0
        zero = make.zeros(make.dtype(new), batch, groups, 1, depth)
        every = make.add("Concat", *([old] if before else []), new, zero, axis=2)
        at = make.counting(keys, 1, keys)
        # A key's row among all: its own in the past, then those of the new ones, then that of zeros.
        behind = make.add("Sub", at, past)
        moved = make.add("Add", behind, make.integer(before))
        fresh = make.add("Less", behind, make.integer(rows))
        place = make.add("Where", fresh, moved, make.integer(before + rows))
        if before:
            place = make.add("Where", make.add("Less", at, past), at, place)
        height, count = make.dims(every)[2], make.dims(place)[0]
        starts = make.add("Mul", make.counting(batch * groups, batch, groups, 1), make.integer(height))
        place = make.add("Add", starts, make.reshape(place, count, 1, keys))
        return make.add("Gather", make.reshape(every, batch * groups * height, depth), place, axis=0)

    def _mask(self, make: Body, q: str, past: str, steps: str, bias: str, first: bool, keys: int) -> str:
        batch, _, rows, _ = make.dims(q)
        masks = Masks(make, make.dtype(q))
        size = self.local_window_size
        if first:
            near = distances(make, rows, keys)
            masks.show_near(near, "LessOrEqual", 0)
            if size > 0:
                masks.show_near(near, "Greater", -size)
        else:
            at = make.counting(keys, 1, 1, 1, keys)
            last = make.reshape(make.add("Add", past, steps), batch, 1, rows, 1)
            seen = make.add("LessOrEqual", at, last)
            if size > 0:
                reach = make.add("Add", at, make.integer(size))
                seen = make.add("And", seen, make.add("Greater", reach, last))
            masks.show(seen)
        if bias:
            masks.add(bias)
        return masks.total()


MOST_REACH = 1 << 20
"""The largest `max_distance`: a table has a bucket for each distance up to it."""


@standard_op(
    type="com.microsoft::RelativePositionBias", op_class="exact", most_inputs=3, flags=("is_bidirectional",),
    shaped_by=(1, 2),
)
class RelativePositionBias(Composite):
    """What T5 adds to scores: a row of a table for the bucket of each distance; inputs table, queries, keys.

    The table is (buckets, heads), the result (1, heads, queries, keys).
    """

    max_distance: int
    is_bidirectional: int = 0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        table, *lengths = inputs
        for index, length in enumerate(lengths, start=1):
            if make.known(length) is None:
                raise ValueNeeded(
                    "the shape of the result depends on a value computed at run time",
                    why=f"input {index}, a number of positions, is not a constant",
                    index=index,
                )
        queries, keys = (integer(np.asarray(make.known(length)).reshape(-1)[0]) for length in lengths)
        reach = self.max_distance
        if reach > MOST_REACH:
            raise misfit(self, f"max_distance is {reach}; at most {MOST_REACH} is supported")
        buckets = self._buckets(np.arange(-reach, reach + 1), make.dims(table)[0])  # all further ones are in the last
        near = make.add("Min", distances(make, queries, keys), make.integer(reach))
        places = make.add("Add", make.add("Max", near, make.integer(-reach)), make.integer(reach))
        rows = make.add("Gather", make.add("Gather", table, make.constant(buckets), axis=0), places, axis=0)
        return [make.reshape(make.add("Transpose", rows, perm=(2, 0, 1)), 1, make.dims(table)[1], queries, keys)]

    def _buckets(self, places: Array, count: int) -> Array:
        """Return the bucket of each distance: one for each of the nearer half, then growing ones."""
        first = np.zeros(places.shape, np.int64)
        if self.is_bidirectional:
            count //= 2
            first, places = np.where(places > 0, count, 0), np.abs(places)
        else:
            places = np.maximum(-places, 0)
        near = count // 2
        if near < 1 or self.max_distance <= near:
            raise misfit(self, f"max_distance is {self.max_distance}, and {near} buckets are for near distances")
        with np.errstate(divide="ignore"):
            grown = np.log(places / near) / np.log(self.max_distance / near) * (count - near)
        far = np.minimum(near + np.maximum(grown, 0).astype(np.int64), count - 1)
        return first + np.where(places < near, places, far)


__all__ = ["ContribAttention", "GroupQueryAttention", "MultiHeadAttention", "QAttention", "RelativePositionBias"]
