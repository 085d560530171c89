"""Slice: a part of a tensor, with a step, forwards or backwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, MovingOp, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.shape import given, ints, known_ints, many_axes, optional


@standard_op(reads_part=True, most_inputs=5)
class Slice(MovingOp):
    """Every `step`-th element from `start` to before `end`; inputs data, starts, ends, axes, steps."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        for index, name in enumerate(("starts", "ends", "axes", "steps"), start=1):
            if index < 3 or optional(inputs, index) is not None:
                known_ints(constants, index, name)
        spans = self.spans(x.dims, constants[1:])
        counts = (max(-((start - stop) // step), 0) for start, stop, step in spans)
        return (TensorSpec(tuple(counts), x.dtype),)

    def ranges(self, dims: Shape, parameters: Sequence[Array | None]) -> tuple[range, ...]:
        """Return the positions that are read along each axis, for inputs starts, ends, axes, steps."""
        return tuple(range(*span) for span in self.spans(dims, parameters))

    def spans(self, dims: Shape, parameters: Sequence[Array | None]) -> list[tuple[int, int, int]]:
        """Return the start, the stop and the step of each of the `ranges`."""
        starts, ends = ints(given(parameters, 0)), ints(given(parameters, 1))
        axes, steps = optional(parameters, 2), optional(parameters, 3)
        chosen = tuple(range(len(starts))) if axes is None else ints(axes)
        strides = (1,) * len(starts) if steps is None else ints(steps)
        if not len(starts) == len(ends) == len(chosen) == len(strides) or 0 in strides:
            raise ModelError(
                f"starts {starts}, ends {ends}, axes {chosen} and steps {strides} make no slice",
                why="they must be of one length, and no step may be 0",
            )
        out = [(0, d, 1) for d in dims]
        for axis, start, end, step in zip(many_axes(chosen, len(dims)), starts, ends, strides, strict=True):
            out[axis] = _span(dims[axis], start, end, step)
        return out

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        index = tuple(_as_slice(places) for places in self.ranges(x.shape, inputs[1:]))
        return np.asarray(x[index], order="C")


def _span(size: int, start: int, end: int, step: int) -> tuple[int, int, int]:
    """Return the range that ONNX means: negative ends count from the back, then both are clamped to the axis."""
    start, end = (at + size if at < 0 else at for at in (start, end))
    low, high = (0, size) if step > 0 else (-1, size - 1)
    return min(max(start, 0), high), min(max(end, low), high), step


def _as_slice(places: range) -> slice:
    if not places:
        return slice(0, 0)
    stop: int | None = places[-1] + (1 if places.step > 0 else -1)
    return slice(places[0], None if stop == -1 else stop, places.step)
