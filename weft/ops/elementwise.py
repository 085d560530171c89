"""What all element-wise ops share: broadcasting, types, and the expression that kernels contain.

An element-wise op is a numpy function and the same function as one scalar expression:

    Abs = elementwise("Abs", "|x|", "fabs({0})", np.abs, types=NUMERIC, op_class="exact")

A GPU puts the expression into a separate kernel or into another kernel's store, so an op that has
one runs, and fuses, on every device. In an expression `{0}`, `{1}` are the inputs by position, `{alpha}` is
an attribute, all of them of the type that the kernel computes in: f32, or float64 if
the op reads or makes that. It may use + - * /, comparisons, `c ? a : b`, decimal literals and

    fabs fmin fmax exp expm1 log log1p sqrt tanh erf pow floor ceil rint fmod
    sin cos tan asin acos atan sinh cosh asinh acosh atanh is_nan is_inf narrow_float16 narrow_bfloat16 round_near

with C's meaning, except that fmin and fmax return NaN if either operand is NaN. The last three, which C does not have,
return the nearest number that a narrower type holds, and the nearest integer of a number below 2^22, no zero negative.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, OpClass, filled_by, register_op, silent
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.core.host.threads import each_block, is_divided
from weft.errors import ModelError

Types = frozenset[DType]
FLOATS: Types = frozenset(t for t in DType if t.is_float)
SHORT_FLOATS: Types = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ})
INTEGERS: Types = frozenset(t for t in DType if t.is_integer and t.bits >= 8)
"""The integers that ops compute in; those of two and four bits are only stored, and converted."""
SIGNED: Types = FLOATS | {t for t in INTEGERS if t.is_signed}
NUMERIC: Types = FLOATS | INTEGERS
WIDE: Types = FLOATS | {DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}
"""The types that ONNX allows in products and sums: floats, and integers of 32 bits and more."""
BOOLEAN: Types = frozenset({DType.BOOL})
ANY: Types = frozenset(DType)


def misfit(op: Op, why: str) -> ModelError:
    """Return the error for an op whose inputs or attributes do not fit."""
    return ModelError(f"{op} does not fit its inputs", why=why)


def take_inputs(
    op: Op, inputs: Sequence[TensorSpec | None], required: int, optional: int = 0
) -> list[TensorSpec | None]:
    """Return the inputs padded with None to `required` + `optional`; ModelError if the count is wrong."""
    given = list(inputs)
    while len(given) > required and given[-1] is None:
        given.pop()
    if len(given) > required + optional or len(given) < required or any(s is None for s in given[:required]):
        most = f" to {required + optional}" if optional else ""
        raise misfit(op, f"takes {required}{most} inputs, got {[s and str(s) for s in inputs]}")
    return given + [None] * (required + optional - len(given))


def required_inputs(op: Op, inputs: Sequence[TensorSpec | None], count: int) -> list[TensorSpec]:
    """Return exactly `count` inputs, none of them missing; ModelError otherwise."""
    return [s for s in take_inputs(op, inputs, count) if s is not None]


def check_type(op: Op, spec: TensorSpec, types: Types, what: str = "input") -> None:
    """Raise ModelError if the element type of `spec` is not among `types`."""
    if spec.dtype not in types:
        allowed = ", ".join(t.value for t in DType if t in types)
        raise misfit(op, f"{what} is {spec.dtype.value}; allowed: {allowed}")


def broadcast(op: Op, shapes: Sequence[Shape]) -> Shape:
    """Return the shape that numpy broadcasting gives, of any rank; ModelError if there is none."""
    if len(set(map(len, shapes))) == 1 and shapes.count(shapes[0]) == len(shapes):
        return tuple(shapes[0])
    rank = max(map(len, shapes), default=0)
    columns = zip(*((1,) * (rank - len(s)) + tuple(s) for s in shapes), strict=True)
    sizes = []
    for column in columns:
        others = [d for d in column if type(d) is not int or d != 1]
        if any(d != others[0] for d in others):  # an open size may be 1
            others = [d for d in others if d != 1]
            if any(d != others[0] for d in others):
                raise misfit(op, f"shapes {' and '.join(map(str, shapes))} do not broadcast")
        sizes.append(others[0] if others else 1)
    return tuple(sizes)


def widen(array: Array) -> Array:
    """Return float16 and bfloat16 as float32, in which they are computed; any other array unchanged."""
    return array.astype(np.float32) if is_half(array.dtype) else array


def is_half(dtype: np.dtype) -> bool:
    """Tell whether arrays of a numpy dtype are floats of 16 bits."""
    if dtype.itemsize != 2:
        return False
    return dtype == np.float16 or (dtype.kind == "V" and dtype.name == DType.BFLOAT16.value)


BLOCK = 1 << 15
"""Elements that are computed at a time, so that what lies between stays in a core's cache."""


def is_plain(array: Array | None) -> bool:
    """Tell whether numpy computes with an array in its own type: numbers and booleans, but no floats of 16 bits."""
    return array is not None and array.dtype.kind in "fiub" and array.dtype != np.float16


@dataclass(frozen=True, slots=True)
class Expression:
    """An element-wise op as kernels compute it."""

    text: str
    """Operands are {0}, {1} ...: the inputs by position, then the numbers."""
    numbers: tuple[float, ...] = ()
    """The attributes that the text has. They are constants of a kernel, so one kernel serves all their values."""


@op_dataclass
class Elementwise(Op):
    """Apply one function to corresponding elements of the broadcast inputs."""

    is_elementwise: ClassVar[bool] = True
    arity: ClassVar[int] = 1
    """The number of inputs; 0 for one or more."""
    types: ClassVar[Types] = FLOATS
    expr: ClassVar[str | None] = None
    """The function as a scalar expression, before `expression` adds parentheses; None: no GPU form."""
    op_class: ClassVar[OpClass] = "arithmetic"
    ufunc: ClassVar[np.ufunc | None] = None
    """The function itself, if numpy has it."""

    def compute(self, *inputs: Any, **_: Any) -> Array:
        """Return the result for numpy inputs (None for a missing one); floats of 16 bits arrive as float32."""
        raise NotImplementedError(type(self).__name__)

    def compute_into(self, out: Array, *inputs: Any) -> None:
        """Put what `compute` returns, which is none of the inputs, into an array; none of the inputs is missing."""
        out[...] = self.compute(*inputs)

    def result_type(self, types: Sequence[DType]) -> DType:
        """Return the element type of the output, given those of the inputs that are present."""
        return types[0]

    def check(self, specs: Sequence[TensorSpec]) -> None:
        """Raise ModelError if the inputs that are present do not fit; by default only types are checked."""
        for spec in specs:
            check_type(self, spec, self.types)
        if len({s.dtype for s in specs}) > 1:
            raise misfit(self, f"inputs must have one type, got {', '.join(map(str, specs))}")

    def shape(self, specs: Sequence[TensorSpec]) -> Shape:
        """Return the shape of the output; by default numpy broadcasting."""
        return broadcast(self, [s.dims for s in specs])

    def expression(self, present: tuple[bool, ...]) -> Expression | None:
        """Return the GPU form, or None if there is none; `present` tells which inputs are given.

        Each operand that is an input is in parentheses, and so is the whole, so any sub-expression may replace it.
        """
        text = self.scalar(present)
        if text is None:
            return None
        attributes = self.attributes().items()
        numbers = {name: v for name, v in attributes if isinstance(v, (int, float)) and f"{{{name}}}" in text}
        inputs = (f"({{{k}}})" for k in range(len(present)))
        named = {name: f"{{{k}}}" for k, name in enumerate(numbers, len(present))}
        return Expression(f"({text.format(*inputs, **named)})", tuple(map(float, numbers.values())))

    def scalar(self, present: tuple[bool, ...]) -> str | None:
        """Return `expr`, or the expression for these inputs."""
        return self.expr

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        if self.arity == 0 and not inputs:
            raise misfit(self, "takes at least one input, got none")
        specs = self.given(inputs)
        self.check(specs)
        return (TensorSpec(self.shape(specs), self.result_type([s.dtype for s in specs])),)

    def given(self, inputs: Sequence[TensorSpec | None]) -> list[TensorSpec]:
        """Return the inputs that are present; ModelError if a required one is missing."""
        return required_inputs(self, inputs, self.arity or len(inputs))

    def fill(self, outputs: Sequence[Array], *inputs: Array | None) -> bool:
        """Compute into `outputs`, block by block; False if inputs are broadcast otherwise than from one element."""
        (out,), arrays = outputs, [a for a in inputs if a is not None]
        if len(arrays) < len(inputs) or not all(map(is_plain, (out, *arrays))):
            return False
        flat = all(a.size == 1 or (a.shape == out.shape and a.flags.c_contiguous) for a in arrays)
        if self.ufunc is not None and not (flat and is_divided(out.nbytes)):
            with np.errstate(all="ignore"):
                self.ufunc(*arrays, out=out)
            return True
        if not flat:
            return False
        result, whole = out.reshape(-1), [a.reshape(-1) for a in arrays]

        def compute(start: int) -> None:
            part = slice(start, start + BLOCK)
            self.compute_into(result[part], *(a if a.size == 1 else a[part] for a in whole))

        with np.errstate(all="ignore"):
            each_block(compute, range(0, out.size, BLOCK))
        return True

    @silent
    @filled_by(fill)
    def reference(self, *inputs: Array | None) -> Array:
        types = [DType.of(a.dtype) for a in inputs if a is not None]
        while len(inputs) > max(self.arity, 1) and inputs[-1] is None:
            inputs = inputs[:-1]  # like `infer`: a missing last input may be left out
        with np.errstate(all="ignore"):
            result = self.compute(*(None if a is None else widen(a) for a in inputs))
            return np.asarray(result).astype(self.result_type(types).numpy, copy=False)


def elementwise(
    name: str, what: str, expr: str | None, function: Callable[..., Any], *, arity: int = 1,
    types: Types = FLOATS, op_class: OpClass = "arithmetic", not_negative: bool = False,
    base: type[Elementwise] = Elementwise, into: bool = False,
) -> type[Elementwise]:
    """Register an element-wise op without attributes and return its class; `what` says what it computes.

    With `into`, the function takes an array of the type of its input before it, and puts the result there.
    """

    def compute(self: Elementwise, *inputs: Array) -> Array:
        if not into:
            return np.asarray(function(*inputs))
        out = np.empty_like(inputs[0])
        function(out, *inputs)
        return out

    body = {
        "__doc__": f"Compute {what}.",
        # The caller's module, as in namedtuple, so that the class pickles and errors point there.
        "__module__": sys._getframe(1).f_globals["__name__"],
        "arity": arity,
        "types": types,
        "expr": expr,
        "op_class": op_class,
        "not_negative": not_negative,
        "compute": compute,
        "ufunc": function if isinstance(function, np.ufunc) else None,
    }
    if into:
        body["compute_into"] = lambda self, out, *inputs: function(out, *inputs)
    cls: type[Elementwise] = op_dataclass(type(name, (base,), body))
    return register_op(cls)
