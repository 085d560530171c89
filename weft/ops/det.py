"""Determinants."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.ops.elementwise import FLOATS, check_type, widen
from weft.ops.shape import given, unfit


@standard_op(op_class="reduction", most_inputs=1)
class Det(Op):
    """The determinant of each square matrix; that of one without elements is 1."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        check_type(self, x, FLOATS)
        if len(x.dims) < 2 or x.dims[-1] != x.dims[-2]:
            raise unfit(f"{x} holds no square matrices")
        return (TensorSpec(x.dims[:-2], x.dtype),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return those of an elimination."""
        x = given(inputs, 0)
        return 2 * prod(x) * x[-1] // 3

    def reference(self, *inputs: Array | None) -> Array:
        x = widen(given(inputs, 0))
        with np.errstate(all="ignore"):
            found = np.asarray(np.linalg.det(x))
            # LAPACK has numbers for some of the others that ONNX Runtime and GPUs have not: it stops at a pivot of 0.
            for place in map(tuple, np.argwhere(~np.isfinite(x).all((-2, -1)))):
                found[place] = _eliminated(x[place])
            return found.astype(given(inputs, 0).dtype)


def _eliminated(matrix: Array) -> Any:
    """Return the determinant of a matrix by elimination with the largest pivot, or a NaN."""
    rest, found = matrix.copy(), matrix.dtype.type(1)
    for column in range(len(rest)):
        sizes = np.abs(rest[column:, column])
        pivot = column + int(np.argmax(sizes))  # the first NaN, if there is one
        first = rest[pivot, column]
        found *= first if pivot == column else -first
        rest[[column, pivot]] = rest[[pivot, column]]
        shares = rest[column + 1 :, column] / first if first else np.zeros(len(rest) - column - 1, rest.dtype)
        rest[column + 1 :, column + 1 :] -= shares[:, None] * rest[column, column + 1 :]
    return found
