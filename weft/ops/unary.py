"""Element-wise ops of one input; see `weft.ops.elementwise` for the language of their expressions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import erfc, exp, factorial, pi, sqrt
from typing import ClassVar, Literal

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array
from weft.core.graph.op import Constants, Op, OpClass, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.ops.conversion import check_round_mode, convert
from weft.ops.elementwise import (
    ANY,
    BOOLEAN,
    FLOATS,
    INTEGERS,
    NUMERIC,
    SHORT_FLOATS,
    SIGNED,
    Elementwise,
    Types,
    elementwise,
    misfit,
    required_inputs,
)
from weft.ops.shape import given


@cache
def _erf_series() -> Array:
    """Return the Taylor coefficients of erf(x) / x over x * x, as many as matter up to 1."""
    return np.asarray([2 / sqrt(pi) * (-1) ** k / (factorial(k) * (2 * k + 1)) for k in range(19)])


_ERF = (
    1.1283792065200382, 0.10277118361798477, -0.0002014580855819988, -0.0006048537827065203, 7.737865179358627e-05,
    -2.1979205469665984e-06, -4.4958508673125144e-07, 4.773542365764108e-08, -1.4188945828199795e-09,
)
"""The coefficients of artanh(erf(x)) / x over x * x, fitted so that erf is off by 3.5e-8 of itself for x up to 4."""


@cache
def _erfc_fit() -> Array:
    """Return the Chebyshev coefficients of erfc(x) * exp(x * x) over 2 (x - 3) / (x + 3), x from 1 to 9."""

    def tail(u: Array) -> Array:
        return np.array([erfc(x) * exp(x * x) for x in 3 * (2 + u) / (2 - u)])

    fit: Array = np.polynomial.chebyshev.chebinterpolate(tail, 17)
    return fit


def _erf_double(x: Array) -> Array:
    """Return the error function of float64; from 6 on it is 1."""
    part = np.clip(x, -6, 6)
    size, square = np.abs(part), part * part
    near = part * np.polynomial.polynomial.polyval(square, _erf_series())
    tail = np.exp(-square) * np.polynomial.chebyshev.chebval(2 * (size - 3) / (size + 3), _erfc_fit())
    return np.asarray(np.where(size < 1, near, np.copysign(1 - tail, part)))


def _erf_single(x: Array) -> Array:
    """Return the error function of float32 as a tanh, which numpy has at the speed of a few products."""
    part = np.clip(x, np.float32(-4), np.float32(4))
    square = part * part
    y = square * _ERF[-1]
    for coefficient in _ERF[-2:0:-1]:
        y += coefficient
        y *= square
    y += _ERF[0]
    y *= part
    y -= part - x  # from 5 on numpy's tanh is 1; the sign of zero stays
    return np.asarray(np.tanh(y, out=y if y.ndim else None))


def erf_array(x: Array) -> Array:
    """Return the error function of an array of float32, to 2.5e-7 of itself, or of float64, to 1e-15."""
    return _erf_double(x) if x.dtype == np.float64 else _erf_single(x)


def sigmoid_into(out: Array, x: Array) -> None:
    """Put 1 / (1 + exp(-x)) into an array."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += 1
    np.reciprocal(out, out=out)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    out = np.empty_like(x)
    sigmoid_into(out, x)
    return out


def hard_sigmoid_into(out: Array, x: Array, alpha: float, beta: float) -> None:
    """Put alpha * x + beta, kept between 0 and 1, into an array."""
    np.multiply(x, alpha, out=out)
    out += beta
    np.clip(out, 0, 1, out=out)


def _hard_swish_into(out: Array, x: Array) -> None:
    hard_sigmoid_into(out, x, 1 / 6, 0.5)
    out *= x


def _relu_into(out: Array, x: Array) -> None:
    if x.dtype.kind == "f":
        np.clip(x, 0, np.inf, out=out)  # which numpy does four times as fast as a maximum
        out += 0  # of -0.0 it makes 0.0, as devices do
    else:
        np.maximum(x, 0, out=out)


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x)) without overflow."""
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


smooth = partial(elementwise, op_class="transcendental")
Exp = smooth("Exp", "e to the x", "exp({0})", np.exp, not_negative=True)
Log = smooth("Log", "the natural logarithm", "log({0})", np.log)
Sigmoid = smooth("Sigmoid", "1 / (1 + exp(-x))", "1.0 / (1.0 + exp(-{0}))", sigmoid_into, not_negative=True, into=True)
Tanh = smooth("Tanh", "the hyperbolic tangent", "tanh({0})", np.tanh)
Erf = smooth("Erf", "the error function", "erf({0})", erf_array)
Softplus = smooth(
    "Softplus", "log(1 + exp(x))", "fmax({0}, 0.0) + log1p(exp(-fabs({0})))", softplus, not_negative=True
)
Mish = smooth(
    "Mish",
    "x * tanh(softplus(x))",
    "{0} * tanh(fmax({0}, 0.0) + log1p(exp(-fabs({0}))))",
    lambda x: x * np.tanh(softplus(x)),
)
Sin = smooth("Sin", "the sine", "sin({0})", np.sin)
Cos = smooth("Cos", "the cosine", "cos({0})", np.cos)
Tan = smooth("Tan", "the tangent", "tan({0})", np.tan)
Asin = smooth("Asin", "the inverse sine", "asin({0})", np.arcsin)
Acos = smooth("Acos", "the inverse cosine", "acos({0})", np.arccos)
Atan = smooth("Atan", "the inverse tangent", "atan({0})", np.arctan)
Sinh = smooth("Sinh", "the hyperbolic sine", "sinh({0})", np.sinh)
Cosh = smooth("Cosh", "the hyperbolic cosine", "cosh({0})", np.cosh)
Asinh = smooth("Asinh", "the inverse hyperbolic sine", "asinh({0})", np.arcsinh)
Acosh = smooth("Acosh", "the inverse hyperbolic cosine", "acosh({0})", np.arccosh)
Atanh = smooth("Atanh", "the inverse hyperbolic tangent", "atanh({0})", np.arctanh)

Sqrt = elementwise("Sqrt", "the square root", "sqrt({0})", np.sqrt, not_negative=True)
Reciprocal = elementwise("Reciprocal", "1 / x", "1.0 / {0}", lambda x: 1 / x)
Softsign = elementwise("Softsign", "x / (1 + |x|)", "{0} / (1.0 + fabs({0}))", lambda x: x / (1 + np.abs(x)))
HardSwish = elementwise(
    "HardSwish",
    "x * max(0, min(1, x / 6 + 0.5))",
    "{0} * fmax(0.0, fmin(1.0, {0} / 6.0 + 0.5))",
    _hard_swish_into,
    into=True,
)

Abs = elementwise("Abs", "|x|", "fabs({0})", np.abs, types=NUMERIC, op_class="exact", not_negative=True)
Neg = elementwise("Neg", "-x", "-{0}", np.negative, types=SIGNED, op_class="exact")
Relu = elementwise(
    "Relu",
    "max(x, 0)",
    "fmax({0}, 0.0)",
    _relu_into,
    types=SIGNED,
    op_class="exact",
    not_negative=True,
    into=True,
)
Sign = elementwise(
    "Sign",
    "-1, 0 or 1 by the sign of x",
    "{0} > 0.0 ? 1.0 : ({0} < 0.0 ? -1.0 : ({0} == 0.0 ? 0.0 : {0}))",
    np.sign,
    types=NUMERIC,
    op_class="exact",
)
Floor = elementwise("Floor", "the largest integer not above x", "floor({0})", np.floor, op_class="exact")
Ceil = elementwise("Ceil", "the smallest integer not below x", "ceil({0})", np.ceil, op_class="exact")
Round = elementwise("Round", "the nearest integer, halves to even", "rint({0})", np.rint, op_class="exact")
Not = elementwise("Not", "the logical negation", None, np.logical_not, types=BOOLEAN, op_class="exact")
BitwiseNot = elementwise(
    "BitwiseNot", "the negation of every bit", None, np.invert, types=INTEGERS, op_class="exact"
)


@op_dataclass
class _Predicate(Elementwise):
    """A test of a floating-point number, which may have eight bits."""

    op_class: ClassVar[OpClass] = "exact"
    types: ClassVar[Types] = FLOATS | SHORT_FLOATS

    def result_type(self, types: Sequence[DType]) -> DType:
        return DType.BOOL


IsNaN = elementwise(
    "IsNaN", "whether x is NaN", None, np.isnan, types=_Predicate.types, op_class="exact", base=_Predicate
)


@standard_op(flags=("detect_negative", "detect_positive"))
class IsInf(_Predicate):
    """Compute whether x is an infinity of a requested sign."""

    detect_negative: int = 1
    detect_positive: int = 1

    def compute(self, x: Array) -> Array:
        asked = (x > 0 if self.detect_positive else False) | (x < 0 if self.detect_negative else False)
        return np.asarray(np.isinf(x) & asked)


@standard_op
class LeakyRelu(Elementwise):
    """Compute x where it is not negative, else alpha * x."""

    alpha: float = 0.01
    expr: ClassVar[str] = "{0} < 0.0 ? {alpha} * {0} : {0}"

    def compute(self, x: Array) -> Array:
        return np.where(x < 0, self.alpha * x, x)


@standard_op(op_class="exact")
class ThresholdedRelu(Elementwise):
    """Compute x where it exceeds alpha, else 0."""

    alpha: float = 1.0
    expr: ClassVar[str] = "{0} > {alpha} ? {0} : 0.0"

    def compute(self, x: Array) -> Array:
        return np.where(x > self.alpha, x, 0)


@standard_op(not_negative=True)
class HardSigmoid(Elementwise):
    """Compute alpha * x + beta, kept between 0 and 1."""

    alpha: float = 0.2
    beta: float = 0.5
    expr: ClassVar[str] = "fmax(0.0, fmin(1.0, {alpha} * {0} + {beta}))"

    def compute(self, x: Array) -> Array:
        out = np.empty_like(x)
        self.compute_into(out, x)
        return out

    def compute_into(self, out: Array, *inputs: Array) -> None:
        hard_sigmoid_into(out, inputs[0], self.alpha, self.beta)


@standard_op(op_class="transcendental")
class Elu(Elementwise):
    """Compute x where it is positive, else alpha * (exp(x) - 1)."""

    alpha: float = 1.0
    expr: ClassVar[str] = "{0} > 0.0 ? {0} : {alpha} * expm1({0})"

    def compute(self, x: Array) -> Array:
        return np.where(x > 0, x, self.alpha * np.expm1(x))


@standard_op(op_class="transcendental")
class Celu(Elementwise):
    """Compute max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""

    alpha: float = 1.0
    expr: ClassVar[str] = "fmax({0}, 0.0) + fmin(0.0, {alpha} * expm1({0} / {alpha}))"

    def compute(self, x: Array) -> Array:
        scale = x.dtype.type(self.alpha)
        return np.asarray(np.maximum(x, 0) + np.minimum(0, scale * np.expm1(x / scale)))


@standard_op(op_class="transcendental")
class Selu(Elementwise):
    """Compute gamma * x where x is positive, else gamma * alpha * (exp(x) - 1)."""

    alpha: float = 1.6732631921768188
    gamma: float = 1.0507010221481323
    expr: ClassVar[str] = "{gamma} * ({0} > 0.0 ? {0} : {alpha} * expm1({0}))"

    def compute(self, x: Array) -> Array:
        return np.asarray(self.gamma * np.where(x > 0, x, self.alpha * np.expm1(x)))


@standard_op(op_class="transcendental")
class Swish(Elementwise):
    """Compute x * sigmoid(alpha * x)."""

    alpha: float = 1.0
    expr: ClassVar[str] = "{0} / (1.0 + exp(-{alpha} * {0}))"

    def compute(self, x: Array) -> Array:
        out = sigmoid(self.alpha * x)
        out *= x
        return out


@standard_op(op_class="transcendental")
class Gelu(Elementwise):
    """Compute x times the normal distribution's cumulative function, exactly or through tanh."""

    approximate: Literal["none", "tanh"] = "none"

    def scalar(self, present: tuple[bool, ...]) -> str:
        if self.approximate == "tanh":
            return "0.5 * {0} * (1.0 + tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))"
        return "0.5 * {0} * (1.0 + erf({0} * 0.7071067811865476))"

    def compute(self, x: Array) -> Array:
        if self.approximate == "tanh":
            return np.asarray(0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x))))
        return np.asarray(0.5 * x * (1 + erf_array(x * 0.5**0.5)))

    def check(self, specs: Sequence[TensorSpec]) -> None:
        super().check(specs)
        if self.approximate not in ("none", "tanh"):
            raise misfit(self, f"approximate is {self.approximate!r}; allowed: none, tanh")


@decomposition("Gelu")
def _gelu(op: Gelu, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    if op.approximate == "tanh":
        cube = make.add("Mul", make.add("Mul", x, x), x)
        total = make.add("Add", x, make.add("Mul", cube, make.number(0.044715, x)))
        share = make.add("Tanh", make.add("Mul", total, make.number(sqrt(2 / pi), x)))
    else:
        share = make.add("Erf", make.add("Mul", x, make.number(sqrt(0.5), x)))
    half = make.add("Mul", x, make.number(0.5, x))
    return [make.add("Mul", half, make.add("Add", share, make.number(1, x)))]


@standard_op(types=NUMERIC)
class Shrink(Elementwise):
    """Compute x moved towards zero by bias, or 0 where |x| is at most lambd."""

    bias: float = 0.0
    lambd: float = 0.5
    expr: ClassVar[str] = "{0} < -{lambd} ? {0} + {bias} : ({0} > {lambd} ? {0} - {bias} : 0.0)"

    def compute(self, x: Array) -> Array:
        """Return the type of x; integers become floats that hold them, and are rounded towards zero."""
        kind = DType.of(x.dtype)
        if kind.is_integer:
            x = x.astype(_float_that_holds(kind).numpy)
        y = np.where(x < -self.lambd, x + self.bias, np.where(x > self.lambd, x - self.bias, 0))
        return convert(y, kind)


@decomposition("Shrink")
def _shrink(op: Shrink, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    kind = make.dtype(x)
    if not kind.is_integer:
        return []
    (y,) = make.all("Shrink", make.cast(x, _float_that_holds(kind)), made=1, **op.attributes())
    return [make.cast(y, kind)]


def _float_that_holds(kind: DType) -> DType:
    """Return the float in which ONNX adds a float32 number to integers: bias may be too small to change them there."""
    return DType.FLOAT32 if kind.numpy.itemsize < 4 else DType.FLOAT64


@standard_op(flags=("saturate",), types=ANY)
class Cast(Elementwise):
    """Convert to another element type; `saturate` and `round_mode` matter to 8-bit floats alone, see `convert`.

    Integers of floats that are out of range, infinite or NaN, which ONNX does not define, are the same on every device.
    """

    to: DType = DType.FLOAT32
    saturate: int = 1
    round_mode: str = "up"

    def compute(self, x: Array) -> Array:
        return convert(x, self.to, bool(self.saturate), self.round_mode)

    def check(self, specs: Sequence[TensorSpec]) -> None:
        super().check(specs)
        check_round_mode(self, self.round_mode)

    def scalar(self, present: tuple[bool, ...]) -> str | None:
        """Return the input: kernels load and store any float."""
        return "{0}" if self.to.is_float else None

    def result_type(self, types: Sequence[DType]) -> DType:
        return self.to


@standard_op(type="weft::Narrow", op_class="exact", from_optimizing=True, types=frozenset({DType.FLOAT32}))
class Narrow(Elementwise):
    """Round float32 to the numbers of a narrower type, `held`, and keep the type: a cast to it where it is not stored.

    What is beyond the largest number of the type becomes infinite.
    """

    held: DType = DType.FLOAT16

    def check(self, specs: Sequence[TensorSpec]) -> None:
        super().check(specs)
        if self.held not in (DType.FLOAT16, DType.BFLOAT16):
            raise misfit(self, f"it rounds to {self.held.value}; there are float16 and bfloat16")

    def compute(self, x: Array) -> Array:
        return convert(convert(x, self.held), DType.FLOAT32)

    def scalar(self, present: tuple[bool, ...]) -> str | None:
        return f"narrow_{self.held.name.lower()}({{0}})"


@decomposition("weft::Narrow")
def _narrow(op: Narrow, make: Body, node: Node) -> Sequence[str]:
    return [make.cast(make.cast(node.inputs[0], op.held), DType.FLOAT32)]


@standard_op(flags=("saturate",), arity=2)
class CastLike(Elementwise):
    """Convert the first input to the element type of the second, whose values do not matter."""

    saturate: int = 1
    round_mode: str = "up"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, like = required_inputs(self, inputs, 2)
        self.check([x, like])
        return (TensorSpec(x.shape, like.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, like = given(inputs, 0), given(inputs, 1)
        return convert(x, DType.of(like.dtype), bool(self.saturate), self.round_mode)

    def check(self, specs: Sequence[TensorSpec]) -> None:
        check_round_mode(self, self.round_mode)

    def result_type(self, types: Sequence[DType]) -> DType:
        return types[1]


@standard_op(most_inputs=1, keeps_types=True)
class BitCast(Op):
    """Take the bits of each element for those of another type as wide."""

    to: DType = DType.INT32

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        (x,) = required_inputs(self, inputs, 1)
        if x.dtype.bits != self.to.bits:
            raise misfit(self, f"{x.dtype.value} has {x.dtype.bits} bits and {self.to.value} {self.to.bits}")
        return (TensorSpec(x.shape, self.to),)

    def reference(self, *inputs: Array | None) -> Array:
        """Return the same bytes; of bools, whether any bit is set."""
        x = given(inputs, 0)
        raw = np.ascontiguousarray(x).reshape(x.shape)
        return raw.view(np.uint8) != 0 if self.to is DType.BOOL else raw.view(self.to.numpy)


@decomposition("BitCast")
def _bit_cast(op: BitCast, make: Body, node: Node) -> Sequence[str]:
    if op.to is not DType.BOOL:
        return []
    return [make.cast(make.add("BitCast", *node.inputs, to=DType.UINT8), DType.BOOL)]
