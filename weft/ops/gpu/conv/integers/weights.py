"""Weights as integers of eight bits, and what turns sums of products of integers into numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.quantisation import Grid
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import KernelBuilder
from weft.ops.gpu.packing import LateWeights

INTEGERS = "conv_int8"
"""The kernel; `DeviceCaps.without` names it where it is wrong."""
MOST_SUMMED = (2**31 - 1) // (255 * 128)
"""Products of two integers, of which one is less its zero point, whose sum surely fits 32 bits."""


def why_not_integers(w: Tensor | None, bias: Tensor | None, axis: int, caps: DeviceCaps) -> str | None:
    """Return why a device does not multiply integers of eight bits by these weights, as a sentence's end.

    `axis` is that of the weights that has an index for each channel of the result.
    """
    if not caps.dot8:
        return "the device has no instruction that multiplies four bytes, so that floats are faster"
    if INTEGERS in caps.without:
        return "the kernel failed its self-test"
    if w is None or w.constant is None or w.grid is None:
        return "its weights are no constants that were quantised"
    grid = w.grid
    if grid.dtype.bits > 8 or any(grid.signed.zero):
        return f"its weights have a zero point or more than eight bits: {grid.dtype.value}"
    if not grid.is_single and grid.axis % len(w.shape) != axis:
        return "its weights have scales along another axis than that of the results"
    if bias is not None and bias.constant is None:
        return "its bias is computed at run time"
    count = prod(w.shape) // max(w.shape[axis], 1)
    return None if count <= MOST_SUMMED else f"{count} products of integers may exceed 32 bits"


@dataclass(frozen=True, eq=False)
class IntegerWeights:
    """Constant weights (out, in, *taps) of integers, their scales, and the grid of the image."""

    weights: Array
    """The floats that the integers stand for; only what is uploaded is computed of them."""
    grid: Grid
    image: Grid
    times: float = 1.0
    """What results are multiplied by."""

    @property
    def late(self) -> LateWeights:
        """Return the integers."""
        make = partial(_integers, self.grid, self.weights)
        return LateWeights("integers", self.weights.shape, np.dtype(np.int8), make)

    def scales(self, k: KernelBuilder) -> Tensor:
        """Return for each output channel what a sum of products is multiplied by, as an image of one pixel."""
        count = self.weights.shape[0]
        spec = TensorSpec((1, count, 1), DType.FLOAT32)
        factors = np.asarray(self.grid.scale, np.float64) * self.image.scale[0] * self.times
        return k.constant(
            "scales", lambda: np.full(count, factors).astype(np.float32).reshape(spec.dims), Layout.NC4HW4, spec
        )

    def shifts(self, k: KernelBuilder) -> Tensor:
        """Return for each output channel what a sum is more than that of numbers without zero points, negated."""
        blocks = -(-self.weights.shape[0] // PACK)
        spec = TensorSpec((blocks * PACK,), DType.INT32)

        def make() -> Array:
            out = np.zeros(spec.dims, np.int32)
            sums = self.late.make().reshape(self.weights.shape[0], -1).sum(axis=1, dtype=np.int32)
            out[: sums.size] = -self.image.zero[0] * sums
            return out

        return k.constant("shifts", make, Layout.NCHW, spec)

    @property
    def padding(self) -> int:
        """Return the word of four integers that stand for zero."""
        return int(np.full(PACK, self.image.zero[0], np.int8).view(np.int32)[0])


def _integers(grid: Grid, weights: Array) -> Array:
    return grid.signed.integers(weights).astype(np.int8)


def integers_of(w: Tensor, weights: Array, image: Grid, axis: int, times: float = 1.0) -> IntegerWeights:
    """Return constant weights as integers; `weights` are those of `w` as (out, in, *taps), `axis` is that of out."""
    assert w.grid is not None and (w.grid.is_single or w.grid.axis % len(w.shape) == axis)
    return IntegerWeights(weights, w.grid.moved(0), image, times)
