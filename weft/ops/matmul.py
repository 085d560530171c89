"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, silent, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.ops.elementwise import WIDE, broadcast, check_type, misfit, required_inputs, take_inputs, widen
from weft.ops.shape import given, optional


@standard_op(op_class="reduction")
class MatMul(Op):
    """Multiply stacks of matrices as numpy.matmul does, vectors included."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the broadcast stack of products; the axis that a vector lacks is dropped."""
        a, b = required_inputs(self, inputs, 2)
        check_type(self, a, WIDE)
        if a.dtype != b.dtype:
            raise misfit(self, f"inputs must have one type, got {a} and {b}")
        return (TensorSpec(product_shape(self, a, b), a.dtype),)

    @silent
    def reference(self, *inputs: Array | None) -> Array:
        a, b = (np.asarray(x) for x in inputs[:2])
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(widen(a), widen(b))).astype(a.dtype, copy=False)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two for each output element and each element of a row of A."""
        return 2 * prod(outputs[0]) * (inputs[0] or (0,))[-1]


def product_shape(op: Op, a: TensorSpec, b: TensorSpec) -> Shape:
    """Return the shape of a product of stacks of matrices, as numpy has it; ModelError if the factors do not fit."""
    if not a.shape or not b.shape:
        raise misfit(op, f"inputs need at least one axis, got {a} and {b}")
    inner = b.dims[-2 if len(b.dims) > 1 else 0]
    if a.dims[-1] != inner:
        raise misfit(op, f"inner sizes differ: {a.dims[-1]} in {a}, {inner} in {b}")
    stack = broadcast(op, [a.dims[:-2], b.dims[:-2]])
    return (*stack, *a.dims[-2:-1], *(b.dims[-1:] if len(b.dims) > 1 else ()))


@standard_op(op_class="reduction", flags=("transA", "transB"))
class Gemm(Op):
    """Compute alpha * A @ B + beta * C, with A and B transposed on request and C optional."""

    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0
    transB: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        a, b, c = take_inputs(self, inputs, 2, 1)
        assert a is not None and b is not None
        check_type(self, a, WIDE)
        if any(s is not None and s.dtype != a.dtype for s in (b, c)):
            raise misfit(self, f"inputs must have one type, got {a}, {b}, {c}")
        if len(a.shape) != 2 or len(b.shape) != 2:
            raise misfit(self, f"A and B must be matrices, got {a} and {b}")
        rows, inner = reversed(a.dims) if self.transA else a.dims
        inner_b, columns = reversed(b.dims) if self.transB else b.dims
        if inner != inner_b:
            raise misfit(self, f"inner sizes differ: {inner} in A, {a}, and {inner_b} in B, {b}")
        if c is not None and broadcast(self, [(rows, columns), c.dims]) != (rows, columns):
            raise misfit(self, f"C, {c}, does not broadcast to {rows}x{columns}")
        return (TensorSpec((rows, columns), a.dtype),)

    @silent
    def reference(self, *inputs: Array | None) -> Array:
        a, b, c = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        with np.errstate(all="ignore"):
            left, right = widen(a), widen(b)
            out = (left.T if self.transA else left) @ (right.T if self.transB else right)
            # Skip scaling by 1: it costs time, and would convert integers to floats.
            out = out if self.alpha == 1 else self.alpha * out
            if c is not None and self.beta != 0:
                out = out + (widen(c) if self.beta == 1 else self.beta * widen(c))
            return np.asarray(out).astype(a.dtype, copy=False)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two for each output element and each element of a row of A."""
        rows = inputs[0] or (0, 0)
        return 2 * prod(outputs[0]) * rows[0 if self.transA else 1]


MOST_FACTOR = 2.0**31
"""Whole factors up to this scale integers as integers."""


@decomposition("Gemm")
def _gemm(op: Gemm, make: Body, node: Node) -> Sequence[str]:
    a, b, *added = node.inputs
    kind = make.dtype(a)
    if not kind.is_integer:
        return []
    a, b = (
        make.add("Transpose", each, perm=(1, 0)) if turned else each
        for each, turned in ((a, op.transA), (b, op.transB))
    )
    terms = [(make.add("MatMul", a, b), op.alpha)]
    if added and added[0] and op.beta != 0:
        terms.append((added[0], op.beta))
    least = -MOST_FACTOR if kind.is_signed else 0.0
    whole = all(float(factor).is_integer() and least <= factor < MOST_FACTOR for _, factor in terms)
    scaled = []
    for term, factor in terms:
        wide = term if whole else make.cast(term, DType.FLOAT64)
        scaled.append(wide if factor == 1 else make.add("Mul", wide, make.number(factor, wide)))
    total = make.add("Add", *scaled) if len(scaled) > 1 else scaled[0]
    return [make.cast(total, kind)]
