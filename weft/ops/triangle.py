"""Ops whose elements are kept, or moved, by their position alone: triangles of matrices and reversed sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, MovingOp, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.shape import given, optional, unfit


@standard_op(most_inputs=2, flags=("upper",))
class Trilu(MovingOp):
    """The upper or lower triangle of each matrix, zeros elsewhere; inputs x, k (the diagonal, 0 if missing)."""

    upper: int = 1

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, k = given(inputs, 0), optional(inputs, 1)
        if len(x.dims) < 2:
            raise unfit(f"{x} holds no matrices")
        if k is not None and (k.size != 1 or k.dtype is not DType.INT64):
            raise ModelError(f"the diagonal is {k}", why="one int64 is needed")
        return (x,)

    def reference(self, *inputs: Array | None) -> Array:
        x, k = given(inputs, 0), optional(inputs, 1)
        rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
        apart = columns - rows - (0 if k is None else int(k.item()))
        return np.where(apart >= 0 if self.upper else apart <= 0, x, np.zeros((), x.dtype))


@standard_op(most_inputs=2)
class ReverseSequence(MovingOp):
    """Sequences with as many first elements reversed as `sequence_lens` says; inputs x, sequence_lens."""

    batch_axis: int = 1
    time_axis: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, lengths = given(inputs, 0), given(inputs, 1)
        if {self.batch_axis, self.time_axis} != {0, 1} or len(x.dims) < 2:
            raise unfit(f"batch axis {self.batch_axis} and time axis {self.time_axis} of {x} are not its first two")
        if lengths.dims != (x.dims[self.batch_axis],) or lengths.dtype is not DType.INT64:
            raise ModelError(f"the lengths are {lengths}", why=f"{x.dims[self.batch_axis]} int64 are needed")
        if far := self._outside(optional(constants, 1), x.dims[self.time_axis]):
            raise unfit(far)
        return (x,)

    @staticmethod
    def _outside(lengths: Array | None, size: int) -> str:
        """Return which sequences are longer than their axis, or ""."""
        if lengths is None or not lengths.size or 0 <= lengths.min() <= lengths.max() <= size:
            return ""
        return f"lengths {lengths.min()} to {lengths.max()} leave an axis of {size}"

    def reference(self, *inputs: Array | None) -> Array:
        x, lengths = given(inputs, 0), given(inputs, 1)
        turned = x if self.time_axis == 0 else np.swapaxes(x, 0, 1)
        time = np.arange(turned.shape[0])[:, None]
        if far := self._outside(lengths, turned.shape[0]):
            raise IndexError(far)
        out = turned[np.where(time < lengths, lengths - 1 - time, time), np.arange(turned.shape[1])]
        return np.ascontiguousarray(out if self.time_axis == 0 else np.swapaxes(out, 0, 1))
