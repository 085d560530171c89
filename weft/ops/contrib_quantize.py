"""ONNX Runtime's own ops (`com.microsoft`) in quantised files: an op between numbers that are quantised, in floats.

Each takes its inputs as x, scale, zero point, computes in float32, and quantises the result by the last scale and zero
point. A zero point that is missing is 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from weft.core.graph.composite import Body, Composite, padded
from weft.core.graph.dtypes import DType
from weft.core.graph.op import OpClass, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.ops.contrib_windows import OwnConv, channels_last, channels_second, window_of
from weft.ops.elementwise import misfit
from weft.ops.quantize import BYTES, are_known, known_floats


def _scalar(make: Body, value: str) -> str:
    """Return a scale or a zero point of one element as a scalar."""
    return make.reshape(value) if value and make.dims(value) == (1,) else value


@op_dataclass
class _Quantised(Composite):
    """What these ops have in common."""

    op_class: ClassVar[OpClass] = "reduction"
    # A scale that fp16 rounds moves every number.
    keeps_types: ClassVar[bool] = True

    def floats(self, make: Body, x: str, scale: str, zero: str) -> str:
        """Return quantised numbers as floats."""
        if not x or not scale or make.dtype(x) not in BYTES:
            raise misfit(self, "it needs uint8 or int8 numbers with a scale each")
        zeros = [_scalar(make, zero)] if zero else []
        return make.add("DequantizeLinear", x, _scalar(make, scale), *zeros)

    def numbers(self, make: Body, value: str, scale: str, zero: str, dtype: DType) -> str:
        """Return floats quantised, as the zero point's type or, without one, as `dtype`."""
        if not scale:
            raise misfit(self, "the scale of the result is missing")
        if zero:
            return make.add("QuantizeLinear", value, _scalar(make, scale), _scalar(make, zero))
        return make.add("QuantizeLinear", value, _scalar(make, scale), output_dtype=dtype)


@op_dataclass
class _OfOne(_Quantised):
    """A function of one input; inputs X, scale, zero point, and scale and zero point of the result."""

    most_inputs: ClassVar[int | None] = 5

    @abstractmethod
    def function(self, make: Body, x: str) -> str:
        """Return the function of floats."""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Compute in floats."""
        x, scale, zero, to, to_zero = padded(inputs, 5)
        return [self.numbers(make, self.function(make, self.floats(make, x, scale, zero)), to, to_zero, make.dtype(x))]


@standard_op
class QLinearSigmoid(_OfOne):
    """Sigmoid of quantised numbers; inputs X, scale, zero point, and scale and zero point of the result."""

    type: ClassVar[str] = "com.microsoft::QLinearSigmoid"

    def function(self, make: Body, x: str) -> str:
        """Return the sigmoid."""
        return make.add("Sigmoid", x)


@standard_op
class QLinearLeakyRelu(_OfOne):
    """LeakyRelu of quantised numbers; inputs X, scale, zero point, and scale and zero point of the result."""

    type: ClassVar[str] = "com.microsoft::QLinearLeakyRelu"
    alpha: float = 0.01

    def function(self, make: Body, x: str) -> str:
        """Return x, or alpha * x where it is negative."""
        return make.add("LeakyRelu", x, alpha=self.alpha)


@standard_op
class QLinearSoftmax(_OfOne):
    """Softmax of quantised numbers; inputs X, scale, zero point, and scale and zero point of the result.

    `opset` is that of the Softmax: before 13, all axes from `axis` on are one.
    """

    type: ClassVar[str] = "com.microsoft::QLinearSoftmax"
    axis: int = -1
    opset: int = 13

    def function(self, make: Body, x: str) -> str:
        """Return the softmax."""
        if self.opset >= 13:
            return make.add("Softmax", x, axis=self.axis)
        dims = make.dims(x)
        first = self.axis % len(dims)
        rows = make.reshape(x, prod(dims[:first]), prod(dims[first:]))
        return make.reshape(make.add("Softmax", rows, axis=1), *dims)


@op_dataclass
class _OfImage(_OfOne):
    """A pool of images of quantised numbers."""

    channels_last: int = 0

    @abstractmethod
    def pool(self, make: Body, x: str) -> str:
        """Return the pool of images whose channels come second."""

    def function(self, make: Body, x: str) -> str:
        """Return the pool, and let channels lie last if they did."""
        if not self.channels_last:
            return self.pool(make, x)
        return channels_last(make, self.pool(make, channels_second(make, x)))


@standard_op
class QLinearGlobalAveragePool(_OfImage):
    """The mean of each channel; inputs X, scale, zero point, and scale and zero point of the result."""

    type: ClassVar[str] = "com.microsoft::QLinearGlobalAveragePool"
    flags: ClassVar[tuple[str, ...]] = ("channels_last",)

    def pool(self, make: Body, x: str) -> str:
        """Return the means."""
        return make.add("GlobalAveragePool", x)


@standard_op
class QLinearAveragePool(_OfImage):
    """The mean in a sliding window; inputs X, scale, zero point, and scale and zero point of the result."""

    type: ClassVar[str] = "com.microsoft::QLinearAveragePool"
    flags: ClassVar[tuple[str, ...]] = ("ceil_mode", "channels_last", "count_include_pad")
    kernel_shape: tuple[int, ...] = ()
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    count_include_pad: int = 0
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def pool(self, make: Body, x: str) -> str:
        """Return the means."""
        return make.add(
            "AveragePool", x, kernel_shape=self.kernel_shape, auto_pad=self.auto_pad, ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad, pads=self.pads, strides=self.strides,
        )


@op_dataclass
class _OfTwo(_Quantised):
    """A function of two inputs, broadcast; inputs A, scale, zero point, B likewise, and those of the result."""

    most_inputs: ClassVar[int | None] = 8
    kind: ClassVar[str] = ""

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Compute in floats."""
        a, a_scale, a_zero, b, b_scale, b_zero, to, to_zero = padded(inputs, 8)
        left, right = self.floats(make, a, a_scale, a_zero), self.floats(make, b, b_scale, b_zero)
        return [self.numbers(make, make.add(self.kind, left, right), to, to_zero, make.dtype(a))]


@standard_op
class QLinearAdd(_OfTwo):
    """The sum of quantised numbers; inputs A, scale, zero point, B likewise, and scale and zero point of the result."""

    type: ClassVar[str] = "com.microsoft::QLinearAdd"
    kind: ClassVar[str] = "Add"


@standard_op
class QLinearMul(_OfTwo):
    """The product of quantised numbers; inputs A, scale, zero point, B likewise, and those of the result."""

    type: ClassVar[str] = "com.microsoft::QLinearMul"
    kind: ClassVar[str] = "Mul"


@standard_op
class QLinearConcat(_Quantised):
    """Quantised numbers joined along an axis; inputs scale and zero point of the result, then three for each part."""

    type: ClassVar[str] = "com.microsoft::QLinearConcat"
    axis: int = 0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Quantise each part for the result, and join them."""
        scale, zero, *parts = inputs
        if not parts or len(parts) % 3:
            raise misfit(self, f"it has {len(parts)} inputs behind the first two; each part has three")
        joined = [
            self.numbers(make, self.floats(make, *parts[k : k + 3]), scale, zero, make.dtype(parts[k]))
            for k in range(0, len(parts), 3)
        ]
        return [make.add("Concat", *joined, axis=self.axis)]


@standard_op
class QLinearWhere(_Quantised):
    """Elements of X where a condition holds, else those of Y; inputs condition, X, scale, zero point, Y likewise.

    Then come scale and zero point of the result.
    """

    type: ClassVar[str] = "com.microsoft::QLinearWhere"
    most_inputs: ClassVar[int | None] = 9

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Quantise both for the result, and choose."""
        condition, x, x_scale, x_zero, y, y_scale, y_zero, to, to_zero = padded(inputs, 9)
        sides = [
            self.numbers(make, self.floats(make, *side), to, to_zero, make.dtype(x))
            for side in ((x, x_scale, x_zero), (y, y_scale, y_zero))
        ]
        return [make.add("Where", condition, *sides)]


@op_dataclass
class _Product(_Quantised):
    """A product of matrices of quantised numbers."""

    def product(self, make: Body, a: str, b: str, a_zero: str, b_zero: str) -> str:
        """Return the exact product, in int32."""
        if make.dtype(a) not in BYTES or make.dtype(b) not in BYTES:
            raise misfit(self, "it needs matrices of uint8 or int8")
        zeros = [a_zero, b_zero] if b_zero else [a_zero] if a_zero else []
        return make.add("MatMulInteger", a, b, *zeros)

    def scaled(self, make: Body, product: str, *scales: str) -> str:
        """Return a product as floats, times the product of the scales."""
        scale, *others = scales
        for other in others:
            scale = make.add("Mul", scale, other)
        return make.add("Mul", make.cast(product, make.dtype(scale)), scale)


@standard_op
class QGemm(_Product):
    """alpha * A @ B + C; inputs A, scale, zero point, B likewise, C in int32, and scale and zero point of the result.

    C is in units of the product of alpha and both scales. Without a scale of the result that is floats.
    """

    type: ClassVar[str] = "com.microsoft::QGemm"
    most_inputs: ClassVar[int | None] = 9
    flags: ClassVar[tuple[str, ...]] = ("transA", "transB")
    alpha: float = 1.0
    transA: int = 0
    transB: int = 0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Multiply integers, add C, and scale."""
        a, a_scale, a_zero, b, b_scale, b_zero, c, to, to_zero = padded(inputs, 9)
        weights = known_floats(make, b, b_scale, b_zero, 0 if self.transB else 1)
        if weights and to and are_known(make, a_scale, a_zero, c, to, to_zero) and len(make.dims(a_scale)) < 2:
            shift, steps = make.known(c) if c else None, [make.known(scale) for scale in (a_scale, b_scale)]
            scale = np.multiply(*(np.asarray(step, np.float32).reshape(-1) for step in steps)) * np.float32(self.alpha)
            added = [] if shift is None else [make.constant((shift * scale).astype(np.float32))]
            floats = make.add(
                "Gemm", self.floats(make, a, a_scale, a_zero), weights, *added, alpha=self.alpha, transA=self.transA,
                transB=self.transB,
            )
            return [self.numbers(make, floats, to, to_zero, make.dtype(a))]
        left, right = (
            make.add("Transpose", x, perm=(1, 0)) if turned else x for x, turned in ((a, self.transA), (b, self.transB))
        )
        total = self.product(make, left, right, _scalar(make, a_zero), _scalar(make, b_zero))
        total = make.add("Add", total, c) if c else total
        alpha = make.constant(np.asarray(self.alpha, np.float32))
        floats = self.scaled(make, total, _scalar(make, a_scale), _scalar(make, b_scale), alpha)
        return [self.numbers(make, floats, to, to_zero, make.dtype(a)) if to else floats]


@standard_op
class MatMulIntegerToFloat(_Product):
    """The product of quantised matrices as floats, plus a bias; inputs A, B, both scales, both zero points, bias."""

    type: ClassVar[str] = "com.microsoft::MatMulIntegerToFloat"
    most_inputs: ClassVar[int | None] = 7

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Multiply integers, and scale."""
        a, b, a_scale, b_scale, a_zero, b_zero, bias = padded(inputs, 7)
        total = self.product(make, a, b, _scalar(make, a_zero), _scalar(make, b_zero))
        floats = self.scaled(make, total, _scalar(make, a_scale), _scalar(make, b_scale))
        return [make.add("Add", floats, bias) if bias else floats]


@standard_op
class DynamicQuantizeMatMul(_Product):
    """Floats, quantised by their range, times a quantised matrix, plus a bias; inputs A, B, scale, zero point, bias."""

    type: ClassVar[str] = "com.microsoft::DynamicQuantizeMatMul"
    most_inputs: ClassVar[int | None] = 5

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Quantise A, multiply integers, and scale."""
        a, b, b_scale, b_zero, bias = padded(inputs, 5)
        numbers, scale, zero = make.all("DynamicQuantizeLinear", a, made=3)
        total = self.product(make, numbers, b, zero, _scalar(make, b_zero))
        floats = self.scaled(make, total, scale, _scalar(make, b_scale))
        return [make.add("Add", floats, bias) if bias else floats]


@standard_op
class MicrosoftQLinearConv(OwnConv):
    """ONNX's QLinearConv of images whose channels may lie last."""

    type: ClassVar[str] = "com.microsoft::QLinearConv"
    op_class: ClassVar[OpClass] = "exact"
    most_inputs: ClassVar[int | None] = 9
    keeps_types: ClassVar[bool] = True
    flags: ClassVar[tuple[str, ...]] = ("channels_last",)
    channels_last: int = 0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Convolve with channels behind the batch; a zero point that is missing is 0."""
        x, x_scale, x_zero, w, w_scale, w_zero, to, to_zero, *bias = inputs
        zeros = (
            name or make.constant(np.zeros((), make.dtype(like).numpy))
            for name, like in ((x_zero, x), (w_zero, w), (to_zero, x))
        )
        x_zero, w_zero, to_zero = zeros
        x = channels_second(make, x) if self.channels_last else x
        given = x, x_scale, x_zero, w, w_scale, w_zero, to, to_zero, *bias
        y = self.convolved(make, "QLinearConv", *given)
        return [channels_last(make, y) if self.channels_last else y]


@standard_op
class NhwcMaxPool(Composite):
    """The maximum in a sliding window of images of bytes whose channels lie last."""

    type: ClassVar[str] = "com.microsoft::NhwcMaxPool"
    op_class: ClassVar[OpClass] = "exact"
    most_inputs: ClassVar[int | None] = 1
    flags: ClassVar[tuple[str, ...]] = ("ceil_mode",)
    kernel_shape: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Pool with channels behind the batch."""
        y = make.add("MaxPool", channels_second(make, *inputs), **window_of(self), ceil_mode=self.ceil_mode)
        return [channels_last(make, y)]


@standard_op
class DynamicQuantizeLSTM(Composite):
    """LSTM with quantised weights; inputs X, W, R, B, sequence_lens, initial_h, initial_c, P, scales and zeros.

    W and R are (directions, inputs, gates), with a scale and a zero point for each direction or each column. X is
    quantised by its range. States are not: onnxruntime quantises them by a range that depends on its threads.
    """

    type: ClassVar[str] = "com.microsoft::DynamicQuantizeLSTM"
    op_class: ClassVar[OpClass] = "reduction"
    most_inputs: ClassVar[int | None] = 12
    keeps_types: ClassVar[bool] = True
    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    input_forget: int = 0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Run an LSTM of floats with the weights that the integers stand for."""
        x, w, r, bias, lengths, h, c, peepholes, w_scale, w_zero, r_scale, r_zero = padded(inputs, 12)
        if not w_scale or not r_scale or make.dtype(w) not in BYTES or make.dtype(r) not in BYTES:
            raise misfit(self, "it needs weights of uint8 or int8 with a scale each")
        rounded = make.add("DequantizeLinear", *make.all("DynamicQuantizeLinear", x, made=3))
        weights = [self._floats(make, *each) for each in ((w, w_scale, w_zero), (r, r_scale, r_zero))]
        attributes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size",
                         "input_forget")
        }
        given = [rounded, *weights, bias, lengths, h, c, peepholes]
        return make.all("LSTM", *given, made=self.outputs, outputs=self.outputs, **attributes)

    def _floats(self, make: Body, weights: str, scale: str, zero: str) -> str:
        """Return weights as floats (directions, gates, inputs)."""
        directions, _, gates = make.dims(weights)
        if make.dims(scale) not in ((directions,), (directions, gates)):
            raise misfit(self, f"a scale of {make.dims(scale)} does not fit weights of {make.dims(weights)}")
        wide = make.cast(weights, DType.INT32)
        if zero:
            wide = make.add("Sub", wide, make.reshape(make.cast(zero, DType.INT32), directions, 1, -1))
        floats = make.add("Mul", make.cast(wide, make.dtype(scale)), make.reshape(scale, directions, 1, -1))
        return make.add("Transpose", floats, perm=(0, 2, 1))


ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("", ""),
}
"""The functions that ONNX Runtime fuses into a layer, with the names of their numbers; those of Clip are inputs."""


def _activated(op: Composite, make: Body, value: str, kind: str, numbers: Sequence[float]) -> str:
    """Return an activation of a value, as ONNX Runtime fuses it into the layer before."""
    if not kind:
        return value
    if kind not in ACTIVATIONS:
        raise misfit(op, f"activation {kind!r} is unknown; there are {', '.join(ACTIVATIONS)}")
    named: dict[str, Any] = dict(zip(ACTIVATIONS[kind], numbers, strict=False))
    if kind == "Clip":
        limits = [make.constant(np.asarray(limit, make.dtype(value).numpy)) for limit in numbers[:2]]
        return make.add("Clip", value, *limits)
    return make.add(kind, value, **named)


@standard_op
class FusedConv(OwnConv):
    """A convolution, plus Z, and an activation of that; inputs X, W, B, Z."""

    type: ClassVar[str] = "com.microsoft::FusedConv"
    op_class: ClassVar[OpClass] = "reduction"
    most_inputs: ClassVar[int | None] = 4
    activation: str = ""
    activation_params: tuple[float, ...] = ()

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Convolve, add and activate."""
        x, w, b, z = padded(inputs, 4)
        y = self.convolved(make, "Conv", x, w, *([b] if b else []))
        y = make.add("Add", y, z) if z else y
        return [_activated(self, make, y, self.activation, self.activation_params)]


@standard_op
class FusedGemm(Composite):
    """A Gemm and an activation of it; inputs A, B, C."""

    type: ClassVar[str] = "com.microsoft::FusedGemm"
    op_class: ClassVar[OpClass] = "reduction"
    most_inputs: ClassVar[int | None] = 3
    flags: ClassVar[tuple[str, ...]] = ("transA", "transB")
    activation: str = ""
    activation_alpha: float | None = None
    activation_beta: float | None = None
    activation_gamma: float | None = None
    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0
    transB: int = 0

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Multiply and activate."""
        numbers = [n for n in (self.activation_alpha, self.activation_beta) if n is not None]
        y = make.add("Gemm", *inputs, alpha=self.alpha, beta=self.beta, transA=self.transA, transB=self.transB)
        return [_activated(self, make, y, self.activation, numbers)]


__all__ = [
    "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "FusedConv", "FusedGemm", "MatMulIntegerToFloat",
    "MicrosoftQLinearConv", "NhwcMaxPool", "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat",
    "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QLinearSoftmax",
    "QLinearWhere",
]
