"""Ops that select elements by their values: the largest ones, those that are not zero, those that differ."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.run_sized import RunSized
from weft.core.graph.tensor import TensorSpec
from weft.ops.shape import given, known, one_axis, sized, unfit

SORTED = 4
"""A part of an axis of this many is found by sorting all of it."""


@standard_op(most_inputs=2, flags=("largest", "sorted"))
class TopK(Op):
    """The `k` largest, or smallest, elements along an axis in order, and their indices; inputs data, k.

    Of equal elements the one with the lower index comes first. NaN counts as larger than all numbers.
    """

    axis: int = -1
    largest: int = 1
    sorted: int = 1
    """Whether the order matters to the model; they are in order all the same."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        axis, count = one_axis(self.axis, len(x.dims)), self.count(known(constants, 1, "k"))
        if count > x.dims[axis]:
            raise unfit(f"k is {count} and axis {axis} has {x.dims[axis]} elements")
        shape = (*x.dims[:axis], count, *x.dims[axis + 1 :])
        return (TensorSpec(shape, x.dtype), TensorSpec(shape, DType.INT64))

    def count(self, k: Array) -> int:
        """Return `k`; ModelError if it is no natural number."""
        if k.size != 1 or k.dtype.kind not in "iu" or int(k.reshape(-1)[0]) < 0:
            raise unfit(f"k is {k}; it must be one natural number")
        return int(k.reshape(-1)[0])

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, count = given(inputs, 0), self.count(given(inputs, 1))
        axis = one_axis(self.axis, x.ndim)
        found = self._few(x, count, axis)
        if found is not None:
            return found
        if self.largest:  # a stable sort of the reversed axis, read from its end, keeps lower indices first
            places = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
        else:
            places = np.argsort(x, axis, kind="stable")
        places = places.take(np.arange(count), axis).astype(np.int64)
        return np.take_along_axis(x, places, axis), places

    def _few(self, x: Array, count: int, axis: int) -> tuple[Array, Array] | None:
        """Return a small part of an axis without sorting all of it; None where it is not small, or there is NaN.

        Of the largest elements of stretches of a line, as many are at least as large as the last one that counts. So
        what is smaller is left out at once.
        """
        size = x.shape[axis]
        if not 0 < count <= size // SORTED or not x.size or x.dtype.kind not in "fiu":
            return None
        lines = np.moveaxis(x, axis, -1)
        shape = lines.shape[:-1]
        lines = np.ascontiguousarray(lines).reshape(-1, size)
        width = isqrt(size // count)
        stretches = lines[:, : size // width * width].reshape(len(lines), -1, width)
        ends = stretches.max(-1) if self.largest else stretches.min(-1)
        if np.isnan(ends).any() or np.isnan(lines[:, size // width * width :]).any():
            return None
        place = ends.shape[1] - count if self.largest else count - 1
        edge = np.partition(ends, place, -1)[:, place, None]
        chosen = np.flatnonzero(lines >= edge if self.largest else lines <= edge)
        rows, values = chosen // size, lines.reshape(-1)[chosen]
        keys = values if not self.largest else -values if x.dtype.kind == "f" else ~values
        order = np.lexsort((keys, rows))  # stable: of equal elements, the first ones come first
        begins = np.searchsorted(rows, np.arange(len(lines)))
        order = order[begins[:, None] + np.arange(count)]
        places = chosen[order] - np.arange(len(lines))[:, None] * size
        results = (each.reshape(*shape, count) for each in (values[order], places.astype(np.int64, copy=False)))
        first, second = (np.ascontiguousarray(np.moveaxis(each, -1, axis)) for each in results)
        return first, second


@standard_op(most_inputs=1)
class NonZero(RunSized):
    """The indices of the elements that are not zero, one column each, in the order in which they lie.

    A scalar has no axes, so its columns have no rows, as ONNX says; onnxruntime takes it for a list of one.
    """

    def room(self, inputs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
        """Return a column for each element; a scalar counts as one element with no index."""
        x = given(inputs, 0)
        return (sized((len(x.dims), prod(x.dims)), DType.INT64),)

    def counted_axes(self) -> tuple[int | None, ...]:
        return (1,)

    def results(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = given(inputs, 0)
        if not x.ndim:
            return (np.zeros((0, int(bool(x))), np.int64),)
        return (np.stack(np.nonzero(x)).astype(np.int64, copy=False),)


@standard_op(most_inputs=2)
class Compress(RunSized):
    """The slices along `axis` where the condition holds, of the flat tensor if it is None; inputs data, condition.

    A condition that is shorter than the axis is false behind its end.
    """

    axis: int | None = None

    def room(self, inputs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
        """Return as many slices as the condition has elements, at most all."""
        x, condition = given(inputs, 0), given(inputs, 1)
        if len(condition.dims) != 1 or condition.dtype is not DType.BOOL:
            raise unfit(f"the condition is {condition}; it must be a vector of bool")
        if self.axis is None:
            return (TensorSpec((min(prod(x.dims), condition.dims[0]),), x.dtype),)
        axis = one_axis(self.axis, len(x.dims))
        return (TensorSpec((*x.dims[:axis], min(x.dims[axis], condition.dims[0]), *x.dims[axis + 1 :]), x.dtype),)

    def counted_axes(self) -> tuple[int | None, ...]:
        return (self.axis or 0,)

    def results(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, condition = given(inputs, 0), given(inputs, 1)
        size = x.size if self.axis is None else x.shape[self.axis]
        return (np.compress(condition[:size], x, self.axis),)


@standard_op(most_inputs=1, flags=("sorted",))
class Unique(RunSized):
    """The elements, or slices along `axis`, that differ; with the first index of each, the place of each, the counts.

    They are sorted, or with `sorted=0` in the order in which they come first.
    """

    axis: int | None = None
    sorted: int = 1

    def room(self, inputs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
        """Return as many as there are elements, or slices."""
        x = given(inputs, 0)
        shape = (prod(x.dims),) if self.axis is None else x.dims
        count = shape[0 if self.axis is None else one_axis(self.axis, len(shape))]
        return (TensorSpec(shape, x.dtype), *(TensorSpec((count,), DType.INT64) for _ in range(3)))

    def counted_axes(self) -> tuple[int | None, ...]:
        return (self.axis or 0, 0, None, 0)

    def results(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the values, their first indices, the place of each element among them, and how often each comes."""
        x = given(inputs, 0)
        values, first, place, counts = np.unique(x, True, True, True, self.axis)
        place = place.reshape(-1)
        if not self.sorted:
            order = np.argsort(first, kind="stable")
            values = values.take(order, 0 if self.axis is None else self.axis)
            first, counts = first[order], counts[order]
            place = np.argsort(order, kind="stable")[place]
        return (values, *(np.asarray(each, np.int64) for each in (first, place, counts)))
