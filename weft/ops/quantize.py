"""Quantised numbers, integers or small floats with a scale and a zero point: make, read and multiply them.

A number is (q - zero point) * scale. Sums of products of such integers are exact: they are made in int32, wrapping as
ONNX Runtime's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from weft.core.graph.composite import Body, Composite, decomposition, padded
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, OpClass, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.quantisation import Grid
from weft.core.graph.tensor import TensorSpec
from weft.ops.conv import Conv
from weft.ops.conversion import SATURATING, convert
from weft.ops.elementwise import (
    FLOATS,
    SHORT_FLOATS,
    Elementwise,
    Expression,
    Types,
    check_type,
    misfit,
    take_inputs,
    widen,
)
from weft.ops.gather import check_range
from weft.ops.matmul import product_shape
from weft.ops.shape import given, optional

QUANTISED: Types = frozenset(
    t for t in DType if (t.is_integer and t.bits <= 16) or (t.is_small_float and t is not DType.FLOAT8E8M0)
)
"""Types that QuantizeLinear makes."""
BYTES: Types = frozenset({DType.INT8, DType.UINT8})
SCALES: Types = FLOATS | {DType.FLOAT8E8M0}


@dataclass(frozen=True, slots=True)
class Spread:
    """How a scale is spread: one for the tensor, one for each index along an axis, or one for each block of indices.

    The tensor is (outer, size, inner) around the axis. The number for (o, a, i) is at
    `o * outer_step + a // block * block_step + i * inner_step`.
    """

    size: int
    inner: int
    block: int = 1
    outer_step: int = 0
    block_step: int = 0
    inner_step: int = 0

    @classmethod
    def of(cls, op: Op, x: Shape, scale: Shape, axis: int, block_size: int) -> Spread:
        """Return how a scale of that shape is spread over `x`; ModelError if it does not fit."""
        if prod(scale) == 1 and len(scale) < 2 and not block_size:
            return cls(1, 1)
        if not -len(x) <= axis < len(x):
            raise misfit(op, f"axis {axis} is outside of a tensor of shape {x}")
        axis %= len(x)
        size, inner = x[axis], prod(x[axis + 1 :])
        if not block_size:
            if scale != (size,):
                raise misfit(op, f"a scale of shape {scale} does not fit axis {axis} of {x}; it needs {(size,)}")
            return cls(size, inner, 1, 0, 1, 0)
        blocks = -(-size // block_size) if block_size > 0 else 0
        need = (*x[:axis], blocks, *x[axis + 1 :])
        if scale != need:
            raise misfit(op, f"a scale of shape {scale} does not fit blocks of {block_size} of {x}; it needs {need}")
        return cls(size, inner, block_size, blocks * inner, inner, 1)

    def over(self, values: Array, shape: Shape) -> Array:
        """Return the values, repeated so that they broadcast to a tensor of that shape."""
        if not prod(shape):
            return np.zeros(shape, values.dtype)
        if not self.block_step:
            return values.reshape(())
        if not self.inner_step:
            return np.repeat(values.reshape(1, -1, 1), self.inner, axis=2).repeat(
                prod(shape) // max(self.size * self.inner, 1), axis=0
            ).reshape(shape)
        blocks = values.reshape(-1, self.outer_step // max(self.inner, 1), self.inner)
        return np.repeat(blocks, self.block, axis=1)[:, : self.size].reshape(shape)


def quantised(x: Array, to: DType) -> Array:
    """Return floats, in steps of the scale and moved by the zero point, as the nearest numbers of an integer type.

    NaN becomes the least, as in onnxruntime.
    """
    least, most = to.limits
    return np.fmin(np.fmax(x, least), most).astype(np.int32).astype(to.numpy)


def _alike(zero: TensorSpec, scale: TensorSpec) -> bool:
    """Tell whether a zero point has the scale's shape; one number may be a scalar or a list."""
    return zero.dims == scale.dims or (zero.size == scale.size == 1 and max(len(zero.dims), len(scale.dims)) < 2)


def _optional(inputs: Sequence[Array | None], count: int) -> list[Array | None]:
    return [*inputs[:count], *[None] * (count - len(inputs))]


@standard_op
class QuantizeLinear(Op):
    """Compute x / scale, rounded, plus a zero point, as an integer or a small float; inputs x, scale, zero point.

    The result has the zero point's type, or `output_dtype`, or is uint8. The division is made in `precision` (None: in
    the scale's type, float32 at least).
    """

    flags: ClassVar[tuple[str, ...]] = ("saturate",)
    axis: int = 1
    block_size: int = 0
    output_dtype: DType | None = None
    precision: DType | None = None
    saturate: int = 1

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the shape of x in the quantised type."""
        x, scale, zero = take_inputs(self, inputs, 2, 1)
        assert x is not None and scale is not None
        check_type(self, x, FLOATS | {DType.INT32}, "x")
        check_type(self, scale, SCALES | {DType.INT32}, "the scale")
        Spread.of(self, x.dims, scale.dims, self.axis, self.block_size)
        if zero is not None and not _alike(zero, scale):
            raise misfit(self, f"scale and zero point must have one shape, got {scale} and {zero}")
        if zero is not None and self.output_dtype not in (None, zero.dtype):
            raise misfit(self, f"output_dtype is {self.output_dtype}, and the zero point is {zero}")
        made = TensorSpec(x.shape, zero.dtype if zero else self.output_dtype or DType.UINT8)
        check_type(self, made, QUANTISED, "the result")
        if self.precision is not None and self.precision not in FLOATS:
            raise misfit(self, f"precision is {self.precision.value}; it must be a float type")
        return (made,)

    def reference(self, *inputs: Array | None) -> Array:
        """Return the quantised numbers."""
        x, scale, zero = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        to = DType.of(zero.dtype) if zero is not None else self.output_dtype or DType.UINT8
        spread = Spread.of(self, x.shape, scale.shape, self.axis, self.block_size)
        wide = (self.precision or DType.FLOAT32).numpy
        kinds = np.float64 if np.float64 in (x.dtype, wide) else np.float32
        steps = spread.over(scale, x.shape).astype(wide).astype(kinds)
        moved = np.divide(x.astype(kinds).astype(wide).astype(kinds), steps).astype(wide).astype(kinds)
        if to.is_integer:
            moved = np.rint(moved)
        if zero is not None and to not in SATURATING:
            moved = moved + spread.over(zero, x.shape).astype(np.int32 if to.is_integer else np.float32)
        return quantised(moved, to) if to.is_integer else convert(moved, to, bool(self.saturate))


@standard_op
class Quotient(QuantizeLinear):
    """Compute x / scale in x's type, correctly rounded on every device (Div need not be on GPUs).

    Scales of quantised numbers are such quotients: one ulp moves the numbers that lie next to a tie.
    """

    type: ClassVar[str] = "weft::Quotient"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the spec of x."""
        x, scale = take_inputs(self, inputs, 2)
        assert x is not None and scale is not None
        check_type(self, x, FLOATS, "x")
        check_type(self, scale, FLOATS, "the scale")
        Spread.of(self, x.dims, scale.dims, self.axis, self.block_size)
        return (x,)

    def reference(self, *inputs: Array | None) -> Array:
        """Return the quotients."""
        x, scale = given(inputs, 0), given(inputs, 1)
        steps = Spread.of(self, x.shape, scale.shape, self.axis, self.block_size).over(scale, x.shape)
        return np.asarray(np.divide(widen(x), widen(steps))).astype(x.dtype)


@standard_op
class DequantizeLinear(Op):
    """Compute (x - zero point) * scale as floats; inputs x, scale, zero point.

    The result has the scale's type, or `output_dtype`.
    """

    axis: int = 1
    block_size: int = 0
    output_dtype: DType | None = None

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the shape of x in the float type."""
        x, scale, zero = take_inputs(self, inputs, 2, 1)
        assert x is not None and scale is not None
        check_type(self, x, QUANTISED | {DType.INT32}, "x")
        check_type(self, scale, SCALES, "the scale")
        Spread.of(self, x.dims, scale.dims, self.axis, self.block_size)
        if zero is not None and not (_alike(zero, scale) and zero.dtype is x.dtype):
            raise misfit(self, f"the zero point is {zero}; it must have x's type and the scale's shape, {scale}")
        made = TensorSpec(x.shape, self.output_dtype or scale.dtype)
        check_type(self, made, FLOATS, "the result")
        return (made,)

    def reference(self, *inputs: Array | None) -> Array:
        """Return floats."""
        x, scale, zero = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        to = (self.output_dtype or DType.of(scale.dtype)).numpy
        spread = Spread.of(self, x.shape, scale.shape, self.axis, self.block_size)
        integer = DType.of(x.dtype).is_integer
        exact = x.astype(np.int64 if integer else np.float32)
        if zero is not None and integer:
            exact = exact - spread.over(zero, x.shape).astype(np.int64)
        return (exact.astype(np.float32) * spread.over(scale, x.shape).astype(np.float32)).astype(to)


@standard_op
class FakeQuantize(Elementwise):
    """Round to the numbers that integers of a type stand for: QuantizeLinear, then DequantizeLinear of its result.

    One scale and one zero point are for all. NaN becomes the least number.
    """

    type: ClassVar[str] = "weft::FakeQuantize"
    types: ClassVar[Types] = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
    op_class: ClassVar[OpClass] = "exact"
    scale: float
    zero: int = 0
    to: DType = DType.UINT8

    @property
    def grid(self) -> Grid:
        """Return the numbers that the result may have."""
        return Grid(self.to, (self.scale,), (self.zero,))

    def check(self, specs: Sequence[TensorSpec]) -> None:
        """Refuse other types than integers of up to 16 bits, a zero point outside of the type, and odd scales."""
        super().check(specs)
        if self.to not in QUANTISED or not self.to.is_integer:
            raise misfit(self, f"it quantises to {self.to.value}; that must be an integer of up to 16 bits")
        if not (self.scale > 0 and np.isfinite(self.scale)):
            raise misfit(self, f"its scale is {self.scale}; it must be a positive number")
        least, most = self.to.limits
        if not least <= self.zero <= most:
            raise misfit(self, f"its zero point {self.zero} is no {self.to.value}")

    def compute(self, x: Array) -> Array:
        """Return the nearest numbers."""
        scale = np.asarray(self.scale, np.float32)
        least, most = self.grid.limits
        steps = np.fmin(np.fmax(np.rint(np.divide(x, scale)), np.float32(least)), np.float32(most))
        return np.asarray(steps * scale + np.float32(0))  # no zero has a sign

    def expression(self, present: tuple[bool, ...]) -> Expression:
        """Return the rounding with the scale, its reciprocal and the limits as numbers of the kernel.

        A number that lies between two others may become the other one: a product is a rounding less exact.
        """
        steps = "({0}) * {1}"
        text = f"(({steps} > {{3}} ? ({steps} < {{4}} ? round_near({steps}) : {{4}}) : {{3}}) * {{2}})"
        return Expression(text, (1 / self.scale, self.scale, *map(float, self.grid.limits)))


@decomposition("weft::FakeQuantize")
def _fake_quantize(op: FakeQuantize, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    scale = make.constant(np.asarray(op.scale, make.dtype(x).numpy))
    zero = make.constant(np.asarray(op.zero, op.to.numpy))
    return [make.add("DequantizeLinear", make.add("QuantizeLinear", x, scale, zero), scale, zero)]


@standard_op
class DynamicQuantizeLinear(Op):
    """Quantise floats to uint8 with the scale and the zero point that fit their range; outputs y, scale, zero point."""

    most_inputs: ClassVar[int | None] = 1
    wide_outputs: ClassVar[tuple[int, ...]] = (1,)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return y, and two scalars."""
        (x,) = take_inputs(self, inputs, 1)
        assert x is not None
        check_type(self, x, FLOATS, "x")
        return TensorSpec(x.shape, DType.UINT8), TensorSpec((), DType.FLOAT32), TensorSpec((), DType.UINT8)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return y, its scale and its zero point; of zeros alone the scale is 1. NaN does not count in the range."""
        x = given(inputs, 0)
        x = x.astype(np.float32)
        most, least = (pick.reduce(x, axis=None, initial=np.float32(0)) for pick in (np.fmax, np.fmin))
        with np.errstate(all="ignore"):  # a range may be infinite
            scale = np.float32(most - least) / np.float32(255) if most > least else np.float32(1)
            zero = quantised(np.rint(-least / scale), DType.UINT8)
            y = quantised(np.rint(x / scale) + zero, DType.UINT8)
        return y, np.asarray(scale, np.float32), np.asarray(zero)


def _centred(x: Array, zero: Array | None, axis: int) -> Array:
    """Return integers minus their zero point, one for all or one a place of an axis, as int32."""
    wide = x.astype(np.int32)
    if zero is None:
        return wide
    moved = zero.astype(np.int32)
    if zero.size == 1:
        return wide - moved.reshape(())
    if zero.ndim == 1:
        moved = moved.reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim))
    return wide - moved


def _check_zero(op: Op, what: str, x: TensorSpec, zero: TensorSpec | None, axis: int) -> None:
    """Raise ModelError unless a zero point fits what it belongs to."""
    if zero is None:
        return
    if zero.dtype is not x.dtype:
        raise misfit(op, f"the zero point of {what} is {zero}; it must be {x.dtype.value}")
    _check_spread(op, f"the zero point of {what}", x, zero, axis)


def _check_spread(op: Op, what: str, x: TensorSpec, given: TensorSpec, axis: int) -> None:
    """Raise ModelError unless there is one number for all, or one for each place of an axis."""
    if given.size == 1:
        return
    places = x.dims[axis]
    alike = len(given.dims) == len(x.dims) and given.dims[axis] == places
    if given.dims != (places,) and not (alike and all(g in (1, d) for g, d in zip(given.dims, x.dims, strict=True))):
        raise misfit(op, f"{what} is {given}; it must be one number, or one for each of the {places} on axis {axis}")


@standard_op
class MatMulInteger(Op):
    """Compute the matrix product of integers of eight bits, exactly; inputs a, b and their zero points."""

    op_class: ClassVar[OpClass] = "exact"
    wide_outputs: ClassVar[tuple[int, ...]] = (0,)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the product's shape in int32."""
        a, b, a_zero, b_zero = take_inputs(self, inputs, 2, 2)
        assert a is not None and b is not None
        check_type(self, a, BYTES, "the first matrix")
        check_type(self, b, BYTES, "the second matrix")
        shape = product_shape(self, a, b)
        _check_zero(self, "the first matrix", a, a_zero, max(len(a.dims) - 2, 0))
        _check_zero(self, "the second matrix", b, b_zero, len(b.dims) - 1)
        return (TensorSpec(shape, DType.INT32),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two operations for each product."""
        return 2 * prod(outputs[0]) * (inputs[0] or (1,))[-1]

    def reference(self, *inputs: Array | None) -> Array:
        """Return int32."""
        a, b, a_zero, b_zero = given(inputs, 0), given(inputs, 1), optional(inputs, 2), optional(inputs, 3)
        left = _centred(a, a_zero, max(a.ndim - 2, 0))
        return exact_product(left, _centred(b, b_zero, b.ndim - 1))


def exact_product(a: Array, b: Array) -> Array:
    """Return the matrix product of int32 arrays of at most nine bits a number, as int32.

    A product of two such numbers takes 18 bits, so float64 sums 2^35 of them exactly, and numpy multiplies floats
    far faster than integers.
    """
    return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64).astype(np.int32)


@standard_op
class QLinearMatMul(Op):
    """Compute a matrix product of quantised numbers, integers or floats of eight bits, as a quantised one.

    Inputs: a, its scale and zero point, b, its scale and zero point, the result's scale and zero point.
    """

    op_class: ClassVar[OpClass] = "exact"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the product's shape in the type of the result's zero point."""
        given = [s for s in take_inputs(self, inputs, 8) if s is not None]
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = given
        for what, spec in {"a": a, "b": b, "the result": y_zero}.items():
            check_type(self, spec, BYTES | SHORT_FLOATS, what)
        for spec in (a_scale, b_scale, y_scale):
            check_type(self, spec, FLOATS, "a scale")
        rows, columns = max(len(a.dims) - 2, 0), len(b.dims) - 1
        _check_zero(self, "a", a, a_zero, rows)
        _check_zero(self, "b", b, b_zero, columns)
        _check_spread(self, "the scale of a", a, a_scale, rows)
        _check_spread(self, "the scale of b", b, b_scale, columns)
        if any(s.dtype in SHORT_FLOATS for s in (a, b, y_zero)) and (a_scale.size, b_scale.size) != (1, 1):
            raise misfit(self, f"floats of eight bits have one scale for all, got {a_scale} and {b_scale}")
        if y_scale.size != 1 or y_zero.size != 1:
            raise misfit(self, f"the result has one scale and one zero point, got {y_scale} and {y_zero}")
        return (TensorSpec(product_shape(self, a, b), y_zero.dtype),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two operations for each product."""
        return 2 * prod(outputs[0]) * (inputs[0] or (1,))[-1]

    def reference(self, *inputs: Array | None) -> Array:
        """Return quantised numbers."""
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (np.asarray(i) for i in inputs[:8])
        if not all(DType.of(each.dtype).is_integer for each in (a, b, y_zero)):
            read = DequantizeLinear(output_dtype=DType.FLOAT32).reference
            sides = (read(a, a_scale.reshape(()), a_zero.reshape(())), read(b, b_scale.reshape(()), b_zero.reshape(())))
            return QuantizeLinear().reference(np.matmul(*sides), y_scale.reshape(()), y_zero.reshape(()))
        total = MatMulInteger().reference(a, b, a_zero, b_zero)
        step = as_column(a_scale, a.ndim) * widen(b_scale)
        return requantised(total, step, y_scale, y_zero)


def as_column(scale: Array, rank: int) -> Array:
    """Return scales of the rows of a matrix, so that they broadcast to it; one number stays one."""
    wide = widen(scale)
    return wide.reshape(()) if wide.size == 1 else wide.reshape(-1, 1) if wide.ndim == 1 and rank > 1 else wide


def requantised(total: Array, step: Array, y_scale: Array, y_zero: Array) -> Array:
    """Return sums in units of `step` as numbers with another scale and a zero point."""
    factor = np.asarray(step, np.float32) / widen(y_scale).reshape(()).astype(np.float32)
    moved = np.rint(total.astype(np.float32) * factor) + y_zero.astype(np.float32).reshape(())
    return quantised(moved, DType.of(y_zero.dtype))


@op_dataclass
class _IntegerConv(Op):
    """The attributes of a convolution, of integers."""

    op_class: ClassVar[OpClass] = "exact"
    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def conv(self) -> Conv:
        """The convolution of floats with these attributes."""
        return Conv(self.auto_pad, self.dilations, self.group, self.kernel_shape, self.pads, self.strides)

    def check_conv(
        self, x: TensorSpec, w: TensorSpec, x_zero: TensorSpec | None, w_zero: TensorSpec | None
    ) -> Shape:
        """Return the shape of the result; ModelError for inputs that do not fit."""
        check_type(self, x, BYTES, "x")
        check_type(self, w, BYTES, "the weights")
        floats = [TensorSpec(s.shape, DType.FLOAT32) for s in (x, w)]
        (made,) = self.conv.infer(floats, (None, None))
        if x_zero is not None and (x_zero.size != 1 or x_zero.dtype is not x.dtype):
            raise misfit(self, f"the zero point of x is {x_zero}; it must be one {x.dtype.value}")
        _check_zero(self, "the weights", w, w_zero, 0)
        return made.dims

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two for each output element and each weight of its channel."""
        return 2 * prod(outputs[0]) * prod((inputs[self.weights_at] or ())[1:])

    weights_at: ClassVar[int] = 1
    """Which input the weights are."""

    def exact_sums(self, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None) -> Array:
        """Return int32 sums: a padded place counts as zero, which is x's zero point."""
        left, right = _centred(x, x_zero, 1), _centred(w, w_zero, 0)
        # Sums of up to 2^35 products of nine bits each are exact in float64.
        found = self.conv.reference(left.astype(np.float64), right.astype(np.float64))
        return np.rint(found).astype(np.int64).astype(np.int32)


@standard_op
class ConvInteger(_IntegerConv):
    """Compute a convolution of integers of eight bits, exactly; inputs x, weights and their zero points."""

    wide_outputs: ClassVar[tuple[int, ...]] = (0,)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the convolution's shape in int32."""
        x, w, x_zero, w_zero = take_inputs(self, inputs, 2, 2)
        assert x is not None and w is not None
        return (TensorSpec(self.check_conv(x, w, x_zero, w_zero), DType.INT32),)

    def reference(self, *inputs: Array | None) -> Array:
        """Return int32."""
        x, w, x_zero, w_zero = given(inputs, 0), given(inputs, 1), optional(inputs, 2), optional(inputs, 3)
        return self.exact_sums(x, w, x_zero, w_zero)


@standard_op
class QLinearConv(_IntegerConv):
    """Compute a convolution of quantised numbers as a quantised one.

    Inputs: x, its scale and zero point, weights, their scale and zero point, the result's scale and zero point, and
    an int32 bias in units of the two scales' product.
    """

    weights_at: ClassVar[int] = 3

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the convolution's shape in the type of the result's zero point."""
        *required, bias = take_inputs(self, inputs, 8, 1)
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (s for s in required if s is not None)
        shape = self.check_conv(x, w, x_zero, w_zero)
        check_type(self, y_zero, BYTES, "the result")
        for spec in (x_scale, w_scale, y_scale):
            check_type(self, spec, FLOATS, "a scale")
        if any(s.size != 1 for s in (x_scale, y_scale, y_zero)):
            raise misfit(self, f"x and the result have one scale each, got {x_scale}, {y_scale} and {y_zero}")
        _check_spread(self, "the scale of the weights", w, w_scale, 0)
        if bias is not None and (bias.dtype is not DType.INT32 or bias.dims != (w.dims[0],)):
            raise misfit(self, f"the bias is {bias}; it must be int32[{w.dims[0]}]")
        return (TensorSpec(shape, y_zero.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        """Return quantised numbers."""
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = _optional(inputs, 9)
        assert x is not None and w is not None and x_scale is not None and w_scale is not None
        assert y_scale is not None and y_zero is not None
        total = self.exact_sums(x, w, x_zero, w_zero)
        column = (-1, *(1,) * (x.ndim - 2))
        total = total if bias is None else total + bias.reshape(column)
        each = widen(w_scale).reshape(() if w_scale.size == 1 else column)
        return requantised(total, widen(x_scale).reshape(()) * each, y_scale, y_zero)


# -- of com.microsoft ----------------------------------------------------------------------------------------


@standard_op
class MicrosoftQuantizeLinear(QuantizeLinear):
    """ONNX's QuantizeLinear under its name in the domain com.microsoft."""

    type: ClassVar[str] = "com.microsoft::QuantizeLinear"


@standard_op
class MicrosoftDequantizeLinear(DequantizeLinear):
    """ONNX's DequantizeLinear under its name in the domain com.microsoft."""

    type: ClassVar[str] = "com.microsoft::DequantizeLinear"


def unpacked(packed: Array, bits: int, count: int) -> Array:
    """Return the first `count` numbers of `bits` bits on the last axis of bytes, lowest bits first, as uint8."""
    if bits == 8:
        return packed[..., :count]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers: Array = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)[..., :count]


@standard_op
class MatMulNBits(Op):
    """Compute a times the transpose of weights that are quantised in blocks of a row, plus a bias.

    Inputs: a, weights uint8 (N, blocks, bytes of a block), scales (N * blocks), zero points (packed like weights, or
    floats like scales; the middle of the range where they are missing), g_idx with the block of each of K columns, by
    default as they lie, a bias (N).
    """

    type: ClassVar[str] = "com.microsoft::MatMulNBits"
    op_class: ClassVar[OpClass] = "reduction"
    K: int = 0
    N: int = 0
    bits: int = 4
    block_size: int = 32
    accuracy_level: int = 0
    weight_prepacked: int = 0

    @property
    def blocks(self) -> int:
        """The blocks of a row."""
        return -(-self.K // self.block_size)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return a's shape with N in the place of K."""
        a, weights, scales, zero, order, bias = take_inputs(self, inputs, 3, 3)
        assert a is not None and weights is not None and scales is not None
        check_type(self, a, FLOATS, "a")
        check_type(self, scales, FLOATS, "the scales")
        check_type(self, weights, frozenset({DType.UINT8}), "the weights")
        if self.bits not in (2, 4, 8) or self.block_size < 8 or self.block_size & self.block_size - 1:
            raise misfit(self, "bits must be 2, 4 or 8, and block_size a power of two from 8 on")
        if self.weight_prepacked:
            raise misfit(self, "weights in another order (weight_prepacked) are not supported")
        if order is not None and (order.dtype is not DType.INT32 or len(order.dims) != 1 or order.dims[0] < self.K):
            raise misfit(self, f"g_idx is {order}; it must be int32[{self.K}]")
        if a.dims[-1:] != (self.K,) or weights.size != self.N * self.blocks * self.block_size * self.bits // 8:
            raise misfit(self, f"{a} and {weights} do not fit K={self.K} and N={self.N}")
        if scales.size != self.N * self.blocks:
            raise misfit(self, f"the scales are {scales}; {self.N * self.blocks} are needed")
        packed = self.N * -(-self.blocks * self.bits // 8)
        if zero is not None and zero.size != (packed if zero.dtype is DType.UINT8 else scales.size):
            raise misfit(self, f"the zero points are {zero}; {packed} bytes, or {scales.size} floats, are needed")
        if bias is not None and bias.dims != (self.N,):
            raise misfit(self, f"the bias is {bias}; it must have {self.N} elements")
        return (TensorSpec((*a.shape[:-1], self.N), a.dtype),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return two operations for each product."""
        return 2 * prod(outputs[0]) * self.K

    def weights(self, packed: Array, scales: Array, zero: Array | None, order: Array | None) -> Array:
        """Return the weights as float32 (N, K)."""
        n, blocks, size = self.N, self.blocks, self.block_size
        numbers = unpacked(packed.reshape(n, blocks, -1), self.bits, size).reshape(n, -1)[:, : self.K]
        if zero is None:
            middle = np.full((n, blocks), 1 << self.bits - 1, np.float32)
        elif zero.dtype == np.uint8:
            middle = unpacked(zero.reshape(n, -1), self.bits, blocks).astype(np.float32)
        else:
            middle = zero.astype(np.float32).reshape(n, blocks)
        block = np.arange(self.K) // size if order is None else order[: self.K]
        if order is not None and not 0 <= int(block.min(initial=0)) <= int(block.max(initial=0)) < blocks:
            raise misfit(self, f"g_idx names the blocks {block.min()} to {block.max()}, and there are {blocks}")
        steps = scales.astype(np.float32).reshape(n, blocks)
        return np.asarray((numbers.astype(np.float32) - middle[:, block]) * steps[:, block])

    def reference(self, *inputs: Array | None) -> Array:
        """Return the product in a's type."""
        a, packed, scales, zero, order, bias = _optional(inputs, 6)
        assert a is not None and packed is not None and scales is not None
        y = np.matmul(widen(a), self.weights(packed, scales, zero, order).T.astype(widen(a).dtype))
        return np.asarray(y if bias is None else y + widen(bias)).astype(a.dtype)


FP4 = 5 / 960, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)
BNB4 = np.array([(0.0, *FP4, 0.0, *(-number for number in FP4)), NF4], np.float32)
"""The numbers that four bits stand for in bitsandbytes, for each `quant_type`."""


@standard_op
class MatMulBnb4(Composite):
    """Compute a times the transpose of weights in four bits of bitsandbytes; inputs a, weights, the largest of blocks.

    The weights (N, K) lie in bytes, the first of two in the higher bits; `block_size` of them share a largest one.
    """

    type: ClassVar[str] = "com.microsoft::MatMulBnb4"
    op_class: ClassVar[OpClass] = "reduction"
    most_inputs: ClassVar[int | None] = 3
    K: int
    N: int
    block_size: int
    quant_type: int
    training_mode: int = 0
    transB: int = 1

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Look the weights up, scale them, and multiply."""
        a, packed, largest = inputs[:3]
        if self.quant_type not in (0, 1) or self.block_size < 1 or not self.transB:
            raise misfit(self, "quant_type must be 0 or 1, block_size positive, and transB 1")
        count = self.N * self.K
        blocks = -(-count // self.block_size)
        sizes = make.graph.specs[packed].size, make.graph.specs[largest].size
        if sizes != (-(-count // 2), blocks) or make.dtype(packed) is not DType.UINT8:
            raise misfit(self, f"{sizes[0]} bytes and {sizes[1]} largest do not fit K={self.K} and N={self.N}")
        high = make.add("BitShift", packed, make.constant(np.array(4, np.uint8)), direction="RIGHT")
        low = make.add("BitwiseAnd", packed, make.constant(np.array(15, np.uint8)))
        pairs = make.add("Concat", *(make.reshape(half, sizes[0], 1) for half in (high, low)), axis=1)
        bits = make.part(make.reshape(pairs, -1), 0, 0, count)
        numbers = make.add("Gather", make.constant(BNB4[self.quant_type]), make.cast(bits, DType.INT32))
        block = make.constant(np.arange(count) // self.block_size)
        steps = make.cast(make.add("Gather", make.reshape(largest, -1), block), DType.FLOAT32)
        weights = make.cast(make.reshape(make.add("Mul", numbers, steps), self.N, self.K), make.dtype(a))
        return [make.add("MatMul", a, make.add("Transpose", weights, perm=(1, 0)))]


@standard_op
class GatherBlockQuantized(Op):
    """Take rows of a table that is quantised in blocks; inputs table, indices, scales, zero points.

    The table is int4, uint4, or uint8 that holds numbers of `bits` bits, packed on the last axis.
    """

    type: ClassVar[str] = "com.microsoft::GatherBlockQuantized"
    op_class: ClassVar[OpClass] = "arithmetic"
    reads_part: ClassVar[bool] = True
    gather_axis: int = 0
    quantize_axis: int = 1
    block_size: int = 128
    bits: int = 4

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the shape of what is taken, in the scales' type."""
        table, indices, scales, zero = take_inputs(self, inputs, 3, 1)
        assert table is not None and indices is not None and scales is not None
        check_type(self, table, frozenset({DType.INT4, DType.UINT4, DType.UINT8}), "the table")
        check_type(self, indices, frozenset({DType.INT32, DType.INT64}), "the indices")
        check_type(self, scales, FLOATS, "the scales")
        shape = self.table_shape(table.dims, table.dtype)
        axis, blocked = self.gather_axis % len(shape), self.quantize_axis % len(shape)
        if table.dtype is DType.UINT8 and (axis, blocked) != (0, len(shape) - 1):
            raise misfit(self, "a table of bytes is taken along the first axis and has its blocks on the last")
        Spread.of(self, shape, scales.dims, blocked, self.block_size)
        check_range(constants[1], shape[axis])
        packed = (*scales.dims[:-1], -(-scales.dims[-1] * self.bits // 8))
        if zero is not None and zero.dims != (packed if table.dtype is DType.UINT8 else scales.dims):
            raise misfit(self, f"zero points {zero} do not fit scales {scales}")
        return (TensorSpec((*shape[:axis], *indices.dims, *shape[axis + 1 :]), scales.dtype),)

    def table_shape(self, shape: Shape, dtype: DType) -> Shape:
        """Return the shape of the numbers in a table."""
        return (*shape[:-1], shape[-1] * (8 // self.bits)) if dtype is DType.UINT8 else shape

    def table(self, table: Array, scales: Array, zero: Array | None) -> Array:
        """Return the whole table in the scales' type."""
        shape = self.table_shape(table.shape, DType.of(table.dtype))
        spread = Spread.of(self, shape, scales.shape, self.quantize_axis, self.block_size)
        if table.dtype == np.uint8:
            middle = np.full(scales.shape, 1 << self.bits - 1, np.uint8)
            if zero is not None:
                middle = unpacked(zero, self.bits, scales.shape[-1])
            numbers = unpacked(table, self.bits, shape[-1]).astype(np.int32)
        else:
            numbers = table.astype(np.int32)
            middle = np.zeros(scales.shape, np.int32) if zero is None else zero.astype(np.int32)
        moved = (numbers - spread.over(middle.astype(np.int32), shape)).astype(np.float32)
        return np.asarray(moved * spread.over(widen(scales), shape).astype(np.float32)).astype(scales.dtype)

    def reference(self, *inputs: Array | None) -> Array:
        """Return the rows in the scales' type."""
        table, indices, scales, zero = given(inputs, 0), given(inputs, 1), given(inputs, 2), optional(inputs, 3)
        whole = self.table(table, scales, zero)
        axis = self.gather_axis % whole.ndim
        return np.asarray(np.take(whole, indices.astype(np.int64, copy=False), axis))


# -- their parts, which devices without such kernels run ------------------------------------------------------


@decomposition("DynamicQuantizeLinear")
def _dynamic_quantize(op: DynamicQuantizeLinear, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    if not make.graph.specs[x].size:
        return []
    x = _as_float32(make, x)
    zeros, axes = make.number(0, x), make.ints(*range(len(make.dims(x))))
    numbers = make.add("Where", make.add("IsNaN", x), zeros, x)  # NaN does not count in the range, and 0 always does
    most, least = (
        make.add(pick, make.add(reduce, numbers, axes, keepdims=0), zeros)
        for reduce, pick in (("ReduceMax", "Max"), ("ReduceMin", "Min"))
    )
    span = make.add("Sub", most, least)
    none = make.add("Equal", span, zeros)
    shared = make.add("weft::Quotient", span, make.number(255, x))
    scale = make.add("Where", none, make.number(1, x), shared)
    zero = make.add("QuantizeLinear", make.add("Neg", least), scale, output_dtype=DType.UINT8)
    y = make.add("QuantizeLinear", x, scale, zero)
    return y, scale, zero


@decomposition("QLinearMatMul")
def _qlinear_matmul(op: QLinearMatMul, make: Body, node: Node) -> Sequence[str]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    if not all(make.dtype(each).is_integer for each in (a, b, y_zero)):
        left, right = (_floats(make, *side) for side in ((a, a_scale, a_zero), (b, b_scale, b_zero)))
        to = (make.reshape(each) for each in (y_scale, y_zero))
        return [make.add("QuantizeLinear", make.add("MatMul", left, right), *to)]
    weights = known_floats(make, b, b_scale, b_zero, len(make.dims(b)) - 1)
    if weights and are_known(make, a_scale, a_zero, y_scale, y_zero) and make.graph.specs[a_scale].size == 1:
        floats = make.add("MatMul", _floats(make, a, a_scale, a_zero), weights)
        return [make.add("QuantizeLinear", floats, _single(make, y_scale), make.reshape(y_zero))]
    total = make.add("MatMulInteger", a, b, a_zero, b_zero)
    rows = make.graph.specs[a_scale]
    if rows.size > 1 and len(rows.dims) == 1 and len(make.dims(a)) > 1:
        a_scale = make.add("Unsqueeze", a_scale, make.ints(1))
    step = make.add("Mul", _as_float32(make, a_scale), _as_float32(make, b_scale))
    return [_requantise(make, total, step, y_scale, y_zero, make.dims(node.outputs[0]))]


def are_known(make: Body, *values: str) -> bool:
    """Tell whether all values that are given are constants."""
    return all(make.known(value) is not None for value in values if value)


def known_floats(make: Body, w: str, scale: str, zero: str, axis: int) -> str:
    """Return constant weights of integers as float32 that remember those; "" for others.

    There is a scale for all, or one for each index of an axis.
    """
    q, steps, middle = (make.known(value) for value in (w, scale, zero))
    if q is None or steps is None or middle is None or not DType.of(q.dtype).is_integer:
        return ""
    if not (steps > 0).all() or max(steps.ndim, middle.ndim) > 1:
        return ""
    count = q.shape[axis] if max(steps.size, middle.size) > 1 else 1
    whole = np.broadcast_to(steps.reshape(-1), count).astype(np.float32)
    grid = Grid.of(DType.of(q.dtype), whole, np.broadcast_to(middle.reshape(-1), count), axis)
    made = make.constant(_centred(q, middle, axis).astype(np.float32) * grid.scales_over(q.shape))
    make.graph.specs[made] = TensorSpec(q.shape, DType.FLOAT32, grid)
    return made


def _single(make: Body, scale: str) -> str:
    """Return one scale as a scalar of float32."""
    return make.reshape(_as_float32(make, scale))


def _floats(make: Body, x: str, scale: str, zero: str) -> str:
    """Return numbers with one scale as float32."""
    scale = make.reshape(_as_float32(make, scale))
    return make.add("DequantizeLinear", x, scale, make.reshape(zero))


@decomposition("QLinearConv")
def _qlinear_conv(op: QLinearConv, make: Body, node: Node) -> Sequence[str]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.inputs
    attributes: dict[str, Any] = op.attributes()
    weights = known_floats(make, w, w_scale, w_zero, 0)
    if weights and are_known(make, x_scale, x_zero, y_scale, y_zero, *bias):
        shift = []
        if bias and (whole := make.known(bias[0])) is not None:
            steps = [np.asarray(make.known(scale), np.float32).reshape(-1) for scale in (x_scale, w_scale)]
            shift = [make.constant((whole * (steps[0] * steps[1])).astype(np.float32))]
        floats = make.add("Conv", _floats(make, x, x_scale, x_zero), weights, *shift, **attributes)
        return [make.add("QuantizeLinear", floats, _single(make, y_scale), make.reshape(y_zero))]
    total = make.add("ConvInteger", x, w, x_zero, w_zero, **attributes)
    channels = 1, -1, *(1 for _ in make.dims(x)[2:])
    if bias and bias[0]:
        total = make.add("Add", total, make.reshape(bias[0], *channels))
    if make.graph.specs[w_scale].size > 1:
        w_scale = make.reshape(w_scale, *channels)
    step = make.add("Mul", _as_float32(make, x_scale), _as_float32(make, w_scale))
    return [_requantise(make, total, step, y_scale, y_zero, make.dims(node.outputs[0]))]


def _requantise(make: Body, total: str, step: str, y_scale: str, y_zero: str, shape: Shape) -> str:
    """Finish with int32 sums in units of `step` as numbers of another scale and a zero point."""
    step, y_scale = _as_float32(make, step), make.reshape(_as_float32(make, y_scale))
    moved = make.add("Mul", make.add("Cast", total, to=DType.FLOAT32), make.add("weft::Quotient", step, y_scale))
    moved = make.reshape(moved, *shape)
    return make.add("QuantizeLinear", moved, make.number(1, moved), make.reshape(y_zero))


def _as_float32(make: Body, value: str) -> str:
    """Return a value as float32: a product of scales may be too small for float16."""
    return make.cast(value, DType.FLOAT32)


@decomposition("com.microsoft::MatMulNBits")
def _matmul_nbits(op: MatMulNBits, make: Body, node: Node) -> Sequence[str]:
    a, *packed, bias = padded(node.inputs, 6)
    held: list[Any] = [make.known(name) if name else None for name in packed]
    if any(name and value is None for name, value in zip(packed, held, strict=True)):
        return []
    weights = op.weights(*held)
    product = make.add("MatMul", a, make.constant(weights.T.astype(make.dtype(a).numpy)))
    return [make.add("Add", product, bias) if bias else product]


@decomposition("com.microsoft::GatherBlockQuantized")
def _gather_quantised(op: GatherBlockQuantized, make: Body, node: Node) -> Sequence[str]:
    table, indices, *scales = node.inputs
    held: list[Any] = [make.known(name) for name in (table, *scales)]
    if any(value is None for value in held):
        return []
    whole = op.table(*[*held, None][:3])
    return [make.add("Gather", make.constant(whole), indices, axis=op.gather_axis)]
