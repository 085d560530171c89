"""Sums, means, extremes and other reductions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Sizes, Value, axes_of
from weft.frontends.torch.rules import Unsupported, aten

Axes = int | Sequence[int] | None


def _kept(x: Value, axes: Sequence[int]) -> Sizes:
    return tuple(1 if k in axes else d for k, d in enumerate(x.shape))


def _reduce(g: Builder, kind: str, x: Value, dims: Axes, keepdim: bool = False) -> Value:
    """Add a reduction in the type of `x`."""
    axes = axes_of(dims, x.rank)
    if not x.rank:
        return g.squeeze(g.op(kind, g.unsqueeze(x, [0]), g.ints([0]), keepdims=1, shape=(1,)), [0])
    kept = _kept(x, axes)
    shape = kept if keepdim else tuple(d for k, d in enumerate(x.shape) if k not in axes)
    return g.op(kind, x, g.ints(axes), keepdims=int(keepdim), shape=shape)


def _rule(kind: str) -> Any:
    return lambda g, x, dims=None, keepdim=False, *_: _reduce(g, kind, g.cast(x, g.out.dtype), dims, keepdim)


def _whole(kind: str) -> Any:
    return lambda g, x, *_: _reduce(g, kind, g.cast(x, g.out.dtype), None)


aten("sum.dim_IntList")(_rule("ReduceSum"))
aten("mean.dim")(_rule("ReduceMean"))
aten("amax")(_rule("ReduceMax"))
aten("amin")(_rule("ReduceMin"))
aten("prod.dim_int")(_rule("ReduceProd"))
aten("logsumexp")(_rule("ReduceLogSumExp"))
aten("sum")(_whole("ReduceSum"))
aten("mean")(_whole("ReduceMean"))
aten("max")(_whole("ReduceMax"))
aten("min")(_whole("ReduceMin"))
aten("prod")(_whole("ReduceProd"))


def _of_bools(kind: str) -> Any:
    def reduce(g: Builder, x: Value, dims: Axes = None, keepdim: bool = False) -> Value:
        counted = g.cast(g.cast(x, DType.BOOL), DType.INT32)
        return g.cast(_reduce(g, kind, counted, dims, keepdim), g.out.dtype)

    return reduce


aten("any any.dim any.dims")(_of_bools("ReduceMax"))
aten("all all.dim all.dims")(_of_bools("ReduceMin"))


def _place(g: Builder, kind: str, x: Value, dim: int | None, keepdim: bool) -> Value:
    if dim is None:
        flat = g.reshape(x, [-1], (None if None in x.shape else prod(d for d in x.shape if d is not None),))
        place = g.op(kind, flat, axis=0, keepdims=0, dtype=DType.INT64, shape=())
        return g.reshape(place, [1] * x.rank) if keepdim else place
    if not x.rank:
        return g.scalar(0, DType.INT64)
    shape = _kept(x, [dim % x.rank])
    place = g.op(kind, x, axis=dim % x.rank, keepdims=1, dtype=DType.INT64, shape=shape)
    return place if keepdim else g.squeeze(place, [dim])


@aten("argmax")
def argmax(g: Builder, x: Value, dim: int | None, keepdim: bool) -> Value:
    return _place(g, "ArgMax", x, dim, keepdim)


@aten("argmin")
def argmin(g: Builder, x: Value, dim: int | None, keepdim: bool) -> Value:
    return _place(g, "ArgMin", x, dim, keepdim)


@aten("max.dim")
def max_dim(g: Builder, x: Value, dim: int, keepdim: bool) -> list[Value]:
    return [_reduce(g, "ReduceMax", x, dim, keepdim), _place(g, "ArgMax", x, dim, keepdim)]


@aten("min.dim")
def min_dim(g: Builder, x: Value, dim: int, keepdim: bool) -> list[Value]:
    return [_reduce(g, "ReduceMin", x, dim, keepdim), _place(g, "ArgMin", x, dim, keepdim)]


def _variance(g: Builder, x: Value, dims: Axes, correction: float | None, keepdim: bool) -> tuple[Value, Value]:
    axes = axes_of(dims, x.rank)
    mean = _reduce(g, "ReduceMean", x, axes, True)
    apart = g.op("Sub", x, mean, shape=x.shape)
    squares = g.op("Mul", apart, apart, shape=x.shape)
    less = 1 if correction is None else correction
    variance = _reduce(g, "ReduceMean", squares, axes, keepdim)
    sizes = [x.shape[a] for a in axes]
    if less:
        if None in sizes:
            raise Unsupported("corrects for a number of elements that is open")
        count = prod(d for d in sizes if d is not None)
        factor = count / (count - less) if count > less else float("nan")
        variance = g.op("Mul", variance, g.scalar(factor, x.dtype), shape=variance.shape)
    return variance, mean if keepdim else g.squeeze(mean, axes)


@aten("var.correction")
def var(g: Builder, x: Value, dims: Axes, correction: float | None, keepdim: bool) -> Value:
    return _variance(g, x, dims, correction, keepdim)[0]


@aten("std.correction")
def std(g: Builder, x: Value, dims: Axes, correction: float | None, keepdim: bool) -> Value:
    return g.op("Sqrt", _variance(g, x, dims, correction, keepdim)[0])


@aten("var_mean.correction")
def var_mean(g: Builder, x: Value, dims: Axes, correction: float | None, keepdim: bool) -> list[Value]:
    return [*_variance(g, x, dims, correction, keepdim)]


@aten("linalg_vector_norm")
def vector_norm(g: Builder, x: Value, order: float, dims: Axes, keepdim: bool, *_: object) -> Value:
    x = g.cast(x, g.out.dtype)
    if order in (1, 2):
        return _reduce(g, f"ReduceL{int(order)}", x, dims, keepdim)
    size = g.op("Abs", x, shape=x.shape)
    if order in (float("inf"), float("-inf")):
        return _reduce(g, "ReduceMax" if order > 0 else "ReduceMin", size, dims, keepdim)
    if order == 0:
        nonzero = g.cast(g.cast(x, DType.BOOL), x.dtype)
        return _reduce(g, "ReduceSum", nonzero, dims, keepdim)
    powers = g.op("Pow", size, g.scalar(order, x.dtype), shape=x.shape)
    total = _reduce(g, "ReduceSum", powers, dims, keepdim)
    return g.op("Pow", total, g.scalar(1 / order, x.dtype), shape=total.shape)


@aten("cumsum")
def cumsum(g: Builder, x: Value, dim: int, *_: object) -> Value:
    return _running(g, "CumSum", x, dim)


@aten("cumprod")
def cumprod(g: Builder, x: Value, dim: int, *_: object) -> Value:
    return _running(g, "CumProd", x, dim)


def _running(g: Builder, kind: str, x: Value, dim: int) -> Value:
    x = g.cast(x, g.out.dtype)
    return g.op(kind, x, g.scalar(dim % x.rank, DType.INT64)) if x.rank else x


@aten("topk")
def topk(g: Builder, x: Value, k: int, dim: int, largest: bool, is_sorted: bool) -> list[Value]:
    return _ordered(g, x, k, dim, largest, is_sorted)


@aten("sort")
def sort(g: Builder, x: Value, dim: int, descending: bool) -> list[Value]:
    return _ordered(g, x, g.size(x, dim) if x.rank else 1, dim, descending, True)


@aten("sort.stable")
def sort_stable(g: Builder, x: Value, stable: bool | None, dim: int, descending: bool) -> list[Value]:
    return sort(g, x, dim, descending)


@aten("argsort argsort.stable")
def argsort(g: Builder, x: Value, *given: Any) -> Value:
    dim, descending = given[-2:]
    return sort(g, x, dim, descending)[1]


def _ordered(g: Builder, x: Value, k: Any, dim: int, largest: bool, is_sorted: bool) -> list[Value]:
    if not x.rank:
        return [x, g.scalar(0, DType.INT64)]
    shape = g.out.shape
    return g.ops("TopK", x, g.ints([k]), dtypes=[None, DType.INT64], shapes=[shape, shape], axis=dim,
                 largest=int(largest), sorted=int(is_sorted))
