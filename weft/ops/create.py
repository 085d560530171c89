"""Ops that make a tensor from a size or from indices."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.ops.shape import MAX_ELEMENTS, given, ints, known, known_ints, one_axis, one_type, sized, unfit


@standard_op(most_inputs=1)
class ConstantOfShape(Op):
    """A tensor of the given shape with one value everywhere; input shape."""

    value: float | int | bool = 0.0
    dtype: DType = DType.FLOAT32

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        given(inputs, 0)
        return (sized(known_ints(constants, 0, "shape"), self.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        return np.full(ints(given(inputs, 0)), self.value, self.dtype.numpy)


@standard_op(most_inputs=3, keeps_types=True, wide_inputs=(0, 1, 2))
class Range(Op):
    """The numbers from `start` to before `limit` in steps of `delta`; inputs start, limit, delta."""

    # How many numbers there are follows from all bits of the inputs.
    stash_type: int = 1
    """Short floats are computed in float32, whatever is asked for."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        dtype = one_type(*(given(inputs, k) for k in range(3)))
        if dtype is DType.BOOL:
            raise unfit("a range of bool is undefined")
        start, limit, delta = (known(constants, k, n) for k, n in enumerate(("start", "limit", "delta")))
        return (TensorSpec((self.count(start, limit, delta),), dtype),)

    def count(self, start: Array, limit: Array, delta: Array) -> int:
        """Return how many numbers there are; ModelError if they never end."""
        if start.size != 1 or limit.size != 1 or delta.size != 1:
            raise unfit("start, limit and delta must be one number each")
        first: float = start.item()
        last: float = limit.item()
        step: float = delta.item()
        whole = not isinstance(first, float)
        if step == 0 or not (whole or all(isfinite(v) for v in (first, last, step))):
            raise unfit(f"a range from {first} to {last} in steps of {step} has no end")
        # Python's integers are exact; a quotient of floats would not be.
        count = max(-((first - last) // step) if whole else (last - first) / step, 0)
        if count > MAX_ELEMENTS:
            raise unfit(f"a range from {first} to {last} in steps of {step} has {count:.3g} elements")
        return ceil(count)

    def reference(self, *inputs: Array | None) -> Array:
        start, limit, delta = (given(inputs, k).reshape(()) for k in range(3))
        wide = np.promote_types(start.dtype, np.float32) if start.dtype.kind == "f" else start.dtype
        steps = np.arange(self.count(start, limit, delta)).astype(wide)
        return np.asarray(start.astype(wide) + steps * delta.astype(wide)).astype(start.dtype)


@standard_op(most_inputs=3)
class OneHot(Op):
    """For each index a vector with one entry on, the rest off; inputs indices, depth, values (off, on)."""

    axis: int = -1

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        places, values = given(inputs, 0), given(inputs, 2)
        depth = known(constants, 1, "depth")
        if values.dims != (2,) or depth.size != 1 or not 1 <= depth.item() <= MAX_ELEMENTS:
            raise unfit(f"depth {depth} with values of shape {values.dims} is invalid")
        axis = one_axis(self.axis, len(places.dims) + 1)
        return (sized((*places.dims[:axis], int(depth.item()), *places.dims[axis:]), values.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        places, depth, values = (given(inputs, k) for k in range(3))
        axis, size = one_axis(self.axis, places.ndim + 1), int(depth.item())
        places = places.astype(np.int64)
        places = np.expand_dims(np.where(places < 0, places + size, places), axis)
        row = np.arange(size).reshape(-1, *(1,) * (places.ndim - 1 - axis))
        return np.asarray(np.where(places == row, values[1], values[0]))


@standard_op(reads_shape=True, most_inputs=1)
class EyeLike(Op):
    """A matrix of the input's shape with ones on its `k`-th diagonal; `dtype` None means the input's."""

    dtype: DType | None = None
    k: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        if len(x.dims) != 2:
            raise unfit(f"shape {x.dims} is no matrix")
        return (TensorSpec(x.shape, self.dtype or x.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        rows, columns = np.ogrid[: x.shape[0], : x.shape[1]]
        return np.asarray(columns - rows == self.k).astype(self.dtype.numpy if self.dtype else x.dtype)
