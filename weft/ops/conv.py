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
from weft.core.graph.op import Constants, Op, OpClass, filled_by, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.core.host.threads import each_block
from weft.errors import ModelError
from weft.ops.elementwise import is_plain, widen
from weft.ops.shape import given, one_type, optional, sized, unfit
from weft.ops.window import Window, slide, slide_back

CACHE_BYTES = 2**20
"""Up to how many bytes of patches are copied and multiplied at a time."""
FEW_ROWS, FEW_COLUMNS = 8, 256
"""Products of fewer rows take less time than the copies of their patches; of fewer columns, BLAS is slow."""


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

    def fill(self, outputs: Sequence[Array], *inputs: Array | None) -> bool:
        """Convolve into `outputs`; False for floats of 16 bits."""
        x, w, b = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        if not is_plain(x):
            return False
        with np.errstate(all="ignore"):
            _convolve(x, w, b, self, outputs[0])
        return True

    @filled_by(fill)
    def reference(self, *inputs: Array | None) -> Array:
        x, w, b = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        y = np.empty((len(x), len(w), *self.window(x.shape, w.shape).outputs), widen(x).dtype)
        _convolve(widen(x), widen(w), b, self, y)
        return y.astype(x.dtype, copy=False)

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


def _convolve(x: Array, w: Array, b: Array | None, op: Convolution, out: Array) -> None:
    """Put the convolution into `out`, in the type of x and w."""
    window, group, channels = op.window(x.shape, w.shape), op.group, w.shape[0]
    if not x.size or not w.size:
        out[...] = _nothing(out.shape, b, x.dtype)
        return
    bias = None if b is None else b.astype(x.dtype, copy=False).reshape(group, -1, *(1,) * window.rank)
    _multiply(window.pad(x, 0), w.reshape(group, channels // group, -1), bias, out, window)


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


def _multiply(images: Array, weights: Array, bias: Array | None, out: Array, window: Window) -> None:
    """Write weights (group, out, in * taps) times the patches of padded images, plus the bias, into `out`.

    Each image has products of its own, so that its numbers do not depend on the others. Patches are copied and
    multiplied in blocks that stay in a core's cache: of several images and groups, or of some rows of one.
    """
    group, each, inner = weights.shape
    runs, pitch, tail = _runs(images, window, few=each < FEW_ROWS)
    rows, row, channels = window.outputs[0], prod(window.outputs[1:]), inner // prod(window.kernel)
    width = (pitch or row) * inner * images.itemsize
    some = min(max(CACHE_BYTES // (width * rows), 1), group)
    many = max(CACHE_BYTES // (width * rows * group), 1) if some == group else 1
    step = min(max(CACHE_BYTES // width, -(-FEW_COLUMNS // (pitch or row))), rows)
    lines = out.reshape(len(out), group, each, rows * row)

    def multiply(at: tuple[int, int, int]) -> None:
        begin, first, top = at
        block, last = (slice(begin, begin + many), slice(first, first + some)), min(top + step, rows)
        places = slice(top * pitch, (last - 1) * pitch + tail) if pitch else slice(top, last)
        read = slice(first * channels, (first + some) * channels)
        part = runs[(block[0], read, *(slice(None),) * window.rank, places)]
        target = lines[(*block, slice(None), slice(top * row, last * row))]
        columns = part.reshape(*target.shape[:2], inner, -1)
        shape = (*target.shape[:3], last - top, *window.outputs[1:])
        if pitch in (0, row):
            np.matmul(weights[block[1]], columns, out=target)
            shown = target.reshape(shape)
        else:
            wide = np.matmul(weights[block[1]], columns)
            steps = _steps(window)
            strides = (*wide.strides[:3], *(step * wide.itemsize for step in steps))
            shown = np.lib.stride_tricks.as_strided(wide, shape, strides)
        if bias is not None:
            np.add(shown, bias[block[1]], out=target.reshape(shape))
        elif pitch not in (0, row):
            target.reshape(shape)[...] = shown

    each_block(multiply, [*product(range(0, len(out), many), range(0, group, some), range(0, rows, step))], blas=True)


def _steps(window: Window) -> list[int]:
    """Return how many elements of a padded image lie between neighbours along each dimension."""
    padded = window.padded
    return [prod(padded[axis + 1 :]) for axis in range(len(padded))]


def _runs(images: Array, window: Window, *, few: bool) -> tuple[Array, int, int]:
    """Return a view (n, channels, *kernel, *places) of what each place of the result reads.

    With strides of 1, an image is one line of places: a tap reads a stretch of it, which is copied much faster than
    patches. The results between the end of a row and the beginning of the next are products in vain. Then how many
    places a row takes, and how many the last one, come with the view; else 0 and 0.
    """
    if window.is_pointwise:
        row = prod(window.outputs[1:])
        return images.reshape(*images.shape[:2], *window.kernel, prod(window.outputs)), row, row
    steps = _steps(window)
    length = sum((size - 1) * step for size, step in zip(window.outputs, steps, strict=True)) + 1
    in_vain = length - prod(window.outputs)
    if any(stride > 1 for stride in window.strides) or (in_vain > length // 8 and not few):
        return window.patches(images), 0, 0
    images = np.ascontiguousarray(images)
    size, lead = images.itemsize, images.strides[:2]
    inner = [step * dilation * size for step, dilation in zip(steps, window.dilations, strict=True)]
    shape = (*images.shape[:2], *window.kernel, length)
    runs = np.lib.stride_tricks.as_strided(images, shape, (*lead, *inner, size), writeable=False)
    return runs, steps[0], length - (window.outputs[0] - 1) * steps[0]
