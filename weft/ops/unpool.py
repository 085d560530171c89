"""Pools undone at the places of their maxima, and pools of regions whose corners an input gives."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, MovingOp, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.conv import float_type
from weft.ops.shape import given, ints, known_ints, optional, sized, unfit


@standard_op(most_inputs=3)
class MaxUnpool(MovingOp):
    """Elements put back where a MaxPool took them, zeros elsewhere; inputs X, I (places in the whole), output_shape.

    The places count in the shape that the attributes give; an `output_shape` beyond that adds zeros behind.
    """

    kernel_shape: tuple[int, ...]
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def plain(self, dims: Shape) -> Shape:
        """Return the shape that the attributes give to the output."""
        rank = len(dims) - 2
        strides, pads = self.strides or (1,) * rank, self.pads or (0,) * (2 * rank)
        if rank < 1 or not len(self.kernel_shape) == len(strides) == len(pads) // 2 == rank:
            raise unfit(f"kernel_shape {self.kernel_shape}, strides or pads do not fit shape {dims}")
        each = zip(dims[2:], self.kernel_shape, strides, pads[:rank], pads[rank:], strict=True)
        sizes = [(d - 1) * s + k - b - e for d, k, s, b, e in each]
        if min(sizes) < 1:
            raise unfit(f"the result would have the sizes {sizes}")
        return (*dims[:2], *sizes)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, places = given(inputs, 0), given(inputs, 1)
        if places.dims != x.dims or places.dtype is not DType.INT64:
            raise ModelError(f"places {places} do not fit", why=f"int64 of shape {x.dims} are needed")
        shape = self.plain(x.dims)
        sized(shape, x.dtype)
        if optional(inputs, 2) is not None:
            wanted = known_ints(constants, 2, "output_shape")
            if len(wanted) != len(shape) or any(w < s for w, s in zip(wanted, shape, strict=True)):
                raise unfit(f"an output_shape of {wanted} has no room for {shape}")
            shape = wanted
        if far := self._outside(optional(constants, 1), self.plain(x.dims)):
            raise unfit(far)
        return (sized(shape, x.dtype),)

    @staticmethod
    def _outside(places: Array | None, shape: Shape) -> str:
        """Return which places lie outside of the whole, or ""."""
        if places is None or not places.size or 0 <= places.min() <= places.max() < prod(shape):
            return ""
        return f"places {places.min()} to {places.max()} lie outside of {shape}"

    def reference(self, *inputs: Array | None) -> Array:
        x, places, wanted = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        shape = self.plain(x.shape)
        if far := self._outside(places, shape):
            raise IndexError(far)
        out = np.zeros(prod(shape), x.dtype)
        out[places.reshape(-1)] = x.reshape(-1)
        out = out.reshape(shape)
        if wanted is None:
            return out
        return np.pad(out, [(0, w - s) for w, s in zip(ints(wanted), shape, strict=True)])


@decomposition("MaxUnpool")
def _max_unpool(op: MaxUnpool, make: Body, node: Node) -> Sequence[str]:
    x, places, *_ = node.inputs
    shape, out = op.plain(make.dims(x)), make.dims(node.outputs[0])
    zeros = make.zeros(make.dtype(x), prod(shape))
    y = make.add("ScatterElements", zeros, make.reshape(places, -1), make.reshape(x, -1))
    y = make.reshape(y, *shape)
    if out != shape:
        y = make.add("Pad", y, make.ints(*(0,) * len(out), *(o - s for o, s in zip(out, shape, strict=True))))
    return [y]


_NOWHERE = -(2.0**31)
"""What numbers out of the range of int32 become in ONNX Runtime on x86."""


@standard_op(most_inputs=2)
class MaxRoiPool(Op):
    """The maxima of regions in a grid of bins; inputs X (N, C, H, W), rois (regions, 5): image, x1, y1, x2, y2.

    Corners are multiplied with `spatial_scale`, rounded, and belong to the region; a bin without pixels is 0. A region
    has none if its first corner is NaN or out of the range of int32, and is a pixel long if only the last one is.
    Source: R. Girshick, "Fast R-CNN" (ICCV 2015).
    """

    pooled_shape: tuple[int, ...]
    spatial_scale: float = 1.0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, rois = given(inputs, 0), given(inputs, 1)
        dtype = float_type(x, rois)
        if len(x.dims) != 4 or len(rois.dims) != 2 or rois.dims[1] != 5:
            raise unfit(f"regions {rois} do not fit images {x}")
        if len(self.pooled_shape) != 2 or min(self.pooled_shape) < 1:
            raise unfit(f"pooled_shape {self.pooled_shape} is not two sizes")
        return (sized((rois.dims[0], x.dims[1], *self.pooled_shape), dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, rois = given(inputs, 0), given(inputs, 1)
        out = np.zeros((len(rois), x.shape[1], *self.pooled_shape), x.dtype)
        kind = np.float64 if x.dtype == np.float64 else np.float32
        for r, (image, *corners) in enumerate(rois.astype(kind)):
            if not 0 <= image < len(x):
                raise IndexError(f"region {r} is of image {image}, and X holds {len(x)} images")
            scaled = np.multiply(corners, self.spatial_scale, dtype=kind)
            rounded = np.sign(scaled) * np.floor(np.abs(scaled) + kind(0.5))
            x1, y1, x2, y2 = np.where(np.abs(scaled) < -_NOWHERE, rounded, kind(_NOWHERE))
            spans = [
                _bins(first, last, count, size)
                for first, last, count, size in zip((y1, x1), (y2, x2), self.pooled_shape, x.shape[2:], strict=True)
            ]
            for i, rows in enumerate(spans[0]):
                for j, columns in enumerate(spans[1]):
                    part = x[int(image), :, rows, columns]
                    if part.size:
                        out[r, :, i, j] = part.max((1, 2))
        return out


def _bins(first: np.floating[Any], last: np.floating[Any], count: int, size: int) -> list[slice]:
    """Return the pixels of each bin along an axis, computed in the type of the corners."""
    kind = type(first)
    step = (max(last - first + kind(1), kind(1)) if first > _NOWHERE else kind(1)) / kind(count)
    starts = np.floor(np.arange(count, dtype=kind) * step) + first
    ends = np.ceil(np.arange(1, count + 1, dtype=kind) * step) + first
    return [slice(int(s), int(e)) for s, e in zip(starts.clip(0, size), ends.clip(0, size), strict=True)]
