"""Sums, means and the like along axes, and the places of extremes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from weft.core.graph.dtypes import DType
from weft.errors import ModelError
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer

REDUCED = {
    "MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_PROD": "ReduceProd", "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
}  # fmt: skip


def _axes(node: TFLiteNode) -> tuple[int, ...]:
    """Return the axes in order; each counts once."""
    axes = node.integers(1, "the axes of a reduction")
    return tuple(sorted({node.axis(axis) for axis in axes}))


@importer(*REDUCED)
def reduced(node: TFLiteNode) -> str:
    """Reduce along constant axes; along none, nothing changes."""
    axes = _axes(node)
    if not axes:
        return node.value(0)
    return node.add(REDUCED[node.op], node.value(0), node.const(axes), keepdims=node.option("keep_dims"))


@importer("REDUCE_ANY", "REDUCE_ALL")
def reduced_truths(node: TFLiteNode) -> str:
    """Tell whether any or all are true."""
    op = "ReduceMax" if node.op == "REDUCE_ANY" else "ReduceMin"
    axes = _axes(node)
    if not axes:
        return node.value(0)
    made = node.add(op, node.cast(node.value(0), DType.INT32), node.const(axes), keepdims=node.option("keep_dims"))
    return node.cast(made, DType.BOOL)


@importer("ARG_MAX", "ARG_MIN")
def arg_extreme(node: TFLiteNode) -> str:
    """Return the place of the first extreme along a constant axis."""
    (axis,) = node.integers(1, "the axis")
    op = "ArgMax" if node.op == "ARG_MAX" else "ArgMin"
    return node.cast(node.add(op, node.value(0), axis=node.axis(axis), keepdims=0), node.output_dtype(), DType.INT64)


@importer("TOPK_V2")
def top_k(node: TFLiteNode) -> list[str]:
    """Return the largest values along the last axis, and their places."""
    count = node.constant(1)
    k = node.reshaped(node.cast(node.value(1), DType.INT64), (1,))
    if count is not None:
        k = node.const([int(count.reshape(-1)[0])])
    values, places = node.add_many("TopK", 2, node.value(0), k, axis=-1)
    return [values, node.cast(places, node.output_dtype(1), DType.INT64)]


@importer("CUMSUM")
def cumsum(node: TFLiteNode) -> str:
    """Return running sums along a constant axis."""
    (axis,) = node.integers(1, "the axis")
    return node.add(
        "CumSum", node.value(0), node.const(node.axis(axis)), exclusive=node.option("exclusive"),
        reverse=node.option("reverse"),
    )


WINDOWED = ("", "Add", "Mul", "Min", "Max", "And", "Or")
"""Weft's ops by the numbers of REDUCE_WINDOW's functions."""
MOST_IN_WINDOW = 512


@importer("REDUCE_WINDOW")
def reduce_window(node: TFLiteNode) -> str:
    """Reduce what lies in each place of a window; inputs x, start, and lists of window, strides and dilations.

    There is no padding. What a window has at one place is a slice of the tensor.
    """
    lists = [node.integers(k, "the window") for k in range(2, 5)]
    window = lists[0]
    sizes, function = node.sizes(), node.option("function")
    if not 1 <= function < len(WINDOWED) or any(len(each) != node.rank() or min(each) < 1 for each in lists):
        raise ModelError(f"windows of {window} by function {function} make no sense")
    if None in sizes or prod(window) > MOST_IN_WINDOW:
        raise ModelError(f"windows of {window} on a tensor of shape {sizes} are not supported")
    value = node.reshaped(node.value(1), ())
    for offset in product(*(range(n) for n in window)):
        value = node.add(WINDOWED[function], value, _taps(node, offset, lists))
    return value


def _taps(node: TFLiteNode, offset: Sequence[int], lists: Sequence[Sequence[int]]) -> str:
    """Return what all windows have at one place."""
    window, strides, dilations = lists
    starts, ends = [], []
    for axis, (k, n, stride, step) in enumerate(zip(offset, window, strides, dilations, strict=True)):
        whole = node.tensor(0).shape[axis] - (n - 1) * step
        if whole < 1:
            raise ModelError(f"a window of {window} is larger than a tensor of shape {node.tensor(0).shape}")
        starts.append(k * step)
        ends.append(k * step + (whole - 1) // stride * stride + 1)
    held = [node.const(each) for each in (starts, ends, range(node.rank()), strides)]
    return node.add("Slice", node.value(0), *held)
