"""Gather, GatherElements and GatherND on GPUs: copies of raw elements at constant or computed indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.index_map import IndexMap
from weft.core.graph.layout import PACK, row_major
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import indices, one_node
from weft.kernels.source import RAW_KINDS, ArgKind
from weft.kernels.special import register_family
from weft.ops.gather import Gather, GatherElements, GatherND
from weft.ops.gpu.move import Strides, elements_at_once, launch_move
from weft.ops.shape import given


class _Gather(GpuOp):
    fuses_into_store = False
    any_place = True
    moves_bits = True

    def why_not(self, op: object, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse an empty input: for an index out of range kernels read another element, and it has none."""
        x = given(inputs, 0)
        if prod(outputs[0].shape) and not prod(x.shape):
            return f"{x.name!r} is empty"
        return None


def _launch(
    k: KernelBuilder, template: str, tensors: tuple[Tensor, Tensor, Tensor], ints: Mapping[str, int],
    variant: Mapping[str, int | str] | None = None, *, kind: ArgKind = "raw", at_once: int = 1,
) -> None:
    """Launch a kernel over y, the last of the tensors x, places and y; an item moves `at_once` adjacent elements."""
    x, places, y = tensors
    raw = kind not in ("linear", "fours")
    total = prod(y.shape) // at_once
    k.launch(
        template, reads={"x": x, "places": places}, writes={"y": y}, ints={**ints, "TOTAL": total},
        variant=variant, items=total, raw=raw, kinds={"x": kind, "y": kind}, epilogue=not raw,
    )


@gpu_op(Gather)
class GatherOnGpu(_Gather):
    """Slices along one axis; unless x is of floats, a single constant index is a strided copy."""

    fuses_into_store = True

    def moved_from(self, op: Gather, inputs: Inputs, outputs: Outputs) -> Sequence[IndexMap] | None:
        """Return where the slices lie if their constant indices are evenly spaced."""
        x, places = given(inputs, 0), given(inputs, 1)
        axis = op.axis % len(x.shape)
        size, inner = x.shape[axis], prod(x.shape[axis + 1 :])
        if places.constant is None or not places.constant.size or not prod(x.shape):
            return None
        at = places.constant.reshape(-1).astype(np.int64)
        at = np.where(at < 0, at + size, at)
        gaps = np.diff(at)
        if at.min() < 0 or at.max() >= size or (gaps != gaps[:1]).any():
            return None
        gap = int(gaps[0]) if gaps.size else 0
        steps = (size * inner, gap * inner, 1)
        return [IndexMap.by_steps((prod(x.shape[:axis]), at.size, inner), steps, int(at[0]) * inner)]

    def launches(self, op: Gather, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item for each element, or each vector, of the output."""
        x, places, y = given(inputs, 0), given(inputs, 1), outputs[0]
        axis = op.axis % len(x.shape)
        outer, size, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
        floats = x.dtype in (DType.FLOAT32, DType.FLOAT16)
        if not floats and places.constant is not None and places.constant.size == 1:
            start = int(places.constant.item()) % size * inner
            launch_move(k, x, y, (outer, inner), Strides((size * inner, 1), start), Strides((inner, 1)))
            return
        kind, at_once = _kind(k, x, y, inner)
        if floats:
            at_once = PACK if inner % PACK == 0 and k.lies_plain(x, y, count=PACK) else 1
            kind = "linear" if at_once == 1 else "fours"
        ints = {"SIZE": size, "INNER": max(inner // at_once, 1), "COUNT": max(prod(places.shape), 1)}
        _launch(k, "gather", (x, places, y), ints, {"kind": kind}, kind=kind, at_once=at_once)


@gpu_op(GatherElements)
class GatherElementsOnGpu(_Gather):
    """Takes each element at its own index along one axis."""

    def launches(self, op: GatherElements, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item for each element of the output."""
        x, places, y = given(inputs, 0), given(inputs, 1), outputs[0]
        rank, axis = len(x.shape), op.axis % len(x.shape)
        ints = {"SIZE": x.shape[axis]}
        for d, (size, step) in enumerate(zip(places.shape, row_major(x.shape), strict=True)):
            ints |= {f"D{d}": max(size, 1), f"S{d}": step}
        _launch(k, "gather_elements", (x, places, y), ints, {"rank": rank, "axis": axis})


@gpu_op(GatherND)
class GatherNDOnGpu(_Gather):
    """Slices at indices along several axes."""

    def launches(self, op: GatherND, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item for each element, or each vector, of the output."""
        x, places, y = given(inputs, 0), given(inputs, 1), outputs[0]
        depth, batch = places.shape[-1], op.batch_dims
        inner = prod(x.shape[batch + depth :])
        kind, at_once = _kind(k, x, y, inner)
        ints = {
            "INNER": max(inner // at_once, 1),
            "PER": max(prod(places.shape[batch:-1]), 1),
            "STEP": prod(x.shape[batch:]) // at_once,
        }
        steps = row_major(x.shape)
        for d in range(depth):
            ints |= {f"D{d}": x.shape[batch + d], f"S{d}": steps[batch + d] // at_once}
        _launch(k, "gather_nd", (x, places, y), ints, {"depth": depth}, kind=kind, at_once=at_once)


def _kind(k: KernelBuilder, x: Tensor, y: Tensor, inner: int) -> tuple[ArgKind, int]:
    """Return the argument kind for moving slices of `inner` elements, and the number of elements moved at once."""
    at_once = elements_at_once(k.caps, x.dtype.itemsize, [(inner, 1, 1)]) if k.lies_plain(x, y) else 1
    return RAW_KINDS.get(at_once * x.dtype.itemsize, "raw") if at_once > 1 else "raw", at_once


register_family(
    "gather", "gathers",
    cases=lambda: (
        one_node(Gather(axis=1), (3, 7, 5), indices((2, 2), 7)),
        one_node(GatherElements(axis=1), (3, 4), indices((3, 2), 4)),
        one_node(GatherND(batch_dims=1), (2, 3, 4), indices((2, 1), 3)),
    ),
    templates=("gather", "gather_elements", "gather_nd"),
)
