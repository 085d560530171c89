"""Reductions over axes, and running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from weft.core.graph.composite import Body, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, OpClass, register_op, standard_op
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.errors import ValueNeeded
from weft.ops.binary import divide
from weft.ops.elementwise import (
    ANY,
    FLOATS,
    NUMERIC,
    WIDE,
    Types,
    check_type,
    misfit,
    required_inputs,
    take_inputs,
    widen,
)
from weft.ops.shape import given, optional

INDICES: Types = frozenset({DType.INT32, DType.INT64})


def normalize_axis(op: Op, axis: int, rank: int) -> int:
    """Return the axis counted from the front; ModelError if it does not exist."""
    if not -rank <= axis < rank:
        raise misfit(op, f"axis {axis} does not exist in an input of rank {rank}")
    return axis + rank if axis < 0 else axis


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: int) -> Shape:
    """Return the shape with `axes` reduced to one element, or dropped."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


@op_dataclass
class Reduction(Op):
    """Combine the elements along the axes named by the second input, which must be constant."""

    flags: ClassVar[tuple[str, ...]] = ("keepdims", "noop_with_empty_axes")
    keepdims: int = 1
    noop_with_empty_axes: int = 0
    types: ClassVar[Types] = WIDE
    op_class: ClassVar[OpClass] = "reduction"

    combine: ClassVar[Callable[[Array, Shape], Any]]
    """Returns an array reduced over axes, each of which stays with size 1; float16 arrives as float32."""

    def resolve(self, axes: Array | None, rank: int) -> tuple[int, ...]:
        """Return the axes to reduce, sorted, from the value of the second input (None: missing)."""
        if axes is None or axes.size == 0:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        return tuple(sorted({normalize_axis(self, int(a), rank) for a in axes.reshape(-1)}))

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, axes = take_inputs(self, inputs, 1, 1)
        assert x is not None
        check_type(self, x, self.types)
        value = constants[1] if axes is not None and len(constants) > 1 else None
        if axes is not None:
            check_type(self, axes, INDICES, "axes")
            if value is None and axes.size:
                raise ValueNeeded("the shape of the output depends on axes that are computed at run time", index=1)
        return (TensorSpec(reduced_shape(x.dims, self.resolve(value, len(x.shape)), self.keepdims), x.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, axes = given(inputs, 0), optional(inputs, 1)
        which = self.resolve(axes, x.ndim)
        with np.errstate(all="ignore"):
            out = np.asarray(type(self).combine(widen(x), which))
            return out.reshape(reduced_shape(x.shape, which, self.keepdims)).astype(x.dtype, copy=False)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return one for each input element."""
        return prod(inputs[0] or ())


FEW = 64
"""How many floats are added one by one."""


def total(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the sum over `axes`, kept with size 1, in the type of x.

    numpy adds floats in pairs along the last axes alone, and one by one along others, where a million of them lose
    digits. So these are added up in parts.
    """
    axes = tuple(axis % x.ndim for axis in axes)
    first = next(axis + 1 for axis in range(x.ndim - 1, -2, -1) if axis not in axes)
    if x.dtype.kind == "f":
        for axis in axes:
            while axis < first and x.shape[axis] > FEW:
                x = _sums_of_few(x, axis)
    return np.asarray(np.add.reduce(x, axis=axes, keepdims=True, dtype=x.dtype))


def _sums_of_few(x: Array, axis: int) -> Array:
    """Return sums of up to FEW neighbours along an axis."""
    before, size, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    whole = size // FEW
    head, rest = np.split(x, [whole * FEW], axis)
    sums = np.add.reduce(head.reshape(*before, whole, FEW, *behind), axis=axis + 1)
    return np.concatenate([sums, np.add.reduce(rest, axis=axis, keepdims=True)], axis) if rest.size else sums


def reduction(
    name: str, what: str, combine: Callable[[Array, Shape], Any], *, types: Types = WIDE,
    op_class: OpClass = "reduction",
) -> type[Reduction]:
    """Register a reduction and return its class; `what` says what it computes."""
    body = {
        "__doc__": f"Compute {what}.", "__module__": __name__, "combine": staticmethod(combine), "types": types,
        "op_class": op_class,
    }
    cls: type[Reduction] = op_dataclass(type(name, (Reduction,), body))
    return register_op(cls)


def _mean(x: Array, axes: Shape) -> Array:
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    if not DType.of(x.dtype).is_integer:
        return divide(total(x, axes), np.asarray(count, x.dtype))
    wide = np.dtype(np.int64 if x.dtype.kind == "i" else np.uint64)  # the mean fits where the sum does not
    return divide(total(x.astype(wide), axes), np.asarray(count, wide)).astype(x.dtype)


def _log_sum_exp(x: Array, axes: Shape) -> Array:
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0)
    return np.asarray(np.log(total(np.exp(x - shift), axes)) + shift)


def bounds(dtype: Any) -> tuple[Any, Any]:
    """Return the least and the greatest value of a numpy dtype."""
    if dtype.kind == "f":
        return -np.inf, np.inf
    return (False, True) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


ReduceSum = reduction("ReduceSum", "the sum; of nothing: 0", total)
ReduceMean = reduction(
    "ReduceMean", "the mean; of nothing: NaN, and 0 for integers, which are rounded towards zero", _mean
)
ReduceProd = reduction(
    "ReduceProd", "the product; of nothing: 1", lambda x, axes: np.prod(x, axis=axes, keepdims=True, dtype=x.dtype)
)
ReduceL1 = reduction("ReduceL1", "the sum of absolute values", lambda x, axes: total(np.abs(x), axes))
ReduceL2 = reduction("ReduceL2", "the square root of the sum of squares", lambda x, axes: np.sqrt(total(x * x, axes)))
ReduceSumSquare = reduction("ReduceSumSquare", "the sum of squares", lambda x, axes: total(x * x, axes))
ReduceLogSum = reduction(
    "ReduceLogSum", "the logarithm of the sum; of nothing: minus infinity",
    lambda x, axes: np.log(total(x, axes)), types=FLOATS,
)
ReduceLogSumExp = reduction(
    "ReduceLogSumExp", "the logarithm of the sum of exponentials without overflow; of nothing: minus infinity",
    _log_sum_exp, types=FLOATS,
)
ReduceMax = reduction(
    "ReduceMax", "the maximum; of nothing: the least value of the type",
    lambda x, axes: np.max(x, axis=axes, keepdims=True, initial=bounds(x.dtype)[0]), types=ANY, op_class="exact",
)
ReduceMin = reduction(
    "ReduceMin", "the minimum; of nothing: the greatest value of the type",
    lambda x, axes: np.min(x, axis=axes, keepdims=True, initial=bounds(x.dtype)[1]), types=ANY, op_class="exact",
)


@op_dataclass
class _ArgReduction(Op):
    """Find the position of an extreme along one axis, the first or the last of equal ones."""

    flags: ClassVar[tuple[str, ...]] = ("keepdims", "select_last_index")
    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0

    search: ClassVar[Callable[[Array, int], Any]]
    """Returns the first position of the extreme along an axis."""

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        (x,) = required_inputs(self, inputs, 1)
        check_type(self, x, NUMERIC)
        axis = normalize_axis(self, self.axis, len(x.shape))
        if x.dims[axis] == 0:
            raise misfit(self, f"axis {self.axis} of {x} is empty")
        return (TensorSpec(reduced_shape(x.dims, (axis,), self.keepdims), DType.INT64),)

    def reference(self, *inputs: Array | None) -> Array:
        x = np.asarray(inputs[0])
        axis = normalize_axis(self, self.axis, x.ndim)
        if self.select_last_index:
            found = x.shape[axis] - 1 - type(self).search(np.flip(x, axis), axis)
        else:
            found = type(self).search(x, axis)
        return np.asarray(found, np.int64).reshape(reduced_shape(x.shape, (axis,), self.keepdims))


@standard_op
class ArgMax(_ArgReduction):
    """Compute the position of the maximum."""

    search = staticmethod(np.argmax)


@standard_op
class ArgMin(_ArgReduction):
    """Compute the position of the minimum."""

    search = staticmethod(np.argmin)


@op_dataclass
class _Scan(Op):
    """Combine all elements up to each one, along the axis that the second input holds."""

    flags: ClassVar[tuple[str, ...]] = ("exclusive", "reverse")
    exclusive: int = 0
    reverse: int = 0
    first: ClassVar[int]
    """The result before the first element."""
    function: ClassVar[np.ufunc]
    op_class: ClassVar[OpClass] = "reduction"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, axis = required_inputs(self, inputs, 2)
        check_type(self, x, WIDE)
        check_type(self, axis, INDICES, "axis")
        if axis.size != 1:
            raise misfit(self, f"axis must be a scalar, got {axis}")
        value = constants[1] if len(constants) > 1 else None
        if value is not None:
            normalize_axis(self, int(value.reshape(())), len(x.shape))
        return (x,)

    def reference(self, *inputs: Array | None) -> Array:
        x, axis = (np.asarray(a) for a in inputs[:2])
        where = int(axis.reshape(()))
        if not -x.ndim <= where < x.ndim:
            raise IndexError(f"axis {where} does not exist in an input of rank {x.ndim}")
        line = np.moveaxis(widen(x), where, 0)
        line = line[::-1] if self.reverse else line
        if self.exclusive and len(line):
            line = np.concatenate([np.full_like(line[:1], self.first), line[:-1]])
        with np.errstate(all="ignore"):
            out = self.function.accumulate(line, axis=0, dtype=line.dtype)
        out = out[::-1] if self.reverse else out
        return np.ascontiguousarray(np.moveaxis(out, 0, where)).astype(x.dtype, copy=False)


@standard_op
class CumSum(_Scan):
    """Compute running sums along an axis."""

    first: ClassVar[int] = 0
    function: ClassVar[np.ufunc] = np.add


@standard_op
class CumProd(_Scan):
    """Compute running products along an axis."""

    first: ClassVar[int] = 1
    function: ClassVar[np.ufunc] = np.multiply


@standard_op(type="weft::LinearRecurrence", op_class="reduction", most_inputs=3)
class LinearRecurrence(Op):
    """Along an axis, the result before it times a factor, plus a term; inputs factors, terms, start.

    Factors and terms have the shape of the result, and the start, which is before the first result, lacks the axis.
    """

    axis: int = 0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        factors, terms, start = required_inputs(self, inputs, 3)
        check_type(self, factors, FLOATS)
        axis = normalize_axis(self, self.axis, len(factors.dims))
        rest = TensorSpec((*factors.dims[:axis], *factors.dims[axis + 1 :]), factors.dtype)
        if terms != factors or start != rest:
            raise misfit(self, f"terms of {terms} and a start of {start} do not fit factors of {factors}")
        return (factors,)

    def reference(self, *inputs: Array | None) -> Array:
        factors, terms, start = (widen(np.asarray(a)) for a in inputs[:3])
        axis = normalize_axis(self, self.axis, factors.ndim)
        out = np.empty_like(factors)
        lines, state = np.moveaxis(out, axis, 0), start
        steps = zip(np.moveaxis(factors, axis, 0), np.moveaxis(terms, axis, 0), strict=True)
        for step, (factor, term) in enumerate(steps):
            lines[step] = state = factor * state + term
        return out.astype(np.asarray(inputs[0]).dtype, copy=False)


@decomposition("weft::LinearRecurrence")
def _steps(op: LinearRecurrence, make: Body, node: Node) -> Sequence[str]:
    factors, terms, state = node.inputs
    axis = op.axis % len(make.dims(factors))
    states = []
    for step in range(make.dims(factors)[axis]):
        at = make.constant(np.asarray(step, np.int64))
        factor, term = (make.add("Gather", value, at, axis=axis) for value in (factors, terms))
        state = make.add("Add", make.add("Mul", factor, state), term)
        states.append(make.add("Unsqueeze", state, make.ints(axis)))
    return [make.add("Concat", *states, axis=axis)] if len(states) > 1 else states
