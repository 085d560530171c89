"""Element-wise ops of two or more inputs; see `weft.ops.elementwise` for the language of expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, ClassVar, Literal

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.ops.conversion import convert
from weft.ops.elementwise import (
    ANY,
    BOOLEAN,
    INTEGERS,
    NUMERIC,
    WIDE,
    Elementwise,
    check_type,
    elementwise,
    misfit,
    take_inputs,
)
from weft.ops.unary import sigmoid


def divide(a: Array, b: Array) -> Array:
    """Return a / b, integers rounded towards zero."""
    if not np.issubdtype(a.dtype, np.integer):
        return np.asarray(a / b)
    quotient, rest = np.divmod(a, b)
    # A zero divisor has no defined quotient; its remainder is 0, so the quotient stays unchanged.
    return np.asarray(quotient + ((rest != 0) & ((a < 0) != (b < 0))).astype(a.dtype))


def power(base: Array, exponent: Array) -> Array:
    """Return base to the exponent; an integer base with an exponent of floats is computed in float64."""
    if not np.issubdtype(base.dtype, np.integer):
        made = np.asarray(np.power(base, exponent.astype(base.dtype)))
        if exponent.size == 1 and exponent.item() == 0.5:  # of which numpy makes a root: -0 and NaN for -0 and -inf
            made = np.where(base == -np.inf, base.dtype.type(np.inf), made + base.dtype.type(0))
        return made
    if not np.issubdtype(exponent.dtype, np.integer):
        made = np.asarray(np.power(base.astype(np.float64), exponent.astype(np.float64)))
        return convert(made, DType.of(base.dtype))
    # 1 / base to a power is whole for 1 and -1 alone, which do not change but for the sign.
    below = exponent < 0
    # In 64 bits every exponent fits, and the lower bits of what wraps are those of a narrower type.
    steps = np.where(below, exponent % 2, exponent).astype(np.uint64)
    whole = np.power(base.astype(np.uint64), steps).astype(base.dtype)
    return np.asarray(np.where(below & (np.abs(base) != 1), np.zeros((), base.dtype), whole))


pair = partial(elementwise, arity=2, types=NUMERIC)
Add = pair("Add", "a + b", "{0} + {1}", np.add)
Sub = pair("Sub", "a - b", "{0} - {1}", np.subtract)
Mul = pair("Mul", "a * b", "{0} * {1}", np.multiply)
Div = pair("Div", "a / b, integers rounded towards zero", "{0} / {1}", divide)


@op_dataclass
class _Comparison(Elementwise):
    """A comparison of two inputs."""

    def result_type(self, types: Sequence[DType]) -> DType:
        return DType.BOOL


relation = partial(elementwise, arity=2, op_class="exact", base=_Comparison)
Equal = relation("Equal", "a == b", None, np.equal, types=ANY)
Less = relation("Less", "a < b", None, np.less, types=NUMERIC)
LessOrEqual = relation("LessOrEqual", "a <= b", None, np.less_equal, types=NUMERIC)
Greater = relation("Greater", "a > b", None, np.greater, types=NUMERIC)
GreaterOrEqual = relation("GreaterOrEqual", "a >= b", None, np.greater_equal, types=NUMERIC)
COMPARISONS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "Equal": ("==", np.equal),
    "Less": ("<", np.less),
    "LessOrEqual": ("<=", np.less_equal),
    "Greater": (">", np.greater),
    "GreaterOrEqual": (">=", np.greater_equal),
}
"""C's operator and numpy's function of each comparison."""
And = relation("And", "a and b", None, np.logical_and, types=BOOLEAN)
Or = relation("Or", "a or b", None, np.logical_or, types=BOOLEAN)
Xor = relation("Xor", "a exclusive-or b", None, np.logical_xor, types=BOOLEAN)


bits = partial(elementwise, arity=2, types=INTEGERS, op_class="exact")
BitwiseAnd = bits("BitwiseAnd", "the conjunction of every bit", None, np.bitwise_and)
BitwiseOr = bits("BitwiseOr", "the disjunction of every bit", None, np.bitwise_or)
BitwiseXor = bits("BitwiseXor", "the exclusive-or of every bit", None, np.bitwise_xor)


@standard_op(op_class="exact", arity=2, types=INTEGERS)
class BitShift(Elementwise):
    """Shift the bits of the first input by the second; a distance out of range shifts everything out."""

    direction: str = "LEFT"

    def compute(self, x: Array, distance: Array) -> Array:
        width = x.dtype.itemsize * 8
        gone = (distance < 0) | (distance >= width)
        near = np.where(gone, 0, distance).astype(x.dtype)
        if self.direction == "LEFT":
            return np.where(gone, 0, np.left_shift(x, near))
        return np.where(gone, np.where(x < 0, -1, 0).astype(x.dtype), np.right_shift(x, near))

    def check(self, specs: Sequence[TensorSpec]) -> None:
        super().check(specs)
        if self.direction not in ("LEFT", "RIGHT"):
            raise misfit(self, f"direction is {self.direction!r}; allowed: LEFT, RIGHT")


@standard_op(flags=("fmod",), arity=2, types=NUMERIC)
class Mod(Elementwise):
    """Compute the remainder of a / b with the sign of b, or that of a where fmod is set."""

    fmod: int = 0

    def scalar(self, present: tuple[bool, ...]) -> str:
        """Return C's fmod, shifted by b where the result must have the other sign."""
        rest = "fmod({0}, {1})"
        if self.fmod:
            return rest
        moved = f"({rest} < 0.0) != ({{1}} < 0.0) ? {rest} + {{1}} : {rest}"
        return f"{rest} == 0.0 ? ({{1}} < 0.0 ? -0.0 : 0.0) : ({moved})"

    def compute(self, a: Array, b: Array) -> Array:
        return np.asarray(np.fmod(a, b) if self.fmod else np.mod(a, b))


@standard_op(op_class="transcendental", arity=2)
class Pow(Elementwise):
    """Compute the first input to the power of the second, in the type of the first."""

    expr: ClassVar[str] = "pow({0}, {1})"

    def compute(self, base: Array, exponent: Array) -> Array:
        return power(base, exponent)

    def check(self, specs: Sequence[TensorSpec]) -> None:
        check_type(self, specs[0], WIDE, "the base")
        check_type(self, specs[1], NUMERIC, "the exponent")


@standard_op(arity=2, types=WIDE)
class PRelu(Elementwise):
    """Compute x where it is not negative, else slope * x.

    A slope of one number a channel that does not broadcast is of its channel, as before opset 7.
    """

    expr: ClassVar[str] = "{0} < 0.0 ? {1} * {0} : {0}"

    def compute(self, x: Array, slope: Array) -> Array:
        if self.by_channel(x.shape, slope.shape):
            slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
        return np.where(x < 0, slope * x, x)

    @staticmethod
    def by_channel(x: Shape, slope: Shape) -> bool:
        """Tell whether the slope has one number a channel, and does not broadcast by itself."""
        return len(x) > 2 and slope == (x[1],) and slope not in ((1,), (x[-1],))

    def shape(self, specs: Sequence[TensorSpec]) -> Shape:
        if self.by_channel(specs[0].dims, specs[1].dims):
            return specs[0].dims
        if super().shape(specs) != specs[0].dims:
            raise misfit(self, f"a slope of {specs[1]} does not broadcast to x, {specs[0]}")
        return specs[0].dims


@standard_op(op_class="transcendental", arity=2)
class SwiGLU(Elementwise):
    """Compute a * sigmoid(alpha * a) * b for inputs of one shape."""

    alpha: float = 1.0
    expr: ClassVar[str] = "{0} / (1.0 + exp(-{alpha} * {0})) * {1}"

    def compute(self, a: Array, b: Array) -> Array:
        return np.asarray(a * sigmoid(self.alpha * a) * b)

    def shape(self, specs: Sequence[TensorSpec]) -> Shape:
        if specs[0].dims != specs[1].dims:
            raise misfit(self, f"inputs must have one shape, got {specs[0]} and {specs[1]}")
        return specs[0].dims


@standard_op(op_class="exact", arity=3)
class Where(Elementwise):
    """Choose from the second input where the first is true, else from the third."""

    def compute(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)

    def result_type(self, types: Sequence[DType]) -> DType:
        return types[1]

    def check(self, specs: Sequence[TensorSpec]) -> None:
        check_type(self, specs[0], BOOLEAN, "the condition")
        if specs[1].dtype != specs[2].dtype:
            raise misfit(self, f"the choices must have one type, got {specs[1]} and {specs[2]}")


@standard_op(type="weft::CompareSelect", op_class="exact", arity=4)
class CompareSelect(Elementwise):
    """Choose from the third input where the comparison of the first two holds, else from the fourth.

    `comparison` is an op of ONNX, and a Where that reads it does the same. Having neither a bool in between nor inputs
    of two types, this one has an expression, so that it fuses.
    """

    comparison: Literal["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]

    def scalar(self, present: tuple[bool, ...]) -> str:
        """Return C's comparison, false for NaN as numpy's is."""
        return f"{{0}} {COMPARISONS[self.comparison][0]} {{1}} ? {{2}} : {{3}}"

    def compute(self, a: Array, b: Array, x: Array, y: Array) -> Array:
        return np.where(COMPARISONS[self.comparison][1](a, b), x, y)

    def check(self, specs: Sequence[TensorSpec]) -> None:
        super().check(specs)
        if self.comparison not in COMPARISONS:
            raise misfit(self, f"comparison is {self.comparison!r}; allowed: {', '.join(COMPARISONS)}")


@standard_op(op_class="exact", types=NUMERIC)
class Clip(Elementwise):
    """Keep x between the scalars min and max, either of which may be missing; max wins over min.

    Without a limit, infinities stay on that side, as in onnx's evaluator and in ONNX's definition by other ops; ONNX
    Runtime has the largest number there. Before opset 11 the limits are the largest numbers of float32 unless given.
    """

    def given(self, inputs: Sequence[TensorSpec | None]) -> list[TensorSpec]:
        """Return x and the limits that are present."""
        return [s for s in take_inputs(self, inputs, 1, 2) if s is not None]

    def shape(self, specs: Sequence[TensorSpec]) -> Shape:
        for limit in specs[1:]:
            if limit.size != 1:
                raise misfit(self, f"min and max must be scalars, got {limit}")
        return specs[0].dims

    def scalar(self, present: tuple[bool, ...]) -> str:
        low, high = (*present, False, False)[1:3]
        lifted = "fmax({0}, {1})" if low else "{0}"
        return f"fmin({lifted}, {{2}})" if high else lifted

    def compute(self, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
        x = x if low is None else np.maximum(x, low.reshape(()))
        return x if high is None else np.minimum(x, high.reshape(()))

    def compute_into(self, out: Array, *inputs: Array) -> None:
        if len(inputs) < 3:
            super().compute_into(out, *inputs)
        else:
            np.clip(*inputs, out=out)


@op_dataclass
class _Variadic(Elementwise):
    """A fold over any number of inputs."""

    arity: ClassVar[int] = 0
    fold: ClassVar[str]
    """The expression of two terms."""
    function: ClassVar[Callable[..., Any]]

    def scalar(self, present: tuple[bool, ...]) -> str:
        terms = [f"{{{i}}}" for i in range(len(present))]
        return reduce(self.fold.format, terms)

    def compute(self, *inputs: Array) -> Array:
        return np.asarray(reduce(type(self).function, inputs))


@standard_op(op_class="exact", types=NUMERIC)
class Max(_Variadic):
    """Compute the largest of the inputs."""

    fold: ClassVar[str] = "fmax({}, {})"
    function: ClassVar[Callable[..., Any]] = np.maximum


@standard_op(op_class="exact", types=NUMERIC)
class Min(_Variadic):
    """Compute the smallest of the inputs."""

    fold: ClassVar[str] = "fmin({}, {})"
    function: ClassVar[Callable[..., Any]] = np.minimum


@standard_op
class Sum(_Variadic):
    """Compute the sum of the inputs."""

    fold: ClassVar[str] = "{} + {}"
    function: ClassVar[Callable[..., Any]] = np.add


@standard_op
class Mean(_Variadic):
    """Compute the mean of the inputs."""

    fold: ClassVar[str] = "{} + {}"
    function: ClassVar[Callable[..., Any]] = np.add

    def scalar(self, present: tuple[bool, ...]) -> str:
        return f"({super().scalar(present)}) / {float(len(present))}"

    def compute(self, *inputs: Array) -> Array:
        return np.asarray(super().compute(*inputs) / len(inputs))


MOST_EXPONENT = 2.0**31
"""Exponents up to this are taken for integers if they are whole."""
ULPS = 2.0**-46
"""How far, relatively, a power that a device computes in float64 may be off: 128 ulp."""


@decomposition("Pow")
def _pow(op: Pow, make: Body, node: Node) -> Sequence[str]:
    base, exponent = node.inputs
    kind = make.dtype(base)
    if not kind.is_integer or make.dtype(exponent).is_integer:
        return []
    known = make.known(exponent)
    if known is not None:
        numbers = known.astype(np.float64)
        if bool(((np.rint(numbers) == numbers) & (np.abs(numbers) < MOST_EXPONENT)).all()):
            return [make.add("Pow", base, make.constant(numbers.astype(np.int64)))]
    wide = make.add("Pow", make.cast(base, DType.FLOAT64), make.cast(exponent, DType.FLOAT64))
    # Just below a whole number, which it means, it would be rounded to the one before.
    whole = make.add("Round", wide)
    off = make.add("Abs", make.add("Sub", wide, whole))
    near = make.add("Less", off, make.add("Mul", make.add("Abs", wide), make.number(ULPS, wide)))
    return [make.cast(make.add("Where", near, whole, wide), kind)]


@decomposition("PRelu")
def _prelu(op: PRelu, make: Body, node: Node) -> Sequence[str]:
    x, slope = node.inputs
    dims = make.dims(x)
    spread = op.by_channel(dims, make.dims(slope))
    if spread:
        slope = make.reshape(slope, *make.dims(slope), *(1,) * (len(dims) - 2))
    if make.dtype(x).is_integer:
        return [make.add("Where", make.add("Less", x, make.number(0, x)), make.add("Mul", slope, x), x)]
    return [make.add("PRelu", x, slope)] if spread else []


@decomposition("weft::CompareSelect")
def _compare_select(op: CompareSelect, make: Body, node: Node) -> Sequence[str]:
    a, b, *choices = node.inputs
    return [make.add("Where", make.add(op.comparison, a, b), *choices)]
