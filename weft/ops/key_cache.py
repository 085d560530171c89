"""Caches of keys and values that grow with the text: each image of a batch writes its own rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, WritingOp, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.ops.elementwise import misfit
from weft.ops.shape import given, one_axis, one_type, optional


@standard_op(most_inputs=3)
class TensorScatter(WritingOp):
    """A cache with rows of `axis` replaced by an update; inputs past_cache, update, write_indices.

    write_indices has the first row of each image, 0 where it is missing. With the mode "linear" rows outside of the
    cache are not written; with "circular" rows behind the last begin again at the first.
    """

    axis: int = -2
    mode: str = "linear"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        cache, update, first = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        one_type(cache, update)
        shape, new = cache.dims, update.dims
        axis = one_axis(self.axis, len(shape))
        if self.mode not in ("linear", "circular"):
            raise misfit(self, f"mode is {self.mode!r}; it must be 'linear' or 'circular'")
        length = new[axis] if len(new) == len(shape) else -1
        if axis == 0 or new != (*shape[:axis], length, *shape[axis + 1 :]) or not length <= shape[axis]:
            raise misfit(self, f"an update of {new} does not fit a cache of {shape} along axis {self.axis}")
        if first is not None and (first.dtype not in (DType.INT64, DType.INT32) or first.dims != shape[:1]):
            raise misfit(self, f"write_indices are {first}; they must be int64[{shape[0]}]")
        return (cache,)

    def write(self, memory: Array, *inputs: Array | None) -> None:
        """Write the rows of the update."""
        update, first = given(inputs, 0), optional(inputs, 1)
        axis = one_axis(self.axis, memory.ndim)
        size, length = memory.shape[axis], update.shape[axis]
        cache, rows = np.moveaxis(memory, axis, 1), np.moveaxis(update, axis, 1)
        if first is None:
            cache[:, :length] = rows
            return
        for image, begin in enumerate(first.tolist()):
            if self.mode == "circular":
                cache[image, (begin % max(size, 1) + np.arange(length)) % max(size, 1)] = rows[image]
                continue
            start, end = max(begin, 0), min(begin + length, size)
            if start < end:
                cache[image, start:end] = rows[image, start - begin : end - begin]


__all__ = ["TensorScatter"]
