"""Determinants."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, OpClass, register_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.ops.elementwise import FLOATS, check_type, widen
from weft.ops.shape import given, unfit


@register_op
@op_dataclass
class Det(Op):
    """The determinant of each square matrix; that of one without elements is 1."""

    most_inputs: ClassVar[int | None] = 1
    op_class: ClassVar[OpClass] = "reduction"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the spec of the output."""
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
        """Return the output; float16 is computed in float32."""
        x = given(inputs, 0)
        with np.errstate(all="ignore"):
            found = np.linalg.det(widen(x))
            # LAPACK stops at a pivot of 0, before it has met what makes a NaN.
            hidden = np.isfinite(found) & ~np.isfinite(x).all((-2, -1))
            return np.asarray(np.where(hidden, np.nan, found), x.dtype)
