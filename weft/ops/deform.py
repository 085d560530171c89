"""Convolutions that read where offsets say, and the columns of windows put back into an image."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.ops.conv import float_type
from weft.ops.elementwise import NUMERIC, check_type, widen
from weft.ops.shape import given, ints, known_ints, optional, sized, unfit
from weft.ops.window import Window, slide


@standard_op(op_class="reduction", most_inputs=5)
class DeformConv(Op):
    """A convolution of images whose taps lie off their places; inputs X, W, offset, B, mask.

    `offset` has rows and columns for each tap of each of `offset_group` groups of channels and each output, `mask` a
    factor. Between pixels, X is interpolated linearly; outside it is zero. Source: X. Zhu et al., "Deformable ConvNets
    v2" (CVPR 2019).
    """

    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    offset_group: int = 1
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def window(self, x: Shape, w: Shape) -> Window:
        """Return the window of the taps without offsets; ModelError if it does not fit."""
        if len(x) != 4 or len(w) != 4 or min(*x[1:], *w) < 1:
            raise unfit(f"images {x} and filters {w} are not (N, C, rows, columns): others are not supported")
        if self.kernel_shape not in ((), w[2:]):
            raise unfit(f"kernel_shape {self.kernel_shape} is not that of filters {w}")
        if self.group < 1 or self.offset_group < 1 or x[1] != w[1] * self.group or w[0] % self.group:
            raise unfit(f"{x[1]} channels in {self.group} groups do not fit filters {w}")
        if x[1] % self.offset_group:
            raise unfit(f"{x[1]} channels do not make {self.offset_group} groups of offsets")
        return slide(x[2:], w[2:], self.strides, self.dilations, self.pads)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, w, offset = (given(inputs, k) for k in range(3))
        bias, mask = optional(inputs, 3), optional(inputs, 4)
        dtype = float_type(x, w, offset, bias, mask)
        window = self.window(x.dims, w.dims)
        taps = prod(window.kernel) * self.offset_group
        wanted = [(offset, (x.dims[0], 2 * taps, *window.outputs)), (mask, (x.dims[0], taps, *window.outputs))]
        for spec, shape in (*wanted, (bias, w.dims[:1])):
            if spec is not None and spec.dims != shape:
                raise unfit(f"an offset, mask or bias of shape {spec.dims} does not fit; {shape} is needed")
        return (sized((x.dims[0], w.dims[0], *window.outputs), dtype),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two for each product, and as many to read one of its factors."""
        w = given(inputs, 1)
        return 4 * prod(outputs[0]) * prod(w[1:])

    def reference(self, *inputs: Array | None) -> Array:
        x, w, offset = (widen(given(inputs, k)) for k in range(3))
        bias, mask = optional(inputs, 3), optional(inputs, 4)
        window = self.window(x.shape, w.shape)
        (n, c), g, taps = x.shape[:2], self.offset_group, prod(window.kernel)
        moved = offset.reshape(n, g, *window.kernel, 2, *window.outputs)
        places = []
        for d in range(2):
            tap = np.arange(window.kernel[d]) * window.dilations[d] - window.begin[d]
            out = np.arange(window.outputs[d]) * window.strides[d]
            plain = tap.reshape(-1, *(1,) * (3 - d)) + out.reshape(-1, *(1,) * (1 - d))
            places.append(moved[:, :, :, :, d] + plain.astype(x.dtype))
        batch, channel = np.ogrid[:n, :c]
        index = [a.reshape(n, c, 1, 1, 1, 1) for a in np.broadcast_arrays(batch, channel)]
        near = [np.fmin(np.fmax(place, -2), x.shape[2 + d] + 1) for d, place in enumerate(places)]  # NaN is outside
        each = [np.repeat(place, c // g, axis=1) for place in near]
        first = [np.floor(place) for place in each]
        columns: Array = np.zeros(each[0].shape, x.dtype)
        for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
            at = [f + k for f, k in zip(first, corner, strict=True)]
            weight = np.prod([1 - np.abs(e - a) for e, a in zip(each, at, strict=True)], axis=0)
            inside = np.logical_and.reduce([(a >= 0) & (a < x.shape[2 + d]) for d, a in enumerate(at)])
            pixel = [a.clip(0, x.shape[2 + d] - 1).astype(np.int64) for d, a in enumerate(at)]
            with np.errstate(invalid="ignore"):  # an infinite pixel may have no weight
                columns += np.where(inside, x[(*index, *pixel)], np.zeros((), x.dtype)) * weight
        if mask is not None:
            columns *= np.repeat(widen(mask).reshape(n, g, *window.kernel, *window.outputs), c // g, axis=1)
        columns = columns.reshape(n, self.group, c // self.group * taps, prod(window.outputs))
        weights = w.reshape(self.group, w.shape[0] // self.group, -1)
        out = (weights @ columns).reshape(n, w.shape[0], *window.outputs)
        out = out if bias is None else out + widen(bias).reshape(-1, 1, 1)
        return np.asarray(out, given(inputs, 0).dtype)


@standard_op(op_class="reduction", most_inputs=3)
class Col2Im(Op):
    """Images that are the sums of windows; inputs columns (N, C * taps, windows), image_shape, block_shape."""

    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def window(self, columns: Shape, image: Shape, block: Shape) -> Window:
        """Return the window whose columns these are; ModelError if they are not."""
        window = slide(image, block, self.strides, self.dilations, self.pads)
        if len(columns) != 3 or columns[1] % prod(block) or columns[2] != prod(window.outputs):
            raise unfit(f"columns of shape {columns} are not {prod(window.outputs)} windows of {block} in {image}")
        return window

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        check_type(self, x, NUMERIC)
        image, block = known_ints(constants, 1, "image_shape"), known_ints(constants, 2, "block_shape")
        if len(image) != len(block) or not image:
            raise unfit(f"blocks of {block} have other axes than images of {image}")
        self.window(x.dims, image, block)
        return (sized((x.dims[0], x.dims[1] // prod(block), *image), x.dtype),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return one for each element of the columns."""
        return prod(given(inputs, 0))

    def reference(self, *inputs: Array | None) -> Array:
        x, image, block = given(inputs, 0), ints(given(inputs, 1)), ints(given(inputs, 2))
        window = self.window(x.shape, image, block)
        wide = widen(x).reshape(x.shape[0], x.shape[1] // prod(block), prod(block), *window.outputs)
        out = np.zeros((x.shape[0], wide.shape[1], *window.padded), wide.dtype)
        for number, tap in enumerate(window.taps()):
            window.tap(out, tap)[...] += wide[:, :, number]
        return np.ascontiguousarray(window.crop(out)).astype(x.dtype)
