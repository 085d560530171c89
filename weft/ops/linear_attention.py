"""Attention without a softmax: each row decays and corrects a state of keys times values, adds to it, and reads it.

The update rules are those of ONNX: "linear" adds, "gated" decays before (S. Yang et al., "Gated Linear Attention
Transformers", 2023, arXiv 2312.06635), "delta" writes the difference to what the state holds for the key, and
"gated_delta" does both (S. Yang et al., "Gated Delta Networks", 2024, arXiv 2412.06464).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.ops.elementwise import FLOATS, check_type, misfit, take_inputs, widen

RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""For each rule whether it decays, and whether it corrects."""


@dataclass(frozen=True, slots=True)
class LinearSizes:
    """The sizes of a linear attention: `heads` of queries share `groups` of keys and values."""

    batch: int
    rows: int
    heads: int
    groups: int
    depth: int
    width: int
    decays: int
    """How many factors decay a head's state in each row: 0, 1, or one for each element of a key."""
    corrections: int
    """The heads that have a correction of their own: 1, or `groups`; 0 for none."""

    @property
    def state(self) -> Shape:
        """Return the shape of the state."""
        return (self.batch, self.groups, self.depth, self.width)


@standard_op(op_class="reduction", most_inputs=6)
class LinearAttention(Op):
    """Linear attention; inputs query, key, value, past_state, decay, beta; outputs output, present_state.

    query is (batch, rows, q_num_heads * depth), key and value likewise with kv_num_heads; states are
    (batch, kv_num_heads, depth, width). `outputs` is the number of outputs of the node.
    """

    q_num_heads: int
    kv_num_heads: int
    chunk_size: int = 64
    """ONNX's hint on how many rows to take at once. It changes no result, and rows are taken one by one."""
    scale: float = 0.0
    update_rule: str = "gated_delta"
    outputs: int = 1

    def sizes(self, shapes: Sequence[Shape | None]) -> LinearSizes:
        """Return the sizes for the shapes of the inputs; ModelError if they do not fit."""
        q, k, v, past, decay, beta = (*shapes, *[None] * 6)[:6]
        heads, groups = self.q_num_heads, self.kv_num_heads
        if heads < 1 or groups < 1 or heads % groups or self.update_rule not in RULES:
            raise misfit(self, "heads of queries are a multiple of those of keys, and the rule is one of ONNX")
        gated, corrected = RULES[self.update_rule]
        if (decay is not None) != gated or (beta is not None) != corrected:
            raise misfit(self, f"{self.update_rule!r} goes with {gated:d} decay and {corrected:d} beta")
        if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 3 or not q[:2] == k[:2] == v[:2]:
            raise misfit(self, f"query, key and value of {q}, {k} and {v} do not belong together")
        depth, width = k[2] // groups, v[2] // groups
        if q[2] != heads * depth or k[2] != groups * depth or v[2] != groups * width or not depth:
            raise misfit(self, f"{q}, {k} and {v} are not {heads} and {groups} heads")
        decays = 0
        if decay is not None:  # compared one by one: a size that is open has no hash
            decays = depth if decay[-1] == groups * depth else 1 if decay[-1] == groups else 0
        corrections = 0 if beta is None or beta[-1] not in (1, groups) else beta[-1]
        each = LinearSizes(q[0], q[1], heads, groups, depth, width, decays, corrections)
        for given, wanted in ((decay, decays), (beta, corrections)):
            if given is not None and (not wanted or len(given) != 3 or given[:2] != q[:2]):
                raise misfit(self, f"decay or beta of {given} fits neither heads nor their elements")
        if past is not None and past != each.state:
            raise misfit(self, f"past_state is {past}; it must be {each.state}")
        return each

    def factor(self, each: LinearSizes) -> float:
        """Return what outputs are multiplied by."""
        return self.scale or 1 / sqrt(each.depth)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the specs of the outputs; the state has the type of the past, or that of the query."""
        q, k, v, past, decay, beta = take_inputs(self, inputs, 3, 3)
        assert q is not None and k is not None and v is not None
        check_type(self, q, FLOATS)
        if any(s is not None and s.dtype is not q.dtype for s in (k, v, decay, beta)):
            raise misfit(self, f"inputs must have one type, got {', '.join(map(str, inputs))}")
        each = self.sizes([None if s is None else s.dims for s in inputs])
        output = TensorSpec((each.batch, each.rows, each.heads * each.width), q.dtype)
        return (output, TensorSpec(each.state, q.dtype if past is None else past.dtype))[: max(self.outputs, 1)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        given = [None if a is None else widen(np.asarray(a)) for a in (*inputs, *[None] * 6)[:6]]
        q, k, v, past, decay, beta = given
        each = self.sizes([None if a is None else a.shape for a in inputs])
        assert q is not None and k is not None and v is not None

        def rows(value: Array, heads: int) -> Array:
            """Return (rows, batch, heads, elements)."""
            return value.reshape(each.batch, each.rows, heads, value.shape[2] // heads).swapaxes(0, 1)

        q, k, v = rows(q, each.heads), rows(k, each.groups), rows(v, each.groups)
        decay = None if decay is None else np.exp(rows(decay, each.groups))
        beta = None if beta is None else rows(beta, each.corrections)
        state = np.zeros(each.state, q.dtype) if past is None else past.astype(q.dtype)
        out = np.empty((each.rows, each.batch, each.heads, each.width), q.dtype)
        for row in range(each.rows):
            if decay is not None:
                state = state * decay[row][..., None]
            new = v[row]
            if beta is not None:
                new = beta[row] * (new - np.einsum("bhdm,bhd->bhm", state, k[row]))
            state = state + k[row][..., None] * new[..., None, :]
            asked = q[row].reshape(each.batch, each.groups, each.heads // each.groups, each.depth)
            out[row] = (asked @ state).reshape(each.batch, each.heads, each.width)
        y = (out * q.dtype.type(self.factor(each))).swapaxes(0, 1)
        y = y.reshape(each.batch, each.rows, each.heads * each.width)
        kind = np.asarray(inputs[0]).dtype
        held = kind if past is None else np.asarray(inputs[3]).dtype
        return (np.ascontiguousarray(y).astype(kind), state.astype(held))[: max(self.outputs, 1)]

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two for each element of the state, row and use of it."""
        each = self.sizes(inputs)
        return 2 * each.rows * prod(each.state) * (2 + each.heads // each.groups)


__all__ = ["RULES", "LinearAttention", "LinearSizes"]
