"""Pools: the largest, the mean or a norm of a window, or of the whole image."""

from __future__ import annotations

from collections.abc import Sequence
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
from weft.ops.conv import float_type
from weft.ops.elementwise import is_plain, widen
from weft.ops.shape import given, sized, unfit
from weft.ops.window import Window, slide


@op_dataclass
class Pool(Op):
    """What the pools with a window have in common."""

    most_inputs: ClassVar[int | None] = 1
    flags: ClassVar[tuple[str, ...]] = ("ceil_mode",)
    by_image: ClassVar[bool] = True
    kernel_shape: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def window(self, x: Shape) -> Window:
        """Return the window for an input of this shape."""
        return slide(
            x[2:], self.kernel_shape, self.strides, self.dilations, self.pads, self.auto_pad, self.ceil_mode
        )

    def output(self, x: TensorSpec) -> TensorSpec:
        """Return the spec of the pooled tensor; ModelError if the window does not fit."""
        if len(x.dims) != len(self.kernel_shape) + 2:
            raise unfit(f"a window of {self.kernel_shape} does not fit an input of shape {x.dims}")
        window = self.window(x.dims)
        sized((*x.dims[:2], *window.padded), x.dtype)
        return sized((*x.dims[:2], *window.outputs), x.dtype)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return one for each output element and each position of the window."""
        return prod(outputs[0]) * prod(self.kernel_shape)


@standard_op(flags=("ceil_mode", "storage_order"))
class MaxPool(Pool):
    """The largest input in a sliding window, and its flat index if the node has 2 `outputs`."""

    storage_order: int = 0
    outputs: int = 1

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        if x.dtype is DType.BOOL or self.storage_order not in (0, 1):
            raise unfit(f"MaxPool of {x.dtype.value} with storage_order {self.storage_order} is undefined")
        y = self.output(x)
        return (y, TensorSpec(y.shape, DType.INT64))[: max(self.outputs, 1)]

    def fill(self, outputs: Sequence[Array], *inputs: Array | None) -> bool:
        """Pool into `outputs`; False where indices are asked for."""
        x = given(inputs, 0)
        if self.outputs > 1 or not is_plain(x):
            return False
        fold(x, self.window(x.shape), np.maximum, lowest(x.dtype), outputs[0])
        return True

    @filled_by(fill)
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = given(inputs, 0)
        window = self.window(x.shape)
        y = np.empty((*x.shape[:2], *window.outputs), x.dtype)
        fold(x, window, np.maximum, lowest(x.dtype), y)
        return (y, self._indices(window.pad(x, lowest(x.dtype)), window)) if self.outputs > 1 else (y,)

    def _indices(self, padded: Array, window: Window) -> Array:
        """Return the index, in the whole input, of the first largest value of each window."""
        lead = padded.shape[: -window.rank]
        best = np.full((*lead, *window.outputs), np.nan if padded.dtype.kind == "f" else 0, padded.dtype)
        place = np.zeros(best.shape, np.int64)
        found = np.zeros(best.shape, np.bool_)
        for at in window.taps():
            value = window.tap(padded, at)
            where, inside = self._places(at, window)
            better = inside & (~found | (value > best))
            best, place = np.where(better, value, best), np.where(better, where, place)
            found |= better
        planes = np.arange(prod(lead), dtype=np.int64).reshape(*lead, *(1,) * window.rank)
        return np.asarray(place + planes * prod(window.inputs))

    def _places(self, at: Shape, window: Window) -> tuple[Array, Array]:
        """Return the flat index within a plane that each output reads at this tap, and whether it exists."""
        order = range(window.rank) if self.storage_order == 0 else reversed(range(window.rank))
        index, inside = np.zeros((), np.int64), np.ones((), np.bool_)
        for axis in order:
            place = np.arange(window.outputs[axis], dtype=np.int64) * window.strides[axis]
            place += at[axis] * window.dilations[axis] - window.begin[axis]
            place = place.reshape(-1, *(1,) * (window.rank - 1 - axis))
            inside = inside & (place >= 0) & (place < window.inputs[axis])
            index = index * window.inputs[axis] + place
        return index, inside


@standard_op(type="weft::PlanarMaxPool")
class PlanarMaxPool(MaxPool):
    """MaxPool of any numbers, with indices, in NCHW: what takes the place of one that a device does not run packed."""

    by_image: ClassVar[bool] = False  # indices count from the first image


@decomposition("MaxPool")
def _planar(op: MaxPool, make: Body, node: Node) -> Sequence[str]:
    return make.all(PlanarMaxPool.type, *node.inputs, made=len(node.outputs), **op.attributes())


@standard_op(op_class="reduction", flags=("ceil_mode", "count_include_pad"))
class AveragePool(Pool):
    """The mean of the inputs in a sliding window; padding counts as zeros if `count_include_pad`."""

    count_include_pad: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        float_type(given(inputs, 0))
        return (self.output(given(inputs, 0)),)

    def fill(self, outputs: Sequence[Array], *inputs: Array | None) -> bool:
        """Pool into `outputs`; False for floats of 16 bits."""
        x, (out,) = given(inputs, 0), outputs
        if not is_plain(x):
            return False
        window = self.window(x.shape)
        with np.errstate(all="ignore"):
            fold(x, window, np.add, 0, out, self.counts(window).astype(x.dtype))
        return True

    @filled_by(fill)
    def reference(self, *inputs: Array | None) -> Array:
        x = widen(given(inputs, 0))
        y = np.empty((*x.shape[:2], *self.window(x.shape).outputs), x.dtype)
        self.fill([y], x)
        return y.astype(given(inputs, 0).dtype, copy=False)

    def counts(self, window: Window) -> Array:
        """Return the divisor of each output's sum, in the shape of `window.outputs`.

        With ceil_mode, what the last window covers beyond the padding never counts.
        """
        counts = np.ones((), np.int64)
        for axis in range(window.rank):
            first = np.arange(window.outputs[axis]) * window.strides[axis] - window.begin[axis]
            places = first[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
            low = -window.begin[axis] if self.count_include_pad else 0
            high = window.inputs[axis] + (window.end[axis] if self.count_include_pad else 0)
            counts = counts[..., None] * ((places >= low) & (places < high)).sum(axis=1)
        return np.maximum(counts, 1)


@standard_op(op_class="reduction")
class LpPool(Pool):
    """The p-norm of the inputs in a sliding window."""

    p: int = 2

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        float_type(given(inputs, 0))
        _check_norm(self.p)
        return (self.output(given(inputs, 0)),)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        window = self.window(x.shape)
        powers = np.abs(widen(x)) ** self.p
        total = np.empty((*x.shape[:2], *window.outputs), powers.dtype)
        fold(powers, window, np.add, 0, total)
        return np.asarray(total ** (1 / self.p)).astype(x.dtype, copy=False)


@standard_op(type="weft::PlanarAveragePool")
class PlanarAveragePool(AveragePool):
    """AveragePool in NCHW: what takes the place of one of float64, which devices do not run packed."""


@standard_op(type="weft::PlanarLpPool")
class PlanarLpPool(LpPool):
    """LpPool in NCHW: what takes the place of one of float64, which devices do not run packed."""


@decomposition("AveragePool")
@decomposition("LpPool")
def _planar_sums(op: AveragePool | LpPool, make: Body, node: Node) -> Sequence[str]:
    if make.dtype(node.inputs[0]) is not DType.FLOAT64:
        return []
    planar = PlanarAveragePool if isinstance(op, AveragePool) else PlanarLpPool
    return make.all(planar.type, *node.inputs, made=1, **op.attributes())


@op_dataclass
class GlobalPool(Op):
    """What the pools over all spatial dimensions have in common."""

    op_class: ClassVar[OpClass] = "reduction"
    most_inputs: ClassVar[int | None] = 1
    by_image: ClassVar[bool] = True

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        float_type(x)
        if len(x.dims) < 3 or prod(x.dims[2:]) == 0:
            raise unfit(f"there is nothing to pool in shape {x.dims}")
        return (TensorSpec((*x.dims[:2], *(1,) * (len(x.dims) - 2)), x.dtype),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return one for each input element."""
        return prod(inputs[0] or ())


@standard_op
class GlobalAveragePool(GlobalPool):
    """The mean of each channel."""

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        axes = tuple(range(2, x.ndim))
        return np.asarray(widen(x).mean(axis=axes, keepdims=True)).astype(x.dtype, copy=False)


@standard_op(op_class="exact")
class GlobalMaxPool(GlobalPool):
    """The largest value of each channel."""

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        return np.asarray(x.max(axis=tuple(range(2, x.ndim)), keepdims=True))


@standard_op
class GlobalLpPool(GlobalPool):
    """The p-norm of each channel."""

    p: int = 2

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        _check_norm(self.p)
        return super().infer(inputs, constants)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        total = (np.abs(widen(x)) ** self.p).sum(axis=tuple(range(2, x.ndim)), keepdims=True)
        return np.asarray(total ** (1 / self.p)).astype(x.dtype, copy=False)


def _check_norm(p: int) -> None:
    if p < 1:
        raise ModelError(f"p is {p}", why="a norm needs p of at least 1")


@decomposition("GlobalLpPool")
def _global_norm(op: GlobalLpPool, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    axes = make.constant(np.arange(2, len(make.dims(x))))
    if op.p <= 2:
        return [make.add(f"ReduceL{op.p}", x, axes)]
    p, root = (make.constant(np.asarray(power, np.float32)) for power in (op.p, 1 / op.p))
    return [make.add("Pow", make.add("ReduceSum", make.add("Pow", make.add("Abs", x), p), axes), root)]


@decomposition("GlobalAveragePool")
@decomposition("GlobalMaxPool")
def _global_pool(op: GlobalPool, make: Body, node: Node) -> Sequence[str]:
    """Return a reduction for float64: packed kernels compute in float32."""
    (x,) = node.inputs
    if make.dtype(x) is not DType.FLOAT64:
        return []
    axes = make.constant(np.arange(2, len(make.dims(x))))
    return [make.add("ReduceMax" if isinstance(op, GlobalMaxPool) else "ReduceMean", x, axes)]


def lowest(dtype: np.dtype[Any]) -> Any:
    """Return the least number of a type."""
    return -np.inf if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).min


BLOCK_BYTES = 1 << 18
"""Up to how many bytes of planes are pooled at a time: they stay in a core's cache."""


def fold(
    x: Array, window: Window, combine: np.ufunc, first: float, out: Array, divisor: Array | None = None
) -> None:
    """Put an associative function over each window of x into `out`, one dimension after the other.

    Places outside of x count as `first`. What comes out is divided by the `divisor` of each place.
    """
    planes, results = x.reshape(-1, *window.inputs), out.reshape(-1, *window.outputs)
    step = max(BLOCK_BYTES // max(prod(window.inputs) * x.itemsize, 1), 1)

    def pool(start: int) -> None:
        part = planes[start : start + step]
        for axis in range(window.rank):
            last = axis == window.rank - 1
            shape = (len(part), *window.outputs[: axis + 1], *window.inputs[axis + 1 :])
            made = results[start : start + step] if last else np.empty(shape, x.dtype)
            _fold_axis(part, window, axis, combine, first, made)
            part = made
        if divisor is not None:
            np.divide(part, divisor, out=part)

    each_block(pool, range(0, len(planes), step))


def _fold_axis(part: Array, window: Window, axis: int, combine: np.ufunc, first: float, out: Array) -> None:
    """Combine along one dimension, of which the first axis of the arrays is none."""
    lead, stride, size = (slice(None),) * (axis + 1), window.strides[axis], window.inputs[axis]
    spans = []
    for tap in range(window.kernel[axis]):
        place = tap * window.dilations[axis] - window.begin[axis]  # what the first output reads
        low = max(-(place // stride), 0)
        high = min((size - 1 - place) // stride + 1, window.outputs[axis])
        if low < high:
            spans.append((low, high, place + low * stride))
    spans.sort(key=lambda span: span[0] - span[1])  # the one that reaches most outputs sets them
    if not spans or spans[0][:2] != (0, window.outputs[axis]):
        out[...] = first
        spans.insert(0, (0, 0, 0))
    for k, (low, high, place) in enumerate(spans):
        source = part[(*lead, slice(place, place + (high - low) * stride, stride))]
        target = out[(*lead, slice(low, high))]
        if k == 0:
            np.copyto(target, source)
        else:
            combine(target, source, out=target)
