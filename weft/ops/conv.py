"""Convolution and its transpose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, ClassVar

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, OpClass, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.elementwise import widen
from weft.ops.shape import given, one_type, optional, sized, unfit
from weft.ops.window import Window, slide, slide_back

SCRATCH_BYTES = 2**26
SHARED_BYTES = 2**20
"""Up to how many bytes of patches images share a call: those of many images of a pixel or two, each of which would else
take longer to call for than to compute."""


@op_dataclass
class Convolution(Op):
    """What convolutions have in common, whatever the layout of their images."""

    op_class: ClassVar[OpClass] = "reduction"
    most_inputs: ClassVar[int | None] = 3
    by_image: ClassVar[bool] = True
    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def window(self, x: Shape, w: Shape) -> Window:
        """Return the window for an input and weights of these shapes."""
        return slide(x[2:], w[2:], self.strides, self.dilations, self.pads, self.auto_pad, padding_alone=True)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, w, b = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        dtype = float_type(x, w, b)
        _check_weights(x.dims, w.dims, self.kernel_shape)
        (n, c), (m, per_group) = x.dims[:2], w.dims[:2]
        if self.group < 1 or c != per_group * self.group or m % self.group:
            raise ModelError(
                f"{c} input channels do not fit {self.group} groups of weights for {per_group}",
                why=f"there are {m} output channels",
            )
        _check_bias(b, m)
        window = self.window(x.dims, w.dims)
        sized((n, c, *window.padded), dtype)
        return (sized((n, m, *window.outputs), dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, w, b = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        return _convolve(widen(x), widen(w), b, self).astype(x.dtype, copy=False)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two for each output element and each weight of its channel."""
        return 2 * prod(outputs[0]) * prod((inputs[1] or ())[1:])


@standard_op
class Conv(Convolution):
    """The sum over a sliding window of inputs times weights; inputs X, W (out, in / group, ...), B."""


@standard_op(type="weft::PlanarConv")
class PlanarConv(Convolution):
    """Conv in NCHW: what takes the place of one of float64, which devices do not run packed."""


@decomposition("Conv")
def _planar(op: Conv, make: Body, node: Node) -> Sequence[str]:
    if not prod(make.dims(node.inputs[0])):
        return _of_nothing(make, node)
    if make.dtype(node.inputs[0]) is not DType.FLOAT64:
        return []
    return make.all(PlanarConv.type, *node.inputs, made=1, **op.attributes())


@standard_op(op_class="reduction", by_image=True, most_inputs=3)
class ConvTranspose(Op):
    """The gradient of Conv with respect to its input; inputs X, W (in, out / group, ...), B."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def window(self, x: Shape, w: Shape) -> Window:
        """Return the window of the convolution that this reverses: its outputs are our inputs."""
        return slide_back(
            x[2:], w[2:], self.strides, self.dilations, self.pads, self.auto_pad, self.output_padding,
            self.output_shape,
        )

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, w, b = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        dtype = float_type(x, w, b)
        _check_weights(x.dims, w.dims, self.kernel_shape)
        (n, c), (wc, per_group) = x.dims[:2], w.dims[:2]
        if self.group < 1 or c != wc or c % self.group:
            raise unfit(f"{c} input channels do not fit weights for {wc} in {self.group} groups")
        m = per_group * self.group
        _check_bias(b, m)
        window = self.window(x.dims, w.dims)
        sized((n, m, *window.padded), dtype)
        return (sized((n, m, *window.inputs), dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, w, b = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        window = self.window(x.shape, w.shape)
        (n, c), g = x.shape[:2], self.group
        if not x.size or not w.size:
            return _nothing((n, g * w.shape[1], *window.inputs), b, x.dtype)
        rows = widen(x).reshape(n, g, c // g, prod(window.outputs))
        weights = widen(w).reshape(g, c // g, w.shape[1], -1).swapaxes(1, 2)
        padded = np.zeros((n, g, w.shape[1], *window.padded), rows.dtype)
        for number, at in enumerate(window.taps()):
            part = np.matmul(weights[..., number], rows)
            window.tap(padded, at)[...] += part.reshape(n, g, w.shape[1], *window.outputs)
        y = window.crop(padded).reshape(n, g * w.shape[1], *window.inputs)
        return (y if b is None else y + _by_channel(b, y)).astype(x.dtype, copy=False)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two for each input element and each weight of its channel."""
        return 2 * prod(inputs[0] or ()) * prod((inputs[1] or ())[1:])


@standard_op(type="weft::PlanarConvTranspose")
class PlanarConvTranspose(ConvTranspose):
    """ConvTranspose in NCHW: what takes the place of one of float64, which devices do not run packed."""


@decomposition("ConvTranspose")
def _planar_transpose(op: ConvTranspose, make: Body, node: Node) -> Sequence[str]:
    if not prod(make.dims(node.inputs[0])):
        return _of_nothing(make, node)
    if make.dtype(node.inputs[0]) is not DType.FLOAT64:
        return []
    return make.all(PlanarConvTranspose.type, *node.inputs, made=1, **op.attributes())


def float_type(*specs: TensorSpec | None) -> DType:
    """Return the floating-point type that all the given specs share; ModelError if there is none."""
    dtype = one_type(*specs)
    if not dtype.is_float:
        raise ModelError(f"the inputs are {dtype.value}", why="this op is defined for floating-point numbers")
    return dtype


def _check_weights(x: Shape, w: Shape, kernel_shape: Shape) -> None:
    if len(x) != len(w) or not 3 <= len(x) <= 5:
        raise ModelError(f"an input of shape {x} does not fit weights of shape {w}", why="both need rank 3, 4 or 5")
    if kernel_shape and kernel_shape != w[2:]:
        raise unfit(f"kernel_shape is {kernel_shape}, but the weights have shape {w}")


def _check_bias(b: TensorSpec | None, channels: int) -> None:
    if b is not None and b.dims != (channels,):
        raise unfit(f"a bias of shape {b.dims} does not fit {channels} output channels")


def _by_channel(b: Array, y: Array) -> Array:
    return b.astype(y.dtype, copy=False).reshape(-1, *(1,) * (y.ndim - 2))


def _convolve(x: Array, w: Array, b: Array | None, op: Convolution) -> Array:
    """Return the convolution in the type of x and w."""
    window, group, channels = op.window(x.shape, w.shape), op.group, w.shape[0]
    if not x.size or not w.size:
        return _nothing((x.shape[0], channels, *window.outputs), b, x.dtype)
    if w.shape[1] == 1 and group > 1:
        y = _depthwise(x, w, window)
    else:
        y = np.empty((x.shape[0], channels, *window.outputs), x.dtype)
        _multiply(window.pad(x, 0), w.reshape(group, channels // group, -1), y, window)
    if b is not None:
        y += _by_channel(b, y)
    return y


def _nothing(shape: Shape, b: Array | None, dtype: np.dtype[Any]) -> Array:
    """Return sums of nothing, and the bias."""
    y = np.zeros(shape, dtype)
    return y if b is None else (y + _by_channel(b, y)).astype(dtype, copy=False)


def _of_nothing(make: Body, node: Node) -> Sequence[str]:
    """Add what makes the result of a node whose input has no elements: its bias."""
    _, _, b = (*node.inputs, "")[:3]
    out = make.graph.specs[node.outputs[0]]
    if not b:
        return [make.zeros(out.dtype, *out.dims)]
    column = make.reshape(b, 1, out.dims[1], *(1,) * (len(out.dims) - 2))
    return [make.add("Expand", column, make.ints(*out.dims))]


def _depthwise(x: Array, w: Array, window: Window) -> Array:
    n, c = x.shape[:2]
    padded = window.pad(x, 0)[:, :, None]
    weights = w.reshape(1, c, w.shape[0] // c, *(1,) * window.rank, -1)
    y = np.zeros((n, c, w.shape[0] // c, *window.outputs), x.dtype)
    product = np.empty_like(y)
    for number, at in enumerate(window.taps()):
        y += np.multiply(window.tap(padded, at), weights[..., number], out=product)
    return y.reshape(n, w.shape[0], *window.outputs)


def _multiply(images: Array, weights: Array, out: Array, window: Window) -> None:
    """Write weights (group, out, in * taps) times the patches of padded images into `out`.

    Each image has a product of its own, so that its numbers do not depend on the others; small images share a call.
    """
    group, each, inner = weights.shape
    patches = window.patches(images)
    rows, row = window.outputs[0], prod(window.outputs[1:])
    nbytes = group * inner * row * images.itemsize
    step, many = max(SCRATCH_BYTES // nbytes, 1), max(SHARED_BYTES // (nbytes * rows), 1)
    for begin, first in product(range(0, len(images), many), range(0, rows, step)):
        some, last = slice(begin, begin + many), min(first + step, rows)
        columns = patches[(some, *(slice(None),) * (1 + window.rank), slice(first, last))]
        part = np.matmul(weights, columns.reshape(len(columns), group, inner, -1))
        out[some, :, first:last] = part.reshape(len(columns), group * each, last - first, *window.outputs[1:])
