"""Ops that compute each element by itself, conversions of types, and ops that change nothing in inference."""

from __future__ import annotations

import math
from typing import Any

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Operand, Scalar, Value
from weft.frontends.torch.rules import Unsupported, aten

_ALIKE = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs",
    "neg": "Neg", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan",
    "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "sign": "Sign",
    "sgn": "Sign", "reciprocal": "Reciprocal", "mish": "Mish", "hardswish": "HardSwish", "silu": "Swish",
    "selu": "Selu",
}  # fmt: skip
"""Ops of one input that ONNX has, too."""
_WHOLE = {"ceil": "Ceil", "floor": "Floor", "round": "Round"}
_LOG_2, _LOG_10 = math.log(2), math.log(10)


def _alike(kind: str) -> Any:
    return lambda g, x, *_: g.op(kind, g.cast(x, g.out.dtype))


def _whole(kind: str) -> Any:
    return lambda g, x, *_: g.op(kind, x) if x.dtype.is_float else x


for _name, _kind in _ALIKE.items():
    aten(_name)(_alike(_kind))
for _name, _kind in _WHOLE.items():
    aten(_name)(_whole(_kind))


@aten(
    "alias clone contiguous detach detach_ lift_fresh lift_fresh_copy lift positive resolve_conj resolve_neg "
    "_conj_physical _to_copy type_as to.dtype to.dtype_layout to.device to.other to.prim_dtype conj"
)
def convert(g: Builder, x: Value, *_: object) -> Value:
    return g.cast(x, g.out.dtype)


@aten("dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout")
def dropout(g: Builder, x: Value, p: float, train: bool) -> Value | list[Value]:
    if train and p:
        raise Unsupported("draws random numbers, as in training: call model.eval() first")
    return [x, g.expand(g.scalar(True, DType.BOOL), g.shape_of(x), x.shape)] if len(g.outs) > 1 else x


@aten("copy")
def copy(g: Builder, x: Value, source: Value, *_: object) -> Value:
    return g.expand(g.cast(source, x.dtype), g.shape_of(x))


@aten("fill.Scalar fill.Tensor")
def fill(g: Builder, x: Value, value: Operand) -> Value:
    return g.expand(g.as_type(value, x.dtype), g.shape_of(x))


# -- of one input --------------------------------------------------------------------------------------------


def _times(g: Builder, x: Value, factor: Scalar) -> Value:
    return x if factor == 1 else g.op("Mul", x, g.scalar(factor, x.dtype), shape=x.shape)


def _scaled_log(scale: float) -> Any:
    return lambda g, x: _times(g, g.op("Log", g.cast(x, g.out.dtype)), scale)


aten("log2")(_scaled_log(1 / _LOG_2))
aten("log10")(_scaled_log(1 / _LOG_10))


@aten("log1p")
def log1p(g: Builder, x: Value) -> Value:
    """Log of 1 + x; near 0, where the sum loses digits of x, it is corrected by what was lost."""
    x = g.cast(x, g.out.dtype)
    one = g.scalar(1, x.dtype)
    total = g.op("Add", x, one)
    log, rest = g.op("Log", total), g.op("Sub", total, one)
    is_near = g.op("Less", g.op("Abs", x), g.scalar(0.5, x.dtype), dtype=DType.BOOL)
    is_none = g.op("Equal", rest, g.scalar(0, x.dtype), dtype=DType.BOOL)
    near = g.op("Where", is_none, x, g.op("Mul", log, g.op("Div", x, rest)), dtype=x.dtype)
    return g.op("Where", is_near, near, log, dtype=x.dtype)


@aten("expm1")
def expm1(g: Builder, x: Value) -> Value:
    """Return exp(x) - 1 as tanh(x / 2) * (exp(x) + 1), which keeps the digits of a small x."""
    x = g.cast(x, g.out.dtype)
    above = g.op("Add", g.op("Exp", x), g.scalar(1, x.dtype))
    return g.op("Mul", g.op("Tanh", _times(g, x, 0.5)), above)


@aten("exp2")
def exp2(g: Builder, x: Value) -> Value:
    return g.op("Pow", g.scalar(2, g.out.dtype), g.cast(x, g.out.dtype))


@aten("rsqrt")
def rsqrt(g: Builder, x: Value) -> Value:
    return g.op("Reciprocal", g.op("Sqrt", g.cast(x, g.out.dtype)))


@aten("square")
def square(g: Builder, x: Value) -> Value:
    return g.op("Mul", x, x)


@aten("trunc fix")
def trunc(g: Builder, x: Value) -> Value:
    if not x.dtype.is_float:
        return x
    negative = g.op("Less", x, g.scalar(0, x.dtype), dtype=DType.BOOL)
    return g.op("Where", negative, g.op("Ceil", x), g.op("Floor", x), dtype=x.dtype)


@aten("frac")
def frac(g: Builder, x: Value) -> Value:
    return g.op("Sub", x, trunc(g, x))


@aten("isnan")
def isnan(g: Builder, x: Value) -> Value:
    return g.op("IsNaN", x, dtype=DType.BOOL) if x.dtype.is_float else _never(g, x)


@aten("isinf")
def isinf(g: Builder, x: Value) -> Value:
    return g.op("IsInf", x, dtype=DType.BOOL) if x.dtype.is_float else _never(g, x)


@aten("isfinite")
def isfinite(g: Builder, x: Value) -> Value:
    odd = g.op("Or", isnan(g, x), isinf(g, x), dtype=DType.BOOL)
    return g.op("Not", odd, dtype=DType.BOOL)


def _never(g: Builder, x: Value) -> Value:
    return g.expand(g.scalar(False, DType.BOOL), g.shape_of(x))


@aten("gelu")
def gelu(g: Builder, x: Value, approximate: str) -> Value:
    return g.op("Gelu", x, approximate=approximate)


@aten("elu")
def elu(g: Builder, x: Value, alpha: float, scale: float, input_scale: float) -> Value:
    if input_scale == 1 and scale == 1:
        return g.op("Elu", x, alpha=float(alpha))
    if input_scale != 1:
        raise Unsupported(f"has input_scale={input_scale}")
    return g.op("Selu", x, alpha=float(alpha), gamma=float(scale))


@aten("celu")
def celu(g: Builder, x: Value, alpha: float) -> Value:
    return g.op("Celu", x, alpha=float(alpha))


@aten("leaky_relu")
def leaky_relu(g: Builder, x: Value, slope: float) -> Value:
    return g.op("LeakyRelu", x, alpha=float(slope))


@aten("hardsigmoid")
def hardsigmoid(g: Builder, x: Value) -> Value:
    return g.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@aten("softplus")
def softplus(g: Builder, x: Value, beta: float, threshold: float) -> Value:
    scaled = _times(g, x, beta)
    smooth = _times(g, g.op("Softplus", scaled), 1 / beta)
    if threshold >= 20:  # above it torch returns x, from which the result differs by less than a rounding
        return smooth
    above = g.op("Greater", scaled, g.scalar(threshold, x.dtype), dtype=DType.BOOL)
    return g.op("Where", above, x, smooth, dtype=x.dtype)


@aten("log_sigmoid")
def log_sigmoid(g: Builder, x: Value) -> Value:
    return g.op("Neg", g.op("Softplus", g.op("Neg", x)))


@aten("log_sigmoid_forward")
def log_sigmoid_forward(g: Builder, x: Value) -> list[Value]:
    return [log_sigmoid(g, x), x]


@aten("threshold")
def threshold(g: Builder, x: Value, least: float, value: float) -> Value:
    above = g.op("Greater", x, g.scalar(least, x.dtype), dtype=DType.BOOL)
    return g.op("Where", above, x, g.scalar(value, x.dtype), dtype=x.dtype)


@aten("hardshrink")
def hardshrink(g: Builder, x: Value, width: float) -> Value:
    return g.op("Shrink", x, lambd=float(width), bias=0.0)


@aten("softshrink")
def softshrink(g: Builder, x: Value, width: float) -> Value:
    return g.op("Shrink", x, lambd=float(width), bias=float(width))


@aten("prelu _prelu_kernel")
def prelu(g: Builder, x: Value, slope: Value) -> Value:
    if slope.rank == 1 and slope.shape[0] != 1 and x.rank > 2:
        slope = g.unsqueeze(slope, range(1, x.rank - 1))
    return g.op("PRelu", x, slope)


@aten("glu")
def glu(g: Builder, x: Value, dim: int) -> Value:
    size = x.shape[dim]
    if size is None:
        raise Unsupported("needs an axis of a fixed size")
    half = g.ints([size // 2, size // 2])
    shapes = [g.out.shape, g.out.shape]
    axis = dim % x.rank
    value, gate = g.ops("Split", x, half, dtypes=[None, None], shapes=shapes, axis=axis, outputs=2)
    return g.op("Mul", value, g.op("Sigmoid", gate))


# -- limits --------------------------------------------------------------------------------------------------


@aten("clamp clip clamp.Tensor clip.Tensor hardtanh")
def clamp(g: Builder, x: Value, least: Operand | None = None, most: Operand | None = None) -> Value:
    dtype = g.out.dtype
    x = g.cast(x, dtype)
    if not isinstance(least, Value) and not isinstance(most, Value):
        low, high = (None if v is None else g.scalar(v, dtype) for v in (least, most))
        return g.op("Clip", x, low, high)
    if least is not None:
        x = g.op("Max", x, g.as_type(least, dtype))
    return x if most is None else g.op("Min", x, g.as_type(most, dtype))


@aten("clamp_min clamp_min.Tensor")
def clamp_min(g: Builder, x: Value, least: Operand) -> Value:
    return clamp(g, x, least, None)


@aten("clamp_max clamp_max.Tensor")
def clamp_max(g: Builder, x: Value, most: Operand) -> Value:
    return clamp(g, x, None, most)


@aten("relu6")
def relu6(g: Builder, x: Value) -> Value:
    return clamp(g, x, 0, 6)


# -- of two inputs -------------------------------------------------------------------------------------------


@aten("add.Tensor add.Scalar")
def add(g: Builder, a: Operand, b: Operand, alpha: Scalar = 1) -> Value:
    dtype = g.out.dtype
    if dtype is DType.BOOL and alpha:
        return g.op("Or", g.as_type(a, dtype), g.as_type(b, dtype))
    return g.op("Add", g.as_type(a, dtype), _scaled(g, b, alpha))


def _scaled(g: Builder, value: Operand, factor: Scalar) -> Value:
    if not isinstance(value, Value):
        return g.scalar(value * factor, g.out.dtype)
    return _times(g, g.cast(value, g.out.dtype), factor)


@aten("sub.Tensor sub.Scalar")
def sub(g: Builder, a: Operand, b: Operand, alpha: Scalar = 1) -> Value:
    return g.op("Sub", g.as_type(a, g.out.dtype), _scaled(g, b, alpha))


@aten("rsub.Tensor rsub.Scalar")
def rsub(g: Builder, a: Operand, b: Operand, alpha: Scalar = 1) -> Value:
    return g.op("Sub", g.as_type(b, g.out.dtype), _scaled(g, a, alpha))


@aten("mul.Tensor mul.Scalar")
def mul(g: Builder, a: Operand, b: Operand) -> Value:
    dtype = g.out.dtype
    return g.op("And" if dtype is DType.BOOL else "Mul", g.as_type(a, dtype), g.as_type(b, dtype))


@aten("div.Tensor div.Scalar true_divide.Tensor")
def div(g: Builder, a: Operand, b: Operand) -> Value:
    return g.op("Div", g.as_type(a, g.out.dtype), g.as_type(b, g.out.dtype))


@aten("div.Tensor_mode div.Scalar_mode")
def div_mode(g: Builder, a: Operand, b: Operand, mode: str | None) -> Value:
    if mode is None:
        return div(g, a, b)
    return floor_divide(g, a, b) if mode == "floor" else trunc(g, div(g, a, b))


@aten("floor_divide floor_divide.Scalar")
def floor_divide(g: Builder, a: Operand, b: Operand) -> Value:
    dtype = g.out.dtype
    x, y = g.as_type(a, dtype), g.as_type(b, dtype)
    if dtype.is_float:
        return g.op("Floor", g.op("Div", x, y))
    return g.op("Div", g.op("Sub", x, g.op("Mod", x, y)), y)  # Div rounds to zero: let it divide without a rest


@aten("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor")
def remainder(g: Builder, a: Operand, b: Operand) -> Value:
    return g.op("Mod", g.as_type(a, g.out.dtype), g.as_type(b, g.out.dtype))


@aten("fmod.Tensor fmod.Scalar")
def fmod(g: Builder, a: Operand, b: Operand) -> Value:
    return g.op("Mod", g.as_type(a, g.out.dtype), g.as_type(b, g.out.dtype), fmod=1)


@aten("pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar")
def power(g: Builder, a: Operand, b: Operand) -> Value:
    return g.op("Pow", g.as_type(a, g.out.dtype), g.as_type(b, g.out.dtype))


@aten("maximum")
def maximum(g: Builder, a: Value, b: Value) -> Value:
    kind = "Or" if g.out.dtype is DType.BOOL else "Max"
    return g.op(kind, g.cast(a, g.out.dtype), g.cast(b, g.out.dtype))


@aten("minimum")
def minimum(g: Builder, a: Value, b: Value) -> Value:
    kind = "And" if g.out.dtype is DType.BOOL else "Min"
    return g.op(kind, g.cast(a, g.out.dtype), g.cast(b, g.out.dtype))


@aten("atan2")
def atan2(g: Builder, y: Value, x: Value) -> Value:
    dtype = g.out.dtype
    y, x, zero = g.cast(y, dtype), g.cast(x, dtype), g.scalar(0, dtype)
    low = g.op("Less", x, zero, dtype=DType.BOOL)
    is_none = g.op("Equal", x, zero, dtype=DType.BOOL)
    sign = g.op("Where", g.op("Less", y, zero, dtype=DType.BOOL), g.scalar(-1, dtype), g.scalar(1, dtype), dtype=dtype)
    angle = g.op("Atan", g.op("Div", y, x))
    turned = g.op("Add", angle, _times(g, sign, math.pi))
    upright = _times(g, g.op("Sign", y), math.pi / 2)
    return g.op("Where", is_none, upright, g.op("Where", low, turned, angle, dtype=dtype), dtype=dtype)


def _category(dtype: DType) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_float else 0 if dtype is DType.BOOL else 1


def promoted(*values: Operand) -> DType:
    """Return the element type in which torch computes with these: numbers and scalars give way to tensors."""
    tensors = [v for v in values if isinstance(v, Value)]
    classes: list[list[DType]] = [
        [v.dtype for v in tensors if v.rank], [v.dtype for v in tensors if not v.rank],
        [_python_type(v) for v in values if not isinstance(v, Value)],
    ]
    result: DType | None = None
    for each in classes:
        for dtype in each[:1] if not each else [_wider(each)]:
            if result is None or _category(dtype) > _category(result):
                result = dtype
    assert result is not None
    return result


def _python_type(value: Scalar) -> DType:
    return DType.BOOL if isinstance(value, bool) else DType.INT64 if isinstance(value, int) else DType.FLOAT32


def _wider(dtypes: list[DType]) -> DType:
    top = max(map(_category, dtypes))
    same = [d for d in dtypes if _category(d) == top]
    widest = max(same, key=lambda d: d.bits)
    halves = {d for d in same if d.bits == 16}
    if len(halves) > 1 and widest.bits == 16:
        return DType.FLOAT32 if widest.is_float else DType.INT32
    if DType.UINT8 in same and widest.bits == 8 and len(set(same)) > 1:
        return DType.INT16
    return widest


def _comparison(kind: str, negated: bool = False) -> Any:
    def compare(g: Builder, a: Operand, b: Operand) -> Value:
        dtype = promoted(a, b)
        if dtype is DType.BOOL and kind != "Equal":
            dtype = DType.INT32
        result = g.op(kind, g.as_type(a, dtype), g.as_type(b, dtype), dtype=DType.BOOL)
        return g.op("Not", result) if negated else result

    return compare


for _name, _kind, _negated in (
    ("eq", "Equal", False), ("ne", "Equal", True), ("lt", "Less", False), ("le", "LessOrEqual", False),
    ("gt", "Greater", False), ("ge", "GreaterOrEqual", False),
):  # fmt: skip
    aten(f"{_name}.Tensor {_name}.Scalar")(_comparison(_kind, _negated))


# -- logic ---------------------------------------------------------------------------------------------------


@aten("logical_not")
def logical_not(g: Builder, x: Value) -> Value:
    return g.op("Not", g.cast(x, DType.BOOL))


@aten("bitwise_not")
def bitwise_not(g: Builder, x: Value) -> Value:
    return g.op("Not" if x.dtype is DType.BOOL else "BitwiseNot", x)


def _logic(kind: str) -> Any:
    return lambda g, a, b: g.op(kind, g.cast(a, DType.BOOL), g.cast(b, DType.BOOL))


def _bits(kind: str) -> Any:
    def combine(g: Builder, a: Operand, b: Operand) -> Value:
        dtype = g.out.dtype
        return g.op(kind if dtype is DType.BOOL else f"Bitwise{kind}", g.as_type(a, dtype), g.as_type(b, dtype))

    return combine


for _name, _kind in (("and", "And"), ("or", "Or"), ("xor", "Xor")):
    aten(f"logical_{_name}")(_logic(_kind))
    aten(f"bitwise_{_name}.Tensor bitwise_{_name}.Scalar")(_bits(_kind))


@aten("where.self where.ScalarOther where.ScalarSelf where.Scalar")
def where(g: Builder, condition: Value, a: Operand, b: Operand) -> Value:
    dtype = g.out.dtype
    return g.op("Where", g.cast(condition, DType.BOOL), g.as_type(a, dtype), g.as_type(b, dtype), dtype=dtype)


@aten("masked_fill.Scalar masked_fill.Tensor")
def masked_fill(g: Builder, x: Value, mask: Value, value: Operand) -> Value:
    return g.op("Where", mask, g.as_type(value, g.out.dtype), g.cast(x, g.out.dtype), dtype=g.out.dtype)
