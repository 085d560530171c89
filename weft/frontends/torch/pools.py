"""Pools: the largest and the mean of windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Value
from weft.frontends.torch.rules import Unsupported, aten


def _each(values: int | Sequence[int], count: int) -> tuple[int, ...]:
    given = (values,) if isinstance(values, int) else tuple(values)
    return given * count if len(given) == 1 else given


def _window(
    kernel: Sequence[int], stride: Sequence[int] | None, padding: Sequence[int], ceil_mode: bool, rank: int
) -> dict[str, Any]:
    size, pads = _each(kernel, rank), _each(padding, rank)
    strides = _each(stride, rank) if stride else size
    return {"kernel_shape": size, "strides": strides, "pads": (*pads, *pads), "ceil_mode": int(ceil_mode)}


def _batched(g: Builder, x: Value, rank: int) -> tuple[Value, bool]:
    """Return an image with an axis for the batch, and whether it had none."""
    return (g.unsqueeze(x, [0]), True) if x.rank == rank + 1 else (x, False)


def _max_pool(g: Builder, x: Value, rank: int, window: dict[str, Any], outputs: int) -> list[Value]:
    x, alone = _batched(g, x, rank)
    shape = (1, *g.out.shape) if alone else g.out.shape
    types = [None, DType.INT64][:outputs]
    made = g.ops("MaxPool", x, dtypes=types, shapes=[shape] * outputs, outputs=outputs, **window)
    if outputs == 2:
        sizes = x.shape[2:]
        if None in sizes:
            raise Unsupported("gives places in an image whose size is open")
        plane = g.scalar(int(np.prod([d for d in sizes if d is not None])), DType.INT64)
        made[1] = g.op("Mod", made[1], plane, shape=shape)  # ONNX counts from the first image, torch from each plane
    return [g.squeeze(y, [0]) if alone else y for y in made]


def _max_rule(rank: int, outputs: int) -> Any:
    def max_pool(
        g: Builder, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
        dilation: Sequence[int], ceil_mode: bool,
    ) -> Value | list[Value]:
        window = _window(kernel, stride, padding, ceil_mode, rank) | {"dilations": _each(dilation, rank)}
        made = _max_pool(g, x, rank, window, outputs)
        return made if outputs == 2 else made[0]

    return max_pool


def _average_rule(rank: int) -> Any:
    def average(
        g: Builder, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool,
        count_include_pad: bool, divisor: int | None = None,
    ) -> Value:
        window = _window(kernel, stride, padding, ceil_mode, rank)
        if divisor and ceil_mode:
            raise Unsupported("has a divisor of its own and windows that reach beyond the image")
        x, alone = _batched(g, x, rank)
        shape = (1, *g.out.shape) if alone else g.out.shape
        y = g.op("AveragePool", x, shape=shape, count_include_pad=int(count_include_pad or bool(divisor)), **window)
        if divisor:
            y = g.op("Mul", y, g.scalar(float(np.prod(window["kernel_shape"])) / divisor, y.dtype), shape=shape)
        return g.squeeze(y, [0]) if alone else y

    return average


def _spans(size: int, count: int) -> list[tuple[int, int]]:
    """Return where the windows of an adaptive pool begin and end."""
    return [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]


def _adaptive_sizes(x: Value, wanted: Sequence[int | None], rank: int) -> list[tuple[int, int]]:
    pairs = []
    for size, count in zip(x.shape[-rank:], wanted if len(wanted) == rank else [*wanted] * rank, strict=True):
        count = size if count is None else count
        if not isinstance(count, int) or (size is None and count != 1):
            raise Unsupported("needs an image of a fixed size, or a result of one pixel")
        pairs.append((size or 0, count))
    return pairs


def _even(pairs: Sequence[tuple[int, int]]) -> bool:
    return all(size and size % count == 0 for size, count in pairs)


def _adaptive_average(rank: int) -> Any:
    def adaptive(g: Builder, x: Value, wanted: Sequence[int]) -> Value:
        pairs = _adaptive_sizes(x, wanted, rank)
        if all(count == 1 for _, count in pairs):
            return g.op("ReduceMean", x, g.ints(range(x.rank - rank, x.rank)), keepdims=1)
        if _even(pairs):
            kernel = [size // count for size, count in pairs]
            y: Value = _average_rule(rank)(g, x, kernel, kernel, [0] * rank, False, False)
            return y
        for k, (size, count) in enumerate(pairs):  # the mean of a box is the mean of rows of means
            axis = x.rank - rank + k
            weights = np.zeros((size, count), x.dtype.numpy)
            for j, (begin, end) in enumerate(_spans(size, count)):
                weights[begin:end, j] = 1 / (end - begin)
            order = [*(a for a in range(x.rank) if a != axis), axis]
            turned = g.transpose(x, order)
            y = g.op("MatMul", turned, g.constant(weights), shape=(*turned.shape[:-1], count))
            x = g.transpose(y, [order.index(a) for a in range(x.rank)])
        return x

    return adaptive


def _adaptive_max(rank: int) -> Any:
    def adaptive(g: Builder, x: Value, wanted: Sequence[int]) -> list[Value]:
        pairs = _adaptive_sizes(x, wanted, rank)
        if _even(pairs):
            kernel = [size // count for size, count in pairs]
            return _max_pool(g, x, rank, _window(kernel, kernel, [0] * rank, False, rank), 2)
        for k, (size, count) in enumerate(pairs):
            axis = x.rank - rank + k
            shape = (*x.shape[:axis], 1, *x.shape[axis + 1:])
            parts = [
                g.op("ReduceMax", g.slice(x, axis, begin, end), g.ints([axis]), keepdims=1, shape=shape)
                for begin, end in (_spans(size, count) if size else [(0, 2**62)])
            ]
            x = parts[0] if count == 1 else g.op("Concat", *parts, axis=axis,
                                                shape=(*shape[:axis], count, *shape[axis + 1:]))
        return [x]  # who reads the places is refused

    return adaptive


for _rank in (1, 2, 3):
    aten(f"max_pool{_rank}d")(_max_rule(_rank, 1))
    aten(f"max_pool{_rank}d_with_indices")(_max_rule(_rank, 2))
    aten(f"avg_pool{_rank}d")(_average_rule(_rank))
    aten(f"adaptive_max_pool{_rank}d")(_adaptive_max(_rank))
    aten(f"adaptive_avg_pool{_rank}d" + (f" _adaptive_avg_pool{_rank}d" if _rank > 1 else ""))(
        _adaptive_average(_rank)
    )
