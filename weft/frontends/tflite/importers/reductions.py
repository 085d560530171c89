"""Sums, means and the like along axes, and the places of extremes."""

from __future__ import annotations

from weft.core.graph.dtypes import DType
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
    if len(axes) == 2 and axes == (1, 2) and node.rank() == 4 and node.option("keep_dims"):
        # Images reduced to a pixel: beside convolutions, which have channels first, no transpose is left.
        x = node.add(REDUCED[node.op], node.first(node.value(0)), node.const([2, 3]), keepdims=1)
        return node.last(x)
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
