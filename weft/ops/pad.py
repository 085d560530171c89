"""Pad: adds elements at the ends of the axes, or removes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, MovingOp, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.shape import given, ints, known_ints, many_axes, optional, sized, unfit

MODES = ("constant", "reflect", "edge", "wrap")
Pads = tuple[tuple[int, int], ...]


@standard_op(most_inputs=4)
class Pad(MovingOp):
    """The tensor with elements added before and after it; inputs data, pads, constant_value, axes.

    A negative pad crops; cropping comes before padding.
    """

    mode: str = "constant"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, value = given(inputs, 0), optional(inputs, 2)
        if self.mode not in MODES:
            raise ModelError(f"mode {self.mode!r} is unknown", why=f"ONNX has {', '.join(MODES)}")
        if value is not None and (value.size != 1 or value.dtype is not x.dtype):
            raise ModelError(f"a constant_value of {value} does not fit {x}", why="it must be one such element")
        axes = None if optional(inputs, 3) is None else known_ints(constants, 3, "axes")
        pads = self.pairs(len(x.dims), known_ints(constants, 1, "pads"), axes)
        for size, (before, after) in zip(x.dims, pads, strict=True):
            left = size + min(before, 0) + min(after, 0)
            if left < 0 or (left == 0 and max(before, after) > 0 and self.mode != "constant"):
                raise unfit(f"pads {pads} in mode {self.mode!r} do not fit shape {x.dims}")
        return (sized([d + b + a for d, (b, a) in zip(x.dims, pads, strict=True)], x.dtype),)

    def pairs(self, rank: int, pads: Shape, axes: Shape | None) -> Pads:
        """Return the elements to add before and after, for each axis of the input."""
        chosen = many_axes(range(rank) if axes is None else axes, rank)
        if len(pads) != 2 * len(chosen):
            raise ModelError(f"pads {pads} does not fit", why=f"{2 * len(chosen)} numbers are needed")
        out = [(0, 0)] * rank
        for axis, before, after in zip(chosen, pads[: len(chosen)], pads[len(chosen) :], strict=True):
            out[axis] = (before, after)
        return tuple(out)

    def reference(self, *inputs: Array | None) -> Array:
        x, value, axes = given(inputs, 0), optional(inputs, 2), optional(inputs, 3)
        pads = self.pairs(x.ndim, ints(given(inputs, 1)), None if axes is None else ints(axes))
        cut = tuple(slice(max(-b, 0), d + min(a, 0)) for d, (b, a) in zip(x.shape, pads, strict=True))
        added = [(max(b, 0), max(a, 0)) for b, a in pads]
        out = x[cut]
        if self.mode == "constant":
            shape = [d + b + a for d, (b, a) in zip(out.shape, added, strict=True)]
            padded = np.full(shape, 0 if value is None else value.reshape(()), x.dtype)
            padded[tuple(slice(b, b + d) for d, (b, _) in zip(out.shape, added, strict=True))] = out
            return padded
        for axis, (before, after) in enumerate(added):
            if before or after:
                out = out.take(source(self.mode, out.shape[axis], before, after), axis=axis)
        return np.asarray(out, order="C")


def source(mode: str, size: int, before: int, after: int) -> Array:
    """Return, for each position of a padded axis, the input position that it copies (not for mode constant)."""
    at = np.arange(-before, size + after)
    if mode == "edge":
        return at.clip(0, size - 1)
    if mode == "wrap":
        return at % size
    period = max(2 * (size - 1), 1)
    at %= period
    return np.minimum(at, period - at) if size > 1 else np.zeros_like(at)
