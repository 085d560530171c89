"""TopK, NonZero, Compress and Unique on GPUs.

The k best are found by counting, for each element, how many are better: first within blocks of the line; the best of
each block go on to the next round, until one block is left. One work-group finds the nonzero elements by a prefix sum.
Of slices that may be equal each looks for the first that equals it, and counts how many others come before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder, tree_items
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.gpu.integers import INTEGERS
from weft.ops.select import Compress, NonZero, TopK, Unique
from weft.ops.shape import given

BLOCK = 2048
"""Elements among which the best are found by counting."""
COMPACTED_BY = 256
"""Items of the group that finds the nonzero elements."""
MOST_COUNTED = 1 << 15
"""Longest line of which more than `BLOCK // 2` elements may be wanted."""


@gpu_op(TopK)
class TopKOnGpu(GpuOp):
    """Counts the better ones of each element, block by block."""

    fuses_into_store = False
    integers = INTEGERS
    computes_double = True

    def why_not(self, op: TopK, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse to take many elements of long lines: blocks would hardly shorten them."""
        x = given(inputs, 0)
        count, kept = x.shape[op.axis], outputs[0].shape[op.axis]
        if count > MOST_COUNTED and kept > BLOCK // 2:
            return f"it would order {kept} of {count} elements, more than {BLOCK // 2}"
        return None

    def rounds(self, op: TopK, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the elements of a block."""
        x = given(inputs, 0)
        return min(x.shape[op.axis], MOST_COUNTED)

    def launches(self, op: TopK, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, values, indices = given(inputs, 0), outputs[0], outputs[1:]
        axis = op.axis % len(x.shape)
        length, wanted = x.shape[axis], values.shape[axis]
        inner = prod(x.shape[axis + 1 :])
        lines, count = prod(x.shape[:axis]) * inner, length
        if not wanted or not lines:
            return
        origin: Tensor | None = None
        while True:
            last = count <= BLOCK or wanted > BLOCK // 2
            block = count if last else BLOCK
            keep = min(wanted, block)
            kept = wanted if last else count // block * keep + min(keep, count % block)
            places = indices if last else [k.scratch((lines, kept), DType.INT32)]
            k.launch(
                "top_k", reads={"x": x, **({"origin": origin} if origin is not None else {})},
                writes={**({"y": values} if last else {}), **dict(zip(("places",), places, strict=False))},
                ints={
                    "TOTAL": lines * count, "COUNT": count, "INNER": inner, "LENGTH": length, "BLOCK": block,
                    "KEEP": keep, "KEPT": kept,
                },
                variant={
                    "largest": bool(op.largest), "last": last, "narrowed": origin is not None,
                    "floats": x.dtype.is_float,
                },
                items=lines * count, epilogue=False,
            )
            if last:
                return
            (origin,), count = places, kept


def compact(k: KernelBuilder, x: Tensor, total: int, room: int) -> tuple[Tensor, Tensor]:
    """Launch what finds the elements among the first `total` that are not 0; return their places, and their number."""
    places, count = k.scratch((room,), DType.INT32), k.scratch((1,), DType.INT32)
    items = k.tree_items(COMPACTED_BY)
    k.launch(
        "compact", reads={"x": x}, writes={"places": places, "count": count},
        ints={"TOTAL": total, "RUN": -(-total // items), "ROOM": room},
        variant={"wide": x.dtype in (DType.INT64, DType.UINT64)}, grid=(1, 1, 1), local=(items, 1, 1),
        epilogue=False,
    )
    return places, count


def move_slices(k: KernelBuilder, x: Tensor, places: Tensor, count: Tensor, axis: int, outputs: Outputs) -> None:
    """Launch what moves the slices of x at places to the first output, and stores its sizes in the second.

    x counts as flat if the output is; zeros are where a place is -1, `count` is the number of the others.
    """
    y = outputs[0]
    shape = x.shape if len(y.shape) == len(x.shape) else (prod(x.shape),)
    zero = k.constant("zero", lambda: np.zeros(1, x.dtype.numpy))
    k.launch(
        "compress", reads={"x": x, "zero": zero, "places": places, "count": count},
        writes=dict(zip(("y", "sizes"), outputs, strict=False)),
        ints={
            "TOTAL": prod(y.shape), "COUNT": y.shape[axis], "SIZE": shape[axis], "INNER": prod(shape[axis + 1 :]),
            **{f"D{d}": size for d, size in enumerate(shape)},
        },
        variant={"rank": len(shape), "axis": axis}, items=prod(y.shape), raw=True,
        kinds={"places": "linear", "count": "linear", **({"sizes": "linear"} if len(outputs) > 1 else {})},
        epilogue=False,
    )


def room_sizes(
    k: KernelBuilder, outputs: Outputs, shape: Sequence[int], counted: int | None = None, count: Tensor | None = None
) -> None:
    """Launch what writes the sizes of results where they have no elements, if the second of `outputs` wants them.

    The kernels that write results count and store their sizes as they go over the elements, of which there are none.
    All sizes are as in `shape`, but with `count` the one at `counted` is what a kernel counted.
    """
    if len(outputs) < 2:
        return
    sizes = {f"S{d}": size for d, size in enumerate(shape) if count is None or d != counted}
    k.launch(
        "room_sizes", reads={} if count is None else {"count": count}, writes={"sizes": outputs[-1]},
        ints=sizes,
        variant={"rank": len(shape), "counted": -1 if counted is None or count is None else counted}, items=1,
        epilogue=False,
    )


class _Bounded(GpuOp):
    fuses_into_store = False

    def rounds(self, op: Any, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return an item's share of three passes: over the elements, twice, and over the room for places."""
        searched = inputs[-1]
        assert searched is not None
        return 3 * -(-prod(searched.shape) // tree_items(caps, COMPACTED_BY))

    def why_not(self, op: Any, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse a form whose sizes the inputs' values decide."""
        return None if op.bounded else "the sizes of its outputs are not bounded"


@gpu_op(NonZero)
class NonZeroOnGpu(_Bounded):
    """Finds the places, and takes them apart into coordinates."""

    integers = INTEGERS | {DType.BOOL}
    computes_double = True

    def launches(self, op: NonZero, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x = given(inputs, 0)
        total = prod(x.shape)
        if not total:
            room_sizes(k, outputs, (len(x.shape), 0))
            return
        places, count = compact(k, x, total, total)
        if not x.shape:
            room_sizes(k, outputs, (0, 1), 1, count)
            return
        k.launch(
            "nonzero", reads={"places": places, "count": count},
            writes=dict(zip(("y", "sizes"), outputs, strict=False)),
            ints={"COUNT": total, **{f"D{d}": size for d, size in enumerate(x.shape)}},
            variant={"rank": len(x.shape)}, items=total, epilogue=False,
        )


@gpu_op(Compress)
class CompressOnGpu(_Bounded):
    """Finds the places where the condition holds, and moves the slices there."""

    moves_bits = True

    def launches(self, op: Compress, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, condition, y = given(inputs, 0), given(inputs, 1), outputs[0]
        shape = (prod(x.shape),) if op.axis is None else x.shape
        axis = 0 if op.axis is None else op.axis % len(shape)
        room = y.shape[axis]
        if not room:
            room_sizes(k, outputs, y.shape)
            return
        places, count = compact(k, condition, room, room)
        if not prod(y.shape):
            room_sizes(k, outputs, y.shape, axis, count)
            return
        move_slices(k, x, places, count, axis, outputs)


@gpu_op(Unique)
class UniqueOnGpu(_Bounded):
    """Finds the first of all that are equal, orders them, and moves them."""

    integers = INTEGERS | {DType.BOOL}
    computes_double = True

    def why_not(self, op: Unique, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse many slices, of which each is compared with all before it."""
        x = given(inputs, 0)
        count = _slices(op, x)
        if count > MOST_COUNTED:
            return f"it would compare {count} elements or slices with each other, more than {MOST_COUNTED}"
        return super().why_not(op, inputs, outputs, caps)

    def rounds(self, op: Unique, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the elements of all slices, which one is compared with, and the slices that are counted."""
        x = given(inputs, 0)
        return prod(x.shape) + _slices(op, x)

    def launches(self, op: Unique, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch all; the last outputs may be missing."""
        x = given(inputs, 0)
        count = _slices(op, x)
        axis = 0 if op.axis is None else op.axis % len(x.shape)
        values, *others = outputs
        if not count:
            room_sizes(k, [values, *others[3:]], (*values.shape, 0, 0, 0))
            return
        indices, inverse, counts, sizes = (others[n] if n < len(others) else None for n in range(4))
        ints = {"COUNT": count, "SLICE": prod(x.shape) // count}
        ints["INNER"] = 1 if op.axis is None else prod(x.shape[axis + 1 :])
        kind = {"floats": x.dtype.is_float, "wide": x.dtype is DType.UINT64}
        first, fresh, order, ranks = (k.scratch((count,), DType.INT32) for _ in range(4))
        k.launch(
            "unique_first", reads={"x": x}, writes={"first": first, "fresh": fresh}, ints=ints,
            variant={**kind, "merges_nan": op.axis is None}, items=count, epilogue=False,
        )
        places, number = compact(k, fresh, count, count)
        wanted = {name: t for name, t in (("indices", indices), ("counts", counts)) if t is not None}
        k.launch(
            "unique_rank",
            reads={"places": places, **({"x": x} if op.sorted else {}), **({"first": first} if counts else {})},
            writes={"order": order, "ranks": ranks, **wanted}, ints=ints if op.sorted else {"COUNT": count},
            variant={**kind, "ordered": bool(op.sorted)}, items=count, epilogue=False,
        )
        if inverse is not None:
            rank = len(values.shape)
            k.launch(
                "unique_places",
                reads={"first": first, "ranks": ranks, **({"number": number} if sizes is not None else {})},
                writes={"inverse": inverse, **({"sizes": sizes} if sizes is not None else {})},
                ints={"COUNT": count, **{f"D{d}": size for d, size in enumerate(values.shape)}},
                variant={"rank_of_x": rank, "axis": axis}, items=count, epilogue=False,
            )
        move_slices(k, x, order, number, axis, [values])


def _slices(op: Unique, x: Tensor) -> int:
    """Return how many elements, or slices along the axis, may be equal."""
    return prod(x.shape) if op.axis is None else x.shape[op.axis]


register_family(
    "select", "the largest elements, and those that are not zero",
    cases=lambda: (
        one_node(TopK(axis=1), (2, 9, 3), np.array([4]), constants=(1,)),
        one_node(NonZero(bounded=True), np.array([[0, 3, 0, -1, 2], [5, 0, 0, 0, 1]], np.float32)),
        one_node(Unique(bounded=True), np.array([3, 1, 3, 2, 1], np.float32)),
        one_node(Compress(axis=1, bounded=True), (3, 5), np.array([True, False, True, True, False])),
        one_node(Compress(axis=1, bounded=True), (0, 5), np.array([True, False, True, True, False])),
    ),
    templates=(
        "top_k", "compact", "nonzero", "compress", "unique_first", "unique_rank", "unique_places", "room_sizes",
    ),
)
