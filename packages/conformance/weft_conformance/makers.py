"""What random networks are drawn from: makers of nodes with attributes that fit, and the rows of the op table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft_conformance.cases.table import Case
from weft_conformance.drawing import CHANNELS, TYPES, Drawing, Made

Maker = Callable[[Drawing, str], Made | None]
"""Return a node of an op to try, None if nothing fits."""

LARGEST_ROW = 6_000
"""Elements of the inputs of rows that become nodes of networks."""


def _window(d: Drawing, sides: Sequence[int], kernels: Sequence[int]) -> dict[str, Any]:
    """Return a kernel, strides, dilations and pads, often of different sizes by axis and end."""
    rank = len(sides)
    kernel = tuple(d.pick(kernels) for _ in range(rank)) if d.rng.random() < 0.5 else (d.pick(kernels),) * rank
    found: dict[str, Any] = {"kernel_shape": kernel, "strides": tuple(d.pick((1, 1, 2, 3)) for _ in range(rank))}
    if d.rng.random() < 0.3:
        found["dilations"] = tuple(d.pick((1, 2)) for _ in range(rank))
    kind = d.rng.random()
    if kind < 0.15:
        found["auto_pad"] = d.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif kind < 0.75:
        found["pads"] = tuple(d.pick(range((k + 1) // 2 + (k > 1))) if k > 1 else 0 for _ in range(2) for k in kernel)
    return found


def _conv(d: Drawing, kind: str) -> Made | None:
    x = d.value(4, 4, 3, 5)
    if x is None:
        return None
    _, channels, *sides = d.shape(x)
    group = d.pick((1, 1, 1, channels, *(g for g in (2, 3, 5) if channels % g == 0)))
    out = d.pick((1, 2, 3, 4) if group > 1 else (*CHANNELS, 4, 8))
    window = _window(d, sides, (1, 1, 2, 3, 3, 5))
    kernel = window["kernel_shape"]
    per_group = channels // group
    most = 2 * float(per_group * np.prod(kernel)) ** -0.5
    if kind == "ConvTranspose":
        weights = d.numbers(channels, d.pick((1, 2, 3)), *kernel, low=-most, high=most)
        total = weights.shape[1] * group
    else:
        total = out * group if group > 1 and out * group < 200 else out if group == 1 else group
        weights = d.numbers(total, per_group, *kernel, low=-most, high=most)
    bias = [d.numbers(total)] if d.rng.random() < 0.7 else []
    return Made(new_op(kind, group=group, **window), [x, weights, *bias])


def _pool(d: Drawing, kind: str) -> Made | None:
    x = d.value(4, 4, 3, 5)
    if x is None:
        return None
    window = _window(d, d.shape(x)[2:], (1, 2, 3))
    if "auto_pad" not in window and d.rng.random() < 0.4:
        window["ceil_mode"] = 1
    if kind == "AveragePool":
        window["count_include_pad"] = d.pick((0, 1))
    return Made(new_op(kind, **window), [x])


def _binary(d: Drawing, kind: str) -> Made | None:
    a = d.value()
    if a is None:
        return None
    shape = d.shape(a)
    if d.rng.random() < 0.5:
        cut = [s if d.rng.random() < 0.5 else 1 for s in shape]
        other: str | Array = d.numbers(*cut[int(d.rng.integers(len(shape) + 1)):], low=0.2)
    else:
        other = d.pick([v for v in d.values() if len(d.shape(v)) in (len(shape), len(shape) - 1)] or [a])
    pair = [a, other] if d.rng.random() < 0.6 else [other, a]
    return Made(new_op(kind), pair)


def _axis(d: Drawing, rank: int) -> int:
    return int(d.rng.integers(-rank, rank))


def _along_axis(d: Drawing, kind: str) -> Made | None:
    x = d.value()
    if x is None or not d.shape(x):
        return None
    return Made(new_op(kind, axis=_axis(d, len(d.shape(x)))), [x])


def _reduce(d: Drawing, kind: str) -> Made | None:
    x = d.value()
    if x is None or not d.shape(x):
        return None
    rank = len(d.shape(x))
    axes = d.rng.permutation(rank)[: int(d.rng.integers(1, rank + 1))]
    signed = [int(a) - rank * int(d.rng.integers(2)) for a in axes]
    inputs: list[str | Array] = [x] if d.rng.random() < 0.2 else [x, np.array(signed)]
    return Made(new_op(kind, keepdims=d.pick((0, 1))), inputs)


def _arg(d: Drawing, kind: str) -> Made | None:
    x = d.pick([v for v in d.values() if v in d.pure and d.shape(v)] or [None])
    if x is None:
        return None
    return Made(new_op(kind, axis=_axis(d, len(d.shape(x))), keepdims=d.pick((0, 1))), [x])


def _concat(d: Drawing, kind: str) -> Made | None:
    a = d.value()
    if a is None or not d.shape(a):
        return None
    shape, rank = d.shape(a), len(d.shape(a))
    axis = _axis(d, rank)
    same: list[str] = [v for v in d.values(rank)
            if all(p == q or k == axis % rank for k, (p, q) in enumerate(zip(d.shape(v), shape, strict=True)))]
    return Made(new_op(kind, axis=axis), [a, *(d.pick(same) for _ in range(int(d.rng.integers(0, 3))))])


def _split(d: Drawing, kind: str) -> Made | None:
    x = d.value()
    if x is None:
        return None
    axes = [k for k, s in enumerate(d.shape(x)) if s > 1]
    if not axes:
        return None
    axis = d.pick(axes)
    size = d.shape(x)[axis]
    cut = int(d.rng.integers(1, size))
    given = axis - len(d.shape(x)) * int(d.rng.integers(2))
    return Made(new_op(kind, axis=given, outputs=2), [x, np.array([cut, size - cut])], 2)


def _slice(d: Drawing, kind: str) -> Made | None:
    x = d.value()
    if x is None or not d.shape(x):
        return None
    shape = d.shape(x)
    axis = int(d.rng.integers(len(shape)))
    first = int(d.rng.integers(shape[axis]))
    step = d.pick((1, 1, 2, 3, -1, -2))
    end = d.pick((2**40, -1, shape[axis])) if step > 0 else d.pick((-(2**40), 0))
    if step > 0:
        first = first // 2
    named = axis - len(shape) * int(d.rng.integers(2))
    return Made(new_op(kind), [x, np.array([first]), np.array([end]), np.array([named]), np.array([step])])


def _pad(d: Drawing, kind: str) -> Made | None:
    x = d.value()
    if x is None or not d.shape(x):
        return None
    rank, mode = len(d.shape(x)), d.pick(("constant", "constant", "reflect", "edge"))
    amounts = np.array([d.pick((0, 0, 1, 2)) for _ in range(2 * rank)])
    more = [d.numbers()] if mode == "constant" and d.rng.random() < 0.5 else []
    return Made(new_op(kind, mode=mode), [x, amounts, *more])


def _transpose(d: Drawing, kind: str) -> Made | None:
    x = d.value()
    if x is None:
        return None
    return Made(new_op(kind, perm=tuple(int(k) for k in d.rng.permutation(len(d.shape(x))))), [x])


def _reshape(d: Drawing, kind: str) -> Made | None:
    x = d.value()
    if x is None or not d.shape(x):
        return None
    shape = d.shape(x)
    first = d.pick((0, shape[0]))
    ways = [(-1,), (first, -1), (first, -1, shape[-1]), (*shape[:-1], -1, 1), (1, *shape[:-1], -1)]
    return Made(new_op(kind), [x, np.array(d.pick(ways))])


def _unsqueeze(d: Drawing, kind: str) -> Made | None:
    x = d.value(1, 2, 3, 4)
    return None if x is None else Made(new_op(kind), [x, np.array([_axis(d, len(d.shape(x)) + 1)])])


def _gather(d: Drawing, kind: str) -> Made | None:
    x = d.value()
    if x is None or not d.shape(x):
        return None
    axis = _axis(d, len(d.shape(x)))
    size = d.shape(x)[axis]
    indices = d.rng.integers(-size, size, [(), (3,), (2, 2)][int(d.rng.integers(3))])
    return Made(new_op(kind, axis=axis), [x, np.asarray(indices, np.int64)])


def _matmul(d: Drawing, kind: str) -> Made | None:
    x = d.value(2, 3, 4)
    if x is None:
        return None
    *lead, rows, columns = d.shape(x)
    wide = d.pick((1, 3, 7, 16, 33))
    batch = d.pick(((), tuple(lead), (1,)))
    most = float(columns) ** -0.5
    if kind == "Gemm":
        trans = d.pick((0, 1))
        weights = d.numbers(*((wide, columns) if trans else (columns, wide)), low=-most, high=most)
        more = [d.numbers(*d.pick(((), (wide,), (1, wide))))] if d.rng.random() < 0.7 else []
        op = new_op(kind, alpha=d.pick((1.0, 0.5)), beta=d.pick((1.0, 2.0)), transB=trans)
        return Made(op, [x, weights, *more])
    if d.rng.random() < 0.3:
        return Made(new_op(kind), [d.numbers(*batch, wide, rows, low=-most, high=most), x])
    return Made(new_op(kind), [x, d.numbers(*batch, columns, wide, low=-most, high=most)])


def _batch_norm(d: Drawing, kind: str) -> Made | None:
    x = d.value(4, 3, 2, 5)
    if x is None:
        return None
    channels = d.shape(x)[1]
    return Made(new_op(kind), [x, *(d.numbers(channels) for _ in range(3)), d.numbers(channels, low=0.3)])


def _clip(d: Drawing, kind: str) -> Made | None:
    x = d.value()
    low, high = (np.asarray(v, np.float32) for v in (-0.25, 0.5))
    return None if x is None else Made(new_op(kind), [x, *d.pick(([low], [low, high], [None, high]))])


def _unary(d: Drawing, kind: str) -> Made | None:
    x = d.value()
    return None if x is None else Made(new_op(kind), [x])


def _scale_up(d: Drawing, kind: str) -> Made | None:
    x = d.value(4, 4, 3)
    if x is None:
        return None
    scales = [1.0, 1.0, *(d.pick((1.0, 2.0, 0.5, 3.0)) for _ in d.shape(x)[2:])]
    op = new_op(kind, mode=d.pick(("nearest", "linear")), coordinate_transformation_mode="asymmetric")
    return Made(op, [x, None, np.array(scales, np.float32)])


MAKERS: dict[str, Maker] = {
    "Conv": _conv, "ConvTranspose": _conv, "MaxPool": _pool, "AveragePool": _pool,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"), _binary),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Flatten"), _along_axis),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"), _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "Concat": _concat, "Split": _split, "Slice": _slice, "Pad": _pad, "Transpose": _transpose, "Reshape": _reshape,
    "Unsqueeze": _unsqueeze, "Gather": _gather, "MatMul": _matmul, "Gemm": _matmul, "Clip": _clip,
    "BatchNormalization": _batch_norm, "Resize": _scale_up,
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Abs", "Neg", "HardSigmoid", "Elu", "Erf", "Gelu",
                     "GlobalAveragePool", "GlobalMaxPool", "Identity", "Softplus", "Exp", "Sin", "Cos"), _unary),
}
"""Makers by the types of ops that they make."""


def serves(row: Case) -> bool:
    """Tell whether networks may have a node like the row's: of ordinary types, small, with inputs that are drawn."""
    there = [i for i in row.inputs if i is not None]
    op = row.make_op()
    return (
        any(not i.constant for i in there)
        and all(DType(i.dtype) in TYPES for i in there)
        and all(i.constant or i.value is None for i in there)
        and all(0 not in i.shape for i in there)
        and sum(prod(i.shape) for i in there) <= LARGEST_ROW
        and not op.from_optimizing
    )


def of_row(d: Drawing, row: Case) -> Made:
    """Return a node like a row's; it often reads a value of the network in the place of a first input of its rank."""
    constants = row.constants()
    inputs: list[Any] = [c if c is not None else i for c, i in zip(constants, row.inputs, strict=True)]
    first = next(k for k, i in enumerate(row.inputs) if i is not None and not i.constant)
    given = row.inputs[first]
    assert given is not None
    like = d.values(len(given.shape), DType(given.dtype))
    if like and d.rng.random() < 0.7:
        inputs[first] = d.pick(like)
    outputs = len(row.make_op().inferred(row.specs(), constants))
    return Made(row.make_op(), inputs, outputs)


