"""Ops that move elements: other shapes, parts of tensors, and tensors of parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.errors import ModelError
from weft.frontends.tflite.node import TFLiteNode
from weft.frontends.tflite.registry import importer

END = np.iinfo(np.int64).max
"""Behind the last element of every axis, for Slice."""
START = -END
"""Before the first element of every axis, for a Slice that goes backwards."""


@importer("RESHAPE", "STABLEHLO_RESHAPE", moves=True)
def reshape(node: TFLiteNode) -> str:
    """Keep the order; the shape is an input, or an option in old files."""
    if node.op == "STABLEHLO_RESHAPE":
        return node.reshaped(node.value(0), _known(node.output().sizes))
    if node.has(1) and node.constant(1) is None:
        return node.add("Reshape", node.value(0), node.cast(node.value(1), DType.INT64, node.dtype(1)), allowzero=1)
    shape = node.integers(1, "the shape") if node.has(1) else node.listed("new_shape")
    return node.reshaped(node.value(0), shape)


def _known(sizes: Sequence[int | None]) -> tuple[int, ...]:
    """Return a shape in which -1 stands for the one size that is open; ModelError if several are."""
    if sum(size is None for size in sizes) > 1:
        raise ModelError(f"the shape {tuple(sizes)} is open on several axes")
    return tuple(-1 if size is None else size for size in sizes)


@importer("SQUEEZE", moves=True)
def squeeze(node: TFLiteNode) -> str:
    """Drop axes of size one: those named, or all."""
    axes = node.listed("squeeze_dims")
    return node.add("Squeeze", node.value(0), node.const(axes) if axes else "")


@importer("EXPAND_DIMS", moves=True)
def expand_dims(node: TFLiteNode) -> str:
    """Add an axis of size one."""
    (axis,) = node.integers(1, "the axis")
    return node.add("Unsqueeze", node.value(0), node.const([axis]))


@importer("TRANSPOSE", moves=True)
def transpose(node: TFLiteNode) -> str:
    """Put the axes in another order."""
    order = node.integers(1, "the order of the axes")
    return node.add("Transpose", node.value(0), perm=tuple(node.axis(axis) for axis in order))


@importer("STABLEHLO_TRANSPOSE", moves=True)
def stablehlo_transpose(node: TFLiteNode) -> str:
    """Put the axes in another order."""
    return node.add("Transpose", node.value(0), perm=node.listed("permutation"))


@importer("CONCATENATION", moves=True)
def concatenation(node: TFLiteNode) -> str:
    """Join tensors along an axis."""
    axis = node.axis(node.option("axis"))
    return node.activated(node.add("Concat", *node.values(), axis=axis))


@importer("STABLEHLO_CONCATENATE", moves=True)
def stablehlo_concatenate(node: TFLiteNode) -> str:
    """Join tensors along an axis."""
    return node.add("Concat", *node.values(), axis=node.option("dimension"))


@importer("PACK", moves=True)
def pack(node: TFLiteNode) -> str:
    """Stack tensors along a new axis."""
    axis = node.axis(node.option("axis"), node.rank() + 1)
    parts = [node.add("Unsqueeze", value, node.const([axis])) for value in node.values()]
    return node.add("Concat", *parts, axis=axis)


@importer("UNPACK", moves=True)
def unpack(node: TFLiteNode) -> list[str]:
    """Take a tensor apart along an axis, which goes."""
    axis, count = node.axis(node.option("axis")), node.option("num")
    if node.sizes()[axis] not in (None, count) or count != node.outputs:
        raise ModelError(f"it has {node.outputs} outputs for {node.sizes()[axis]} parts")
    return [node.add("Squeeze", part, node.const([axis])) for part in _split(node, 0, axis, [1] * count)]


@importer("SPLIT", moves=True)
def split(node: TFLiteNode) -> list[str]:
    """Take a tensor apart into equal parts; inputs axis, x."""
    (axis,) = node.integers(0, "the axis")
    axis, count = node.axis(axis, node.rank(1)), node.outputs
    size = node.sizes(1)[axis]
    if size is None or not count or size % count:
        raise ModelError(f"an axis of size {size} cannot be split into {count}")
    return _split(node, 1, axis, [size // count] * count)


@importer("SPLIT_V", moves=True)
def split_v(node: TFLiteNode) -> list[str]:
    """Take a tensor apart into parts of given sizes, one of which may be what is left; inputs x, sizes, axis."""
    sizes, (axis,) = list(node.integers(1, "the sizes")), node.integers(2, "the axis")
    axis = node.axis(axis)
    whole = node.sizes()[axis]
    if -1 in sizes and whole is not None:
        sizes[sizes.index(-1)] = whole - (sum(sizes) + 1)
    if min(sizes, default=-1) < 0 or len(sizes) != node.outputs:
        raise ModelError(f"an axis of size {whole} cannot be split into {sizes}")
    return _split(node, 0, axis, sizes)


def _split(node: TFLiteNode, k: int, axis: int, sizes: Sequence[int]) -> list[str]:
    if len(sizes) == 1:
        return [node.value(k)]
    return node.add_many("Split", len(sizes), node.value(k), node.const(sizes), axis=axis, outputs=len(sizes))


@importer("TILE", moves=True)
def tile(node: TFLiteNode) -> str:
    """Repeat a tensor along each axis."""
    return node.add("Tile", node.value(0), _index(node, 1))


def _index(node: TFLiteNode, k: int) -> str:
    """Return an input of integers as int64."""
    if node.constant(k) is not None:
        return node.const(node.integers(k, "it"))
    return node.cast(node.value(k), DType.INT64, node.dtype(k))


@importer("PAD", "PADV2", moves=True)
def pad(node: TFLiteNode) -> str:
    """Put a number around a tensor: zero, or the one given; for integers with a scale, what stands for zero."""
    if node.rank(1) != 2:
        raise ModelError(f"paddings of {node.rank(1)} axes are not supported")
    filling = ""
    if node.has(2):
        filling = node.reshaped(node.value(2), ())
    elif not node.is_real and (scales := node.tensor(0).quantization) is not None:
        filling = node.const(int(scales.zero_point[0]), node.dtype())
    if node.constant(1) is None:
        pads = node.add("Transpose", node.cast(node.value(1), DType.INT64, node.dtype(1)), perm=(1, 0))
        return node.add("Pad", node.value(0), node.reshaped(pads, (-1,)), filling)
    return node.add("Pad", node.value(0), node.const(_pads(node, 1).T.reshape(-1)), filling)


def _pads(node: TFLiteNode, k: int) -> Array:
    """Return constant paddings, a row for each axis."""
    pads = np.array(node.integers(k, "the paddings")).reshape(-1, 2)
    if pads.min(initial=0) < 0 or len(pads) != node.rank():
        raise ModelError(f"paddings {pads.tolist()} do not fit {node.rank()} axes")
    return pads


@importer("MIRROR_PAD", moves=True)
def mirror_pad(node: TFLiteNode) -> str:
    """Put a tensor's mirror image around it, without its border, or with it (which Pad cannot)."""
    pads, value = _pads(node, 1), node.value(0)
    if node.option("mode") == 0:
        return node.add("Pad", value, node.const(pads.T.reshape(-1)), mode="reflect")
    for axis, (before, behind) in enumerate(pads.tolist()):
        size = node.sizes()[axis]
        if not before and not behind:
            continue
        if size is None or max(before, behind) > size:
            raise ModelError(f"an axis of size {size} has no mirror image of {before} and {behind} elements")
        places = np.pad(np.arange(node.few(size, "mirror images")), (before, behind), mode="symmetric")
        value = node.add("Gather", value, node.const(places), axis=axis)
    return value


@importer("SLICE", moves=True)
def slice_(node: TFLiteNode) -> str:
    """Take a box out of a tensor; inputs x, begin, size, in which -1 is all that is left."""
    axes = node.const(range(node.rank()))
    if node.constant(1) is not None and node.constant(2) is not None:
        begins, sizes = node.integers(1, "the begin"), node.integers(2, "the size")
        ends = [END if size == -1 else begin + size for begin, size in zip(begins, sizes, strict=True)]
        return node.add("Slice", node.value(0), node.const(begins), node.const(ends), axes)
    begin, size = _index(node, 1), _index(node, 2)
    rest = node.add("Equal", size, node.const(-1))
    end = node.add("Where", rest, node.const(END), node.add("Add", begin, size))
    return node.add("Slice", node.value(0), begin, end, axes)


@importer("STRIDED_SLICE", moves=True)
def strided_slice(node: TFLiteNode) -> str:
    """Take every so many elements of some axes; masks say where begins and ends are not given, and which axes go.

    Inputs x, begin, end, strides, of which the strides are constant.
    """
    strides = node.integers(3, "the strides")
    if node.option("offset"):
        raise ModelError("ends that are counted from the begins are not supported")
    plan = _plan(node, len(strides))
    starts: list[int] = []
    ends: list[int] = []
    open_starts, open_ends = [], []
    for place in plan.places:
        step = strides[place]
        starts.append(0 if step > 0 else END)
        ends.append(END if step > 0 else START)
        open_starts.append(bool(node.option("begin_mask") >> place & 1) and place not in plan.shrunk)
        open_ends.append(bool(node.option("end_mask") >> place & 1))
    steps = [1 if place in plan.shrunk else strides[place] for place in plan.places]
    begin = _masked(node, 1, plan.places, starts, open_starts)
    if plan.shrunk:
        end = _masked(node, 2, plan.places, ends, open_ends, {plan.places.index(p): 1 for p in plan.shrunk})
    else:
        end = _masked(node, 2, plan.places, ends, open_ends)
    y = node.value(0)
    if plan.places:
        y = node.add("Slice", y, begin, end, node.const(plan.axes), node.const(steps))
    if plan.shrunk:
        y = node.add("Squeeze", y, node.const([plan.axes[plan.places.index(p)] for p in plan.shrunk]))
    return node.add("Unsqueeze", y, node.const(plan.new)) if plan.new else y


class _Plan:
    """Which axes a strided slice takes part of: `places` are those in its lists, `axes` those of the tensor."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.axes: list[int] = []
        self.shrunk: list[int] = []
        """The places whose axes go, with one element."""
        self.new: list[int] = []
        """The axes of the result that are new."""


def _plan(node: TFLiteNode, count: int) -> _Plan:
    plan, axis, made, rank = _Plan(), 0, 0, node.rank()
    new_mask, ellipsis = node.option("new_axis_mask"), node.option("ellipsis_mask")
    news = sum(bool(new_mask >> k & 1) and not ellipsis >> k & 1 for k in range(count))
    for place in range(count):
        if ellipsis >> place & 1:
            skipped = rank - (count - 1 - news)
            axis, made = axis + skipped, made + skipped
        elif new_mask >> place & 1:
            plan.new.append(made)
            made += 1
        else:
            plan.places.append(place)
            plan.axes.append(node.axis(axis))
            if node.option("shrink_axis_mask") >> place & 1:
                plan.shrunk.append(place)
            else:
                made += 1
            axis += 1
    return plan


def _masked(
    node: TFLiteNode, k: int, places: Sequence[int], usual: Sequence[int], is_open: Sequence[bool],
    lengths: dict[int, int] | None = None,
) -> str:
    """Return begins or ends as int64, with the usual ones where they are open; `lengths` are ends behind the begins."""
    lengths = lengths or {}
    if node.constant(k) is not None and (not lengths or node.constant(1) is not None):
        given = node.integers(k, "begins and ends")
        begins = node.integers(1, "begins and ends") if lengths else ()
        values = [
            usual[n] if is_open[n] and n not in lengths else given[place] for n, place in enumerate(places)
        ]
        for n in lengths:
            begin = begins[places[n]]
            values[n] = END if begin == -1 else begin + 1
        return node.const(values)
    found = _index(node, k)
    if list(places) != list(range(node.tensor(k).shape[0])):
        found = node.add("Gather", found, node.const(places))
    chosen = [o and n not in lengths for n, o in enumerate(is_open)]
    if any(chosen):
        found = node.add("Where", node.const(chosen, DType.BOOL), node.const(usual), found)
    if lengths:
        first = node.add("Gather", _index(node, 1), node.const(places))
        behind = node.add("Add", first, node.const(1))
        behind = node.add("Where", node.add("Equal", first, node.const(-1)), node.const(END), behind)
        one = node.const([n in lengths for n in range(len(places))], DType.BOOL)
        found = node.add("Where", one, behind, found)
    return found


@importer("STABLEHLO_SLICE", moves=True)
def stablehlo_slice(node: TFLiteNode) -> str:
    """Take every so many elements of each axis."""
    lists = [node.const(node.listed(name)) for name in ("starts", "limits")]
    return node.add("Slice", node.value(0), *lists, node.const(range(node.rank())), node.const(node.listed("strides")))


@importer("STABLEHLO_PAD", moves=True)
def stablehlo_pad(node: TFLiteNode) -> str:
    """Put a number around a tensor; not between its elements, and nothing is cut off."""
    low, high = node.listed("low"), node.listed("high")
    if any(node.listed("interior")) or min((*low, *high), default=0) < 0:
        raise ModelError("padding between elements, or below zero, is not supported")
    return node.add("Pad", node.value(0), node.const([*low, *high]), node.reshaped(node.value(1), ()))


@importer("REVERSE_V2", moves=True)
def reverse(node: TFLiteNode) -> str:
    """Turn constant axes round."""
    axes = [node.axis(axis) for axis in node.integers(1, "the axes")]
    count = len(axes)
    return node.add(
        "Slice", node.value(0), node.const([END] * count), node.const([START] * count), node.const(axes),
        node.const([-1] * count),
    )


@importer("REVERSE_SEQUENCE", moves=True)
def reverse_sequence(node: TFLiteNode) -> str:
    """Turn the first elements of each sequence round; Weft's op has time and batch as its first axes."""
    time, batch, rank = node.axis(node.option("seq_dim")), node.axis(node.option("batch_dim")), node.rank()
    order = (time, batch, *(axis for axis in range(rank) if axis not in (time, batch)))
    x = node.add("Transpose", node.value(0), perm=order)
    y = node.add("ReverseSequence", x, _index(node, 1), time_axis=0, batch_axis=1)
    return node.add("Transpose", y, perm=tuple(order.index(axis) for axis in range(rank)))


@importer("BROADCAST_TO", moves=True)
def broadcast_to(node: TFLiteNode) -> str:
    """Repeat a tensor along axes of size one."""
    return node.add("Expand", node.value(0), _index(node, 1))


@importer("STABLEHLO_BROADCAST_IN_DIM", moves=True)
def broadcast_in_dim(node: TFLiteNode) -> str:
    """Repeat a tensor whose axes are these ones of the result."""
    axes, sizes = node.listed("dimensions"), node.output().shape
    if len(axes) != node.rank() or sorted(axes) != list(axes) or None in node.output().sizes:
        raise ModelError(f"the axes {axes} do not fit a tensor of {node.rank()} axes")
    shape = [1] * len(sizes)
    for place, size in zip(axes, node.tensor(0).shape, strict=True):
        shape[place] = size
    return node.add("Expand", node.reshaped(node.value(0), shape), node.const(sizes))


@importer("BROADCAST_ARGS")
def broadcast_args(node: TFLiteNode) -> str:
    """Return the shape to which two shapes broadcast."""
    ones = [node.add("Expand", node.const(1, DType.BOOL), _index(node, k)) for k in (0, 1)]
    return node.cast(node.add("Shape", node.add("And", *ones)), node.output_dtype(), DType.INT64)


@importer("SHAPE")
def shape(node: TFLiteNode) -> str:
    """Return the sizes of the axes."""
    if None not in node.sizes():
        return node.const(node.tensor(0).shape, node.output_dtype())
    return node.cast(node.add("Shape", node.value(0)), node.output_dtype(), DType.INT64)


@importer("RANK")
def rank(node: TFLiteNode) -> str:
    """Return the number of axes."""
    return node.const(node.rank(), node.output_dtype())


@importer("FILL", moves=True)
def fill(node: TFLiteNode) -> str:
    """Return a tensor of one number; inputs shape, number."""
    return node.add("Expand", node.reshaped(node.value(1), ()), _index(node, 0))


@importer("ZEROS_LIKE")
def zeros_like(node: TFLiteNode) -> str:
    """Return zeros in the shape of a tensor."""
    return node.add("Expand", node.scalar(0), node.add("Shape", node.value(0)))


@importer("RANGE")
def range_(node: TFLiteNode) -> str:
    """Return numbers from a start to before a limit."""
    return node.add("Range", *(node.reshaped(value, ()) for value in node.values()))


@importer("STABLEHLO_IOTA")
def iota(node: TFLiteNode) -> str:
    """Return the places along an axis."""
    sizes, axis, dtype = node.output().shape, node.option("dimension"), node.output_dtype()
    if None in node.output().sizes or not 0 <= axis < len(sizes):
        raise ModelError(f"places along axis {axis} of a tensor of shape {sizes} cannot be told")
    places = np.arange(node.few(sizes[axis], "places")).reshape([-1 if k == axis else 1 for k in range(len(sizes))])
    return node.add("Expand", node.const(places, dtype), node.const(sizes))


@importer("MATRIX_DIAG", moves=True)
def matrix_diag(node: TFLiteNode) -> str:
    """Return matrices with these diagonals, and zeros beside them."""
    size = node.sizes()[-1] if node.rank() else None
    if size is None or (not node.is_real and node.tensor(0).quantization is not None):
        raise ModelError("diagonals of an open size, or of integers with a scale, are not supported")
    node.few(size * size, "diagonals")
    eye = node.const(np.eye(size), DType.BOOL)
    row = node.add("Unsqueeze", node.value(0), node.const([-1]))
    return node.add("Where", eye, row, node.const(0, node.output_dtype()))


@importer("MATRIX_SET_DIAG", moves=True)
def matrix_set_diag(node: TFLiteNode) -> str:
    """Return matrices with other diagonals."""
    rows, columns = node.sizes()[-2:]
    if rows is None or columns is None:
        raise ModelError("matrices of open sizes are not supported")
    short = min(rows, columns)
    node.few(rows * columns, "matrices")
    diagonal = node.add("Unsqueeze", node.value(1), node.const([-1]))
    if rows != columns:  # each element lies in its row, of which there may be more
        pads = [0] * (2 * node.rank())
        pads[-2] = rows - short
        diagonal = node.add("Pad", diagonal, node.const(pads))
    return node.add("Where", node.const(np.eye(rows, columns), DType.BOOL), diagonal, node.value(0))


@importer("DILATE", moves=True)
def dilate(node: TFLiteNode) -> str:
    """Put a number between elements; inputs x, how far apart they are to be on each axis, the number."""
    apart, sizes, value = node.integers(1, "the distances"), node.sizes(), node.value(0)
    if len(apart) != node.rank() or min(apart, default=1) < 1 or None in sizes:
        raise ModelError(f"distances {apart} do not fit a tensor of shape {sizes}")
    known = [size for size in sizes if size is not None]
    number = node.reshaped(node.value(2), ())
    for axis, step in enumerate(apart):
        if step == 1 or not known[axis]:
            continue
        rows = [*known[: axis + 1], 1, *known[axis + 1 :]]
        pads = [0] * (2 * len(rows))
        pads[len(rows) + axis + 1] = step - 1
        apart_rows = node.add("Pad", node.reshaped(value, rows), node.const(pads), number)
        known[axis] = known[axis] * step
        whole = node.reshaped(apart_rows, known)
        known[axis] -= step - 1
        value = node.add("Slice", whole, node.const([0]), node.const([known[axis]]), node.const([axis]))
    return value
