"""Elements that indices choose or replace, segments, and what is found by value."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.errors import ModelError
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer


def _static(node: TFLiteNode, k: int) -> tuple[int, ...]:
    sizes = node.sizes(k)
    if None in sizes:
        raise ModelError("an input of open sizes is not supported", why=f"input {k} is {sizes}")
    return node.tensor(k).shape


@importer("GATHER", moves=True)
def gather(node: TFLiteNode) -> str:
    """Take slices along an axis; the first `batch_dims` axes of data and indices go together."""
    batch = node.axis(node.option("batch_dims"), node.rank(1) + 1)
    axis = node.axis(node.option("axis"))
    if not batch:
        return node.add("Gather", node.value(0), node.value(1), axis=axis)
    data, places = _static(node, 0), _static(node, 1)
    if axis < batch or data[:batch] != places[:batch]:
        raise ModelError(f"indices of shape {places} do not fit data of shape {data} on axis {axis}")
    # All slices of all batches along one axis: those of a batch begin where the batch does.
    order = (*range(batch), axis, *(k for k in range(batch, len(data)) if k != axis))
    moved = [data[k] for k in order]
    rows = node.add("Transpose", node.value(0), perm=order) if order != tuple(range(len(data))) else node.value(0)
    rows = node.reshaped(rows, (prod(moved[: batch + 1]), *moved[batch + 1 :]))
    batches = np.arange(node.few(prod(data[:batch]), "batches")).reshape(data[:batch])
    begins = batches.reshape(*data[:batch], *(1,) * (len(places) - batch)) * data[axis]
    index = node.add("Add", node.cast(node.value(1), DType.INT64, node.dtype(1)), node.const(begins))
    found = node.add("Gather", rows, index, axis=0)
    # Axes now: those of the indices, then those of the data without the axis, of which some belong before it.
    before, own = axis - batch, len(places) - batch
    rank = len(places) + len(data) - batch - 1
    back = (
        *range(batch), *range(batch + own, batch + own + before), *range(batch, batch + own),
        *range(batch + own + before, rank),
    )
    return node.add("Transpose", found, perm=back) if before else found


@importer("EMBEDDING_LOOKUP", moves=True)
def embedding_lookup(node: TFLiteNode) -> str:
    """Take rows of a table; inputs indices, table."""
    return node.add("Gather", node.value(1), node.value(0), axis=0)


@importer("GATHER_ND", moves=True)
def gather_nd(node: TFLiteNode) -> str:
    """Take the slices that the last axis of the indices names."""
    return node.add("GatherND", node.value(0), node.cast(node.value(1), DType.INT64, node.dtype(1)))


def _whole(node: TFLiteNode, k: int, value: float) -> str:
    """Return a tensor of one number, of the shape that an input of integers says."""
    dtype = node.output_dtype()
    if node.constant(k) is not None:
        return node.add("Expand", node.const(value, dtype), node.const(node.integers(k, "the shape")))
    return node.add("Expand", node.const(value, dtype), node.cast(node.value(k), DType.INT64, node.dtype(k)))


@importer("SCATTER_ND")
def scatter_nd(node: TFLiteNode) -> str:
    """Add updates to zeros at the places that indices name; inputs indices, updates, shape."""
    index = node.cast(node.value(0), DType.INT64, node.dtype())
    return node.add("ScatterND", _whole(node, 2, 0), index, node.value(1), reduction="add")


@importer("SPARSE_TO_DENSE")
def sparse_to_dense(node: TFLiteNode) -> str:
    """Put values at places, and a default elsewhere; inputs places, shape, values, default."""
    index = node.cast(node.value(0), DType.INT64, node.dtype())
    if node.rank() < 2:
        index = node.reshaped(index, (-1, 1) if node.rank() else (1, 1))
    count = node.sizes()[0] if node.rank() else 1
    values = node.value(2)
    if node.rank(2) == 0:
        if count is None:
            raise ModelError("one value for an open number of places is not supported")
        values = node.add("Expand", values, node.const([count]))
    shape = node.const(node.integers(1, "the shape"))
    whole = node.add("Expand", node.reshaped(node.value(3), ()), shape)
    return node.add("ScatterND", whole, index, values)


@importer("DYNAMIC_UPDATE_SLICE", "STABLEHLO_DYNAMIC_UPDATE_SLICE", moves=True)
def dynamic_update_slice(node: TFLiteNode) -> str:
    """Replace a box of a tensor, which is moved inside if it begins outside."""
    whole, part = _static(node, 0), _static(node, 1)
    if len(whole) != len(part) or any(n > m for n, m in zip(part, whole, strict=True)):
        raise ModelError(f"a box of {part} does not fit a tensor of {whole}")
    node.few(prod(part) * len(part), "the places of a box")
    begins = _begins(node, 2, [m - n for m, n in zip(whole, part, strict=True)])
    places = np.stack(np.meshgrid(*(np.arange(n) for n in part), indexing="ij"), -1)
    return node.add("ScatterND", node.value(0), node.add("Add", begins, node.const(places)), node.value(1))


@importer("STABLEHLO_DYNAMIC_SLICE", moves=True)
def dynamic_slice(node: TFLiteNode) -> str:
    """Take a box of a tensor, which is moved inside if it begins outside; each begin is an input."""
    whole, sizes = _static(node, 0), node.listed("sizes")
    begins = _begins(node, 1, [m - n for m, n in zip(whole, sizes, strict=True)])
    ends = node.add("Add", begins, node.const(sizes))
    return node.add("Slice", node.value(0), begins, ends, node.const(range(len(whole))))


def _begins(node: TFLiteNode, k: int, most: list[int]) -> str:
    """Return begins of a box from an input on, one list or a number each, kept between zero and the most."""
    if node.rank(k):
        begins = node.cast(node.value(k), DType.INT64, node.dtype(k))
    else:
        each = [node.cast(node.value(n), DType.INT64, node.dtype(n)) for n in range(k, len(node))]
        begins = node.add("Concat", *(node.reshaped(value, (1,)) for value in each), axis=0)
    return node.add("Max", node.add("Min", begins, node.const(most)), node.const(0))


@importer("ONE_HOT")
def one_hot(node: TFLiteNode) -> str:
    """Write one number at indices along a new axis and another elsewhere; inputs indices, depth, on, off."""
    depth = node.reshaped(node.cast(node.value(1), DType.INT64, node.dtype(1)), ())
    if node.constant(1) is not None:
        depth = node.const(node.integers(1, "the depth")[0])
    values = [node.reshaped(node.value(k), (1,)) for k in (3, 2)]
    return node.add("OneHot", node.value(0), depth, node.add("Concat", *values, axis=0), axis=node.option("axis"))


@importer("WHERE")
def where(node: TFLiteNode) -> str:
    """Return the places of what is not zero, a row each."""
    return node.cast(
        node.add("Transpose", node.add("NonZero", node.value(0)), perm=(1, 0)), node.output_dtype(), DType.INT64
    )


@importer("UNIQUE")
def unique(node: TFLiteNode) -> list[str]:
    """Return different elements as they first come, and which of them each element is."""
    values, _, places = node.add_many("Unique", 3, node.value(0), sorted=0)
    return [values, node.cast(places, node.output_dtype(1), DType.INT64)]


@importer("SEGMENT_SUM")
def segment_sum(node: TFLiteNode) -> str:
    """Add the rows of each segment; which segment a row is of is constant."""
    ids = node.integers(1, "the segments")
    if list(ids) != sorted(ids) or not ids or ids[0] < 0:
        raise ModelError("the segments are not in order")
    shape = (ids[-1] + 1, *_static(node, 0)[1:])
    zeros = node.add("Expand", node.const(0, node.output_dtype()), node.const(shape))
    return node.add("ScatterND", zeros, node.const(np.array(ids)[:, None]), node.value(0), reduction="add")


@importer("UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN")
def unsorted_segments(node: TFLiteNode) -> str:
    """Join the rows of each segment, whose number is a constant; inputs data, segments, their number."""
    (count,) = node.integers(2, "the number of segments")
    data, rows, dtype = _static(node, 0), _static(node, 1), node.output_dtype()
    kind = node.op.rpartition("_")[2]
    if data[: len(rows)] != rows or count < 0:
        raise ModelError(f"{count} segments of shape {rows} do not fit data of shape {data}")
    limits = np.finfo(dtype.numpy) if dtype.is_float else np.iinfo(dtype.numpy)
    start = {"SUM": 0, "PROD": 1, "MAX": limits.min, "MIN": limits.max}[kind]
    reduction = {"SUM": "add", "PROD": "mul", "MAX": "max", "MIN": "min"}[kind]
    # One segment more takes the rows of negative segments, which count nowhere.
    shape = (count + 1, *data[len(rows) :])
    whole = node.add("Expand", node.const(start, dtype), node.const(shape))
    ids = node.cast(node.value(1), DType.INT64, node.dtype(1))
    ids = node.add("Where", node.add("Less", ids, node.const(0)), node.const(count), ids)
    index = node.add("Unsqueeze", ids, node.const([-1]))
    made = node.add("ScatterND", whole, index, node.value(0), reduction=reduction)
    return node.add("Slice", made, node.const([0]), node.const([count]), node.const([0]))


@importer("BUCKETIZE")
def bucketize(node: TFLiteNode) -> str:
    """Return how many boundaries, which are in order, are not above each element."""
    boundaries = node.const(node.listed("boundaries"), DType.FLOAT32)
    x = node.add("Unsqueeze", node.cast(node.value(0), DType.FLOAT32, node.dtype()), node.const([-1]))
    passed = node.cast(node.add("GreaterOrEqual", x, boundaries), DType.INT32)
    return node.cast(node.add("ReduceSum", passed, node.const([-1]), keepdims=0), node.output_dtype(), DType.INT32)


@importer("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(node: TFLiteNode) -> list[str]:
    """Choose boxes that do not overlap; inputs boxes, scores, the most boxes, two thresholds, and sigma in version 5.

    Behind the chosen ones are zeros. Returns indices, in version 5 scores, and how many there are.
    """
    most = node.few(node.integers(2, "the number of boxes")[0], "boxes")
    if node.op.endswith("V5"):
        sigma = node.constant(5)
        if sigma is None or sigma.any():
            raise ModelError("scores that fall with the overlap (sigma) are not supported")
    boxes = node.add("Unsqueeze", node.value(0), node.const([0]))
    scores = node.add("Unsqueeze", node.value(1), node.const([0, 1]))
    thresholds = [node.reshaped(node.value(k), (1,)) for k in (3, 4)]
    found = node.add("NonMaxSuppression", boxes, scores, node.const([most]), *thresholds)
    chosen = node.reshaped(node.add("Slice", found, node.const([2]), node.const([3]), node.const([1])), (-1,))
    index, count = padded(node, chosen, most)
    made = [node.cast(index, DType.INT32)]
    if node.op.endswith("V5"):
        made.append(padded(node, node.add("Gather", node.value(1), chosen), most, node.dtype(1))[0])
    return [*made, node.cast(count, DType.INT32)]


def padded(node: TFLiteNode, values: str, most: int, dtype: DType = DType.INT64) -> tuple[str, str]:
    """Return a list with zeros behind it up to the most elements, and how many it has."""
    count = node.reshaped(node.add("Shape", values), ())
    longer = node.add("Concat", values, node.const(np.zeros(most), dtype), axis=0)
    return node.add("Slice", longer, node.const([0]), node.const([most]), node.const([0])), count
