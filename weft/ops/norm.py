"""Normalizations: by stored statistics, by those of the tensor itself, or over adjacent channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from math import prod
from typing import ClassVar

import numpy as np

from weft.core.graph.composite import Body, Composite, decomposition
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Node
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.elementwise import FLOATS, Elementwise, check_type, misfit, widen
from weft.ops.reduce import total
from weft.ops.shape import given, many_axes, one_axis, optional, unfit

STASH_FLOAT = 1
"""The `stash_type` of every input: statistics in float32, of float64 in float64."""
STASH_DOUBLE = 11
"""The other `stash_type` of float64."""


def float_spec(spec: TensorSpec, least_rank: int = 0) -> TensorSpec:
    """Return the spec; ModelError if it is not of floats or its rank is too small."""
    if not spec.dtype.is_float or len(spec.dims) < least_rank:
        raise ModelError(f"{spec} does not fit", why=f"a float tensor of rank {least_rank} or more is needed")
    return spec


def _if_any(reference: Callable[..., Array]) -> Callable[..., Array]:
    """Return an empty x as it is: statistics of nothing, one for each row, may be far larger than x."""

    @wraps(reference)
    def normalized(self: Op, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        return reference(self, *inputs) if x.size else x

    return normalized


@standard_op(op_class="arithmetic", by_image=True, most_inputs=5, exact_parameters=(1, 2, 3, 4))
class BatchNormalization(Op):
    """Each channel shifted and scaled by stored statistics; inputs X, scale, B, mean, var."""

    epsilon: float = 1e-5
    momentum: float = 0.9

    def factor_and_shift(self, parameters: Sequence[Array]) -> tuple[Array, Array]:
        """Return in float64 what each channel is multiplied by, and what is then added, for scale, B, mean and var."""
        scale, shift, mean, var = (np.asarray(p, np.float64) for p in parameters)
        with np.errstate(all="ignore"):
            factor = scale / np.sqrt(var + self.epsilon)
            return factor, shift - mean * factor

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = float_spec(given(inputs, 0), 1)
        for index in range(1, 5):
            _check_vector(inputs, index, _channels(x.dims))
        return (x,)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        scale, shift, mean, var = (_column(given(inputs, k), x.ndim) for k in range(1, 5))
        factor = scale / np.sqrt(var + _scalar(self.epsilon, var))
        return np.asarray((widen(x) - mean) * factor + shift).astype(x.dtype, copy=False)


@standard_op(type="weft::ScaleShift", from_optimizing=True, arity=3)
class ScaleShift(Elementwise):
    """Multiply by the second input and add the third, both broadcast: a batch norm of known parameters on GPUs.

    The two have the type in which kernels compute, whatever the first one is stored as.
    """

    expr: ClassVar[str] = "{0} * {1} + {2}"

    def compute(self, x: Array, factor: Array, shift: Array) -> Array:
        return np.asarray(x * factor + shift)

    @staticmethod
    def factor_type(dtype: DType) -> DType:
        """Return the type of the factor and the shift of a value of this type."""
        return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32

    def check(self, specs: Sequence[TensorSpec]) -> None:
        check_type(self, specs[0], FLOATS)
        for spec in specs[1:]:
            check_type(self, spec, frozenset({self.factor_type(specs[0].dtype)}), "the factor or the shift")

    def shape(self, specs: Sequence[TensorSpec]) -> Shape:
        if super().shape(specs) != specs[0].dims:
            raise misfit(self, f"{specs[1]} and {specs[2]} do not broadcast to {specs[0]}")
        return specs[0].dims


@standard_op(op_class="reduction", most_inputs=5)
class TrainingBatchNormalization(Composite):
    """Each channel normalized by the batch, scaled and shifted: ONNX's BatchNormalization with training_mode=1.

    Inputs X, scale, B, mean, var; outputs Y and the statistics, moved towards those of the batch. Exporters write it
    for convolutions whose weights are standardized.
    """

    epsilon: float = 1e-5
    momentum: float = 0.9

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Add the mean, the variance, the norm, and what is kept of the statistics."""
        x, scale, shift, *kept = inputs
        dims = float_spec(make.graph.specs[x], 1).dims
        for index in range(1, 5):
            _check_vector([make.graph.specs[i] for i in inputs], index, _channels(dims))
        column = (_channels(dims), *(1 for _ in dims[2:]))
        others = make.ints(*(axis for axis in range(len(dims)) if axis != 1))
        wide = make.cast(x, DType.FLOAT32) if make.dtype(x) is DType.FLOAT16 else x
        mean = make.add("ReduceMean", wide, others)
        centred = make.add("Sub", wide, mean)
        variance = make.add("ReduceMean", make.add("Mul", centred, centred), others)
        deviation = make.add("Sqrt", make.add("Add", variance, make.number(self.epsilon, variance)))
        y = make.add("Div", centred, deviation)
        for kind, vector in (("Mul", scale), ("Add", shift)):
            y = make.add(kind, y, make.reshape(make.cast(vector, make.dtype(y)), *column))
        moved = []
        for old, new in zip(kept, (mean, variance), strict=True):
            new = make.reshape(make.cast(new, make.dtype(old)), *make.dims(old))
            parts = [(old, self.momentum), (new, 1 - self.momentum)]
            moved.append(make.add("Add", *(make.add("Mul", v, make.number(part, v)) for v, part in parts)))
        return [make.cast(y, make.dtype(x)), *moved]


@standard_op(op_class="reduction", by_image=True, most_inputs=3)
class InstanceNormalization(Op):
    """Each channel of each image normalized by itself, scaled and shifted; inputs X, scale, B."""

    epsilon: float = 1e-5

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = float_spec(given(inputs, 0), 3)
        _check_vector(inputs, 1, x.dims[1])
        _check_vector(inputs, 2, x.dims[1])
        return (x,)

    @_if_any
    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        y, _, _ = _standardize(widen(x), tuple(range(2, x.ndim)), self.epsilon)
        return (y * _column(given(inputs, 1), x.ndim) + _column(given(inputs, 2), x.ndim)).astype(x.dtype)


@standard_op(op_class="reduction", by_image=True, most_inputs=3)
class GroupNormalization(Op):
    """Each group of channels normalized by itself; each channel scaled and shifted; inputs X, scale, bias."""

    num_groups: int
    epsilon: float = 1e-5
    stash_type: int = STASH_FLOAT

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = float_spec(given(inputs, 0), 3)
        _check_stash(self.stash_type, x)
        _check_groups(self.num_groups, x)
        _check_vector(inputs, 1, x.dims[1])
        _check_vector(inputs, 2, x.dims[1])
        return (x,)

    @_if_any
    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        groups = widen(x).reshape(x.shape[0], self.num_groups, prod(x.shape[1:]) // self.num_groups)
        y = _standardize(groups, (2,), self.epsilon)[0].reshape(x.shape)
        return (y * _column(given(inputs, 1), x.ndim) + _column(given(inputs, 2), x.ndim)).astype(x.dtype)


@standard_op(op_class="reduction", most_inputs=3)
class GroupScaledNormalization(Composite):
    """Each group of channels normalized, scaled and shifted: ONNX's GroupNormalization before opset 21.

    Inputs X, and a scale and a bias for each group.
    """

    num_groups: int
    epsilon: float = 1e-5

    def body(self, make: Body, inputs: Sequence[str]) -> Sequence[str]:
        """Repeat the scale and the bias for each channel, and normalize."""
        specs = [make.graph.specs[i] for i in inputs]
        x = float_spec(specs[0], 3)
        _check_groups(self.num_groups, x)
        parameters = []
        for index in (1, 2):
            _check_vector(specs, index, self.num_groups, "groups")
            column = make.reshape(inputs[index], self.num_groups, 1)
            repeated = make.add("Expand", column, make.ints(self.num_groups, x.dims[1] // self.num_groups))
            parameters.append(make.reshape(repeated, x.dims[1]))
        groups, epsilon = self.num_groups, self.epsilon
        return [make.add("GroupNormalization", inputs[0], *parameters, num_groups=groups, epsilon=epsilon)]


@standard_op(op_class="reduction", most_inputs=3)
class LayerNormalization(Op):
    """The axes from `axis` on normalized together; inputs X, Scale, B; outputs Y, Mean, InvStdDev.

    `outputs` is the number of outputs of the node.
    """

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = STASH_FLOAT
    outputs: int = 1

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = float_spec(given(inputs, 0), 1)
        _check_stash(self.stash_type, x)
        axis = one_axis(self.axis, len(x.dims))
        _check_suffix(given(inputs, 1), x.dims)
        if optional(inputs, 2) is not None:
            _check_suffix(given(inputs, 2), x.dims)
        dtype = DType.FLOAT64 if x.dtype is DType.FLOAT64 else DType.FLOAT32
        statistics = TensorSpec((*x.dims[:axis], *(1,) * (len(x.dims) - axis)), dtype)
        return (x, statistics, statistics)[: max(self.outputs, 1)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale, b = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        if not x.size and self.outputs < 2:
            return (x,)
        axes = tuple(range(one_axis(self.axis, x.ndim), x.ndim))
        y, mean, factor = _standardize(widen(x), axes, self.epsilon)
        y = y * widen(scale) if b is None else y * widen(scale) + widen(b)
        return (y.astype(x.dtype, copy=False), mean, factor)[: max(self.outputs, 1)]


@decomposition("LayerNormalization")
def _layer_norm(op: LayerNormalization, make: Body, node: Node) -> Sequence[str]:
    x, *parameters = node.inputs
    if make.dtype(x) is not DType.FLOAT32 or len(node.outputs) > 1:
        return []  # float16 holds neither the epsilon nor large squares
    rank = len(make.dims(x))
    axes = make.constant(np.arange(op.axis % rank, rank))
    centred = make.add("Sub", x, make.add("ReduceMean", x, axes))
    variance = make.add("ReduceMean", make.add("Mul", centred, centred), axes)
    root = make.add("Sqrt", make.add("Add", variance, make.number(op.epsilon, x)))
    value = make.add("Div", centred, root)
    for kind, parameter in zip(("Mul", "Add"), parameters, strict=False):
        value = make.add(kind, value, parameter) if parameter else value
    return [value]


@standard_op(op_class="reduction", most_inputs=2)
class RMSNormalization(Op):
    """The axes from `axis` on divided by their root mean square, and scaled; inputs X, scale.

    The scale may be of another type, and the output is of that. What is scaled is not rounded to the type of X before.
    """

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = STASH_FLOAT

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = float_spec(given(inputs, 0), 1)
        _check_stash(self.stash_type, x)
        one_axis(self.axis, len(x.dims))
        scale = float_spec(given(inputs, 1), 0)
        _check_suffix(scale, x.dims)
        return (replace(x, dtype=scale.dtype),)

    def reference(self, *inputs: Array | None) -> Array:
        x, scale = given(inputs, 0), given(inputs, 1)
        if not x.size:
            return x.astype(scale.dtype, copy=False)
        axes = tuple(range(one_axis(self.axis, x.ndim), x.ndim))
        wide = widen(x)
        mean = _mean(np.square(wide), axes)
        normalized = wide / np.sqrt(mean + _scalar(self.epsilon, mean))
        return np.asarray(normalized * widen(scale)).astype(scale.dtype, copy=False)


@decomposition("RMSNormalization")
def _rms_norm(op: RMSNormalization, make: Body, node: Node) -> Sequence[str]:
    """Return a normalization in the wider of two types, or in float32, and a conversion; the parts if both are one."""
    x, scale = node.inputs
    types = make.dtype(x), make.dtype(scale)
    if types[0] is types[1]:
        if types[0] is not DType.FLOAT32:
            return []  # as of LayerNormalization
        rank = len(make.dims(x))
        mean = make.add("ReduceMean", make.add("Mul", x, x), make.constant(np.arange(op.axis % rank, rank)))
        root = make.add("Sqrt", make.add("Add", mean, make.number(op.epsilon, x)))
        return [make.add("Mul", make.add("Div", x, root), scale)]
    wide = DType.FLOAT64 if DType.FLOAT64 in types else DType.FLOAT32
    normalized = make.all(op.type, make.cast(x, wide), make.cast(scale, wide), made=1, **op.attributes())
    return [make.cast(normalized[0], types[1])]


@standard_op(op_class="reduction", by_image=True, most_inputs=1)
class LRN(Op):
    """Each element divided by a power of the squares at its position in `size` adjacent channels."""

    size: int
    alpha: float = 0.0001
    beta: float = 0.75
    bias: float = 1.0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = float_spec(given(inputs, 0), 2)
        if self.size < 1:
            raise ModelError(f"size is {self.size}", why="at least one channel is needed")
        return (x,)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        wide, sums, channels = widen(x), np.zeros_like(widen(x)), x.shape[1]
        squares = np.square(wide)
        for shift in range(-min((self.size - 1) // 2, channels - 1), min(self.size // 2, channels - 1) + 1):
            target = slice(max(-shift, 0), channels - max(shift, 0))
            sums[:, target] += squares[:, max(shift, 0) : channels + min(shift, 0)]
        factor = (self.bias + self.alpha / self.size * sums) ** -self.beta
        return (wide * factor).astype(x.dtype, copy=False)


@decomposition("LRN")
def _of_doubles(op: LRN, make: Body, node: Node) -> Sequence[str]:
    """Return an LRN of float64 by a pool along the channels: the packed kernel computes in float32."""
    (x,) = node.inputs
    n, channels, *places = make.dims(x)
    if make.dtype(x) is not DType.FLOAT64 or 0 in make.dims(x):
        return []
    squares = make.reshape(make.add("Mul", x, x), n, 1, channels, prod(places))
    around = ((op.size - 1) // 2, 0, op.size // 2, 0)
    mean = make.add("AveragePool", squares, kernel_shape=(op.size, 1), pads=around, count_include_pad=1)
    scaled = make.add("Mul", make.reshape(mean, *make.dims(x)), make.number(op.alpha, x))
    factor = make.add("Pow", make.add("Add", scaled, make.number(op.bias, x)), make.number(-op.beta, x))
    return [make.add("Mul", x, factor)]


@standard_op(op_class="reduction", most_inputs=1)
class LpNormalization(Op):
    """The tensor divided by its 1-norm or 2-norm along one axis; zero where that is zero."""

    axis: int = -1
    p: int = 2

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = float_spec(given(inputs, 0), 1)
        one_axis(self.axis, len(x.dims))
        if self.p not in (1, 2):
            raise ModelError(f"LpNormalization with p={self.p} is undefined", why="ONNX has p=1 and p=2")
        return (x,)

    @_if_any
    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        wide = widen(x)
        powers = np.abs(wide) if self.p == 1 else np.square(wide)
        norm = total(powers, (self.axis,))
        norm = norm if self.p == 1 else np.sqrt(norm)
        out = np.zeros_like(wide)
        np.divide(wide, norm, out=out, where=norm != 0)
        return out.astype(x.dtype, copy=False)


def _along_one_axis(inputs: Sequence[TensorSpec | None], axis: int) -> TensorSpec:
    """Return the spec of what is normalized along an axis, and so of the result; ModelError if it has no such axis."""
    x = float_spec(given(inputs, 0), 1)
    one_axis(axis, len(x.dims))
    return x


@standard_op(type="weft::L2Normalization", op_class="reduction", most_inputs=1)
class L2Normalization(Op):
    """The tensor divided by its 2-norm along one axis, or by `least` where the norm is less.

    `torch.nn.functional.normalize` is that; a norm of 0 that `least` does not raise yields NaN.
    """

    axis: int = -1
    least: float = 0.0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return (_along_one_axis(inputs, self.axis),)

    @_if_any
    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        wide = widen(x)
        norm = np.sqrt(total(np.square(wide), (self.axis,)))
        return np.asarray(wide / np.maximum(norm, _scalar(self.least, norm))).astype(x.dtype, copy=False)


@decomposition("weft::L2Normalization")
def _l2_norm(op: L2Normalization, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    if make.dtype(x) is not DType.FLOAT32:
        return []  # float16 holds no large squares
    norm = make.add("ReduceL2", x, make.ints(op.axis))
    return [make.add("Div", x, make.add("Max", norm, make.number(op.least, x)))]


@standard_op(type="weft::SumNormalization", op_class="reduction", most_inputs=1)
class SumNormalization(Op):
    """The tensor divided by `epsilon` plus its sum along one axis, or plus its mean where `mean` is 1.

    Elements count with their sign, so that a sum may be 0: what is divided by that is infinite or NaN. GPUs multiply by
    the reciprocal, which fp32 does not hold of sums below 2**-128: there such sums count as 0.
    """

    axis: int = -1
    mean: int = 0
    epsilon: float = 0.0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        return (_along_one_axis(inputs, self.axis),)

    @_if_any
    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        wide = widen(x)
        divisor = _mean(wide, (self.axis,)) if self.mean else total(wide, (self.axis,))
        return np.asarray(wide / (divisor + _scalar(self.epsilon, divisor))).astype(x.dtype, copy=False)


@decomposition("weft::SumNormalization")
def _sum_norm(op: SumNormalization, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    if make.dtype(x) is not DType.FLOAT32:
        return []  # float16 holds no large sums
    divisor = make.add("ReduceMean" if op.mean else "ReduceSum", x, make.ints(op.axis))
    return [make.add("Div", x, make.add("Add", divisor, make.number(op.epsilon, x)))]


@standard_op(type="weft::GroupDeviation", op_class="reduction", by_image=True, most_inputs=1)
class GroupDeviation(Op):
    """For each element, the root of `epsilon` and the variance of its image's group of channels, as EvoNorm divides by.

    The result has the shape of the input.
    """

    num_groups: int
    epsilon: float = 1e-5

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = float_spec(given(inputs, 0), 2)
        _check_groups(self.num_groups, x)
        return (x,)

    @_if_any
    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        groups = widen(x).reshape(x.shape[0], self.num_groups, prod(x.shape[1:]) // self.num_groups)
        variance = _mean(np.square(groups - _mean(groups, (2,))), (2,))
        deviation = np.sqrt(variance + _scalar(self.epsilon, variance)).astype(x.dtype, copy=False)
        return np.broadcast_to(deviation, groups.shape).reshape(x.shape)


@decomposition("weft::GroupDeviation")
def _group_deviation(op: GroupDeviation, make: Body, node: Node) -> Sequence[str]:
    (x,) = node.inputs
    if make.dtype(x) is not DType.FLOAT32:
        return []  # float16 holds no large squares
    dims = make.dims(x)
    each = prod(dims[1:]) // op.num_groups
    groups, last = make.reshape(x, dims[0], op.num_groups, each), make.ints(-1)
    centred = make.add("Sub", groups, make.add("ReduceMean", groups, last))
    variance = make.add("ReduceMean", make.add("Mul", centred, centred), last)
    deviation = make.add("Sqrt", make.add("Add", variance, make.number(op.epsilon, x)))
    return [make.reshape(make.add("Expand", deviation, make.ints(dims[0], op.num_groups, each)), *dims)]


@standard_op(op_class="reduction", most_inputs=1)
class MeanVarianceNormalization(Op):
    """The given axes together brought to mean zero and variance one."""

    axes: tuple[int, ...] = (0, 2, 3)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = float_spec(given(inputs, 0))
        many_axes(self.axes, len(x.dims))
        return (x,)

    @_if_any
    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        wide, axes = widen(x), many_axes(self.axes, x.ndim)
        centred = wide - _mean(wide, axes)
        deviation = np.sqrt(_mean(np.square(centred), axes))
        return np.asarray(centred / (deviation + _scalar(1e-9, wide))).astype(x.dtype, copy=False)


def _mean(x: Array, axes: Shape) -> Array:
    """Return the means along axes, which are kept; of nothing NaN. numpy's own `mean` takes longer for a short row."""
    count = prod([x.shape[a] for a in axes])
    if not count:
        return np.full(tuple(1 if a in axes else size for a, size in enumerate(x.shape)), np.nan, x.dtype)
    return np.asarray(total(x, axes) / count)


def _standardize(x: Array, axes: Shape, epsilon: float) -> tuple[Array, Array, Array]:
    """Return x with mean 0 and variance 1 along the axes, its mean, and the factor it was scaled by."""
    mean = _mean(x, axes)
    centred = x - mean
    factor = 1 / np.sqrt(_mean(np.square(centred), axes) + _scalar(epsilon, x))
    return centred * factor, mean, factor


def _scalar(value: float, like: Array) -> Array:
    return np.asarray(value, like.dtype)


def _column(vector: Array, rank: int) -> Array:
    return widen(vector).reshape(-1, *(1,) * max(rank - 2, 0))


def _channels(dims: Shape) -> int:
    return dims[1] if len(dims) > 1 else 1


def _check_groups(groups: int, x: TensorSpec) -> None:
    if groups < 1 or x.dims[1] % groups:
        raise unfit(f"{x.dims[1]} channels are not {groups} equal groups")


def _check_vector(inputs: Sequence[TensorSpec | None], index: int, count: int, what: str = "channels") -> None:
    spec = float_spec(given(inputs, index))
    if spec.dims != (count,):
        raise unfit(f"input {index} of shape {spec.dims} does not fit {count} {what}")


def _check_suffix(spec: TensorSpec, dims: Shape) -> None:
    pairs = zip(reversed(float_spec(spec).dims), reversed(dims), strict=False)
    if len(spec.dims) > len(dims) or any(a not in (1, b) for a, b in pairs):
        raise unfit(f"a scale or bias of shape {spec.dims} does not broadcast to {dims}")


def _check_stash(stash_type: int, x: TensorSpec) -> None:
    if stash_type != STASH_FLOAT and (stash_type, x.dtype) != (STASH_DOUBLE, DType.FLOAT64):
        raise ModelError(
            f"stash_type {stash_type} is not supported of {x}",
            why="statistics are computed in float32 (1), and of float64 in float64 (11)",
        )
