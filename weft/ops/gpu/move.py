"""Ops that only move elements: one strided copy serves them all; a reshape often needs no copy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.index_map import IndexMap
from weft.core.graph.layout import PACK, Shape, row_major
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import one_node
from weft.kernels.source import RAW_KINDS
from weft.kernels.special import in_place_of, register_family
from weft.ops.concat import Concat, Split
from weft.ops.shape import Dropout, Expand, Flatten, Identity, Reshape, Squeeze, Transpose, Unsqueeze, given
from weft.ops.slicing import Slice
from weft.ops.unary import BitCast


@dataclass(frozen=True, slots=True)
class Strides:
    """The position of the element at a coordinate: `offset` plus the sum of coordinate times step."""

    steps: tuple[int, ...]
    offset: int = 0


def launch_move(k: KernelBuilder, x: Tensor, y: Tensor, shape: Shape, source: Strides, target: Strides) -> None:
    """Copy an element of `x` to `y` for every coordinate of `shape`; `source` and `target` give the positions.

    Adjacent axes are merged where both sides step through them evenly.
    """
    axes = [(size, s, t) for size, s, t in zip(shape, source.steps, target.steps, strict=True) if size != 1]
    joined: list[tuple[int, int, int]] = []
    for size, s, t in axes:
        if joined and joined[-1][1] == s * size and joined[-1][2] == t * size:
            joined[-1] = (joined[-1][0] * size, s, t)
        else:
            joined.append((size, s, t))
    joined = joined or [(1, 0, 0)]
    plain = k.lies_plain(x, y)
    at_once = elements_at_once(k.caps, x.dtype.itemsize, joined, (source.offset, target.offset)) if plain else 1
    if at_once > 1:
        *outer, (size, s, t) = joined
        joined = [*((size, s // at_once, t // at_once) for size, s, t in outer), (size // at_once, s, t)]
    ints = {"TOTAL": prod(shape) // at_once, "X0": source.offset // at_once, "Y0": target.offset // at_once}
    for d, (size, s, t) in enumerate(reversed(joined)):
        ints |= {f"D{d}": size, f"XS{d}": s, f"YS{d}": t}
    kind = RAW_KINDS.get(at_once * x.dtype.itemsize, "raw")
    k.launch(
        "move", reads={"x": x}, writes={"y": y}, ints=ints, variant={"rank": len(joined)}, items=ints["TOTAL"],
        raw=True, kinds={"x": kind, "y": kind}, epilogue=False,
    )


def elements_at_once(
    caps: DeviceCaps, itemsize: int, axes: Sequence[tuple[int, int, int]], others: Sequence[int] = ()
) -> int:
    """Return how many adjacent elements can be moved as one unit of 4, 8 or 16 bytes; 1 if none can.

    `axes` are sizes with the steps of source and target; `others` are further numbers that it must divide.
    """
    *outer, (size, *last) = axes
    if last != [1, 1] or "move_wide" in caps.without:
        return 1
    whole = [size, *others, *(step for _, *steps in outer for step in steps)]
    fitting = (n // itemsize for n in (16, 8, 4) if n > itemsize)
    return next((n for n in fitting if all(w % n == 0 for w in whole)), 1)


Source = tuple[Shape, Strides]
"""Sizes of axes over which an output is row-major, and where its elements lie in the input."""


def launch_block_copy(k: KernelBuilder, x: Tensor, y: Tensor, first: int) -> None:
    """Copy the channel blocks of `x` to `y`, from block `first` on."""
    n, c, *rest = x.shape
    total = n * -(-c // PACK) * prod(rest)
    k.launch(
        "block_copy", reads={"x": x}, writes={"y": y},
        ints={"FIRST": first, "BLOCKS": -(-c // PACK), "HW": prod(rest), "TOTAL": total}, items=total,
        epilogue=False,
    )


def launch_blocks(k: KernelBuilder, x: Tensor, y: Tensor, first: int) -> None:
    """Copy the channel blocks of `x` from `first` on to all of `y`, unless they already lie there."""
    if k.shares_memory(y, x, first):
        return
    launch_block_copy(k, k.from_block(x, y.shape, first), y, 0)


class MoveOnGpu(GpuOp):
    """An op whose outputs are elements of its first input: one strided copy for each output that lies elsewhere."""

    wanted_layout = WantedLayout.LINEAR
    fuses_into_store = False
    moves_bits = True
    any_place = True

    @abstractmethod
    def sources(self, op: Any, inputs: Inputs, outputs: Outputs) -> Sequence[Source]:
        """Return where the elements of each output come from."""

    def moved_from(self, op: Any, inputs: Inputs, outputs: Outputs) -> Sequence[IndexMap] | None:
        """Return the sources as maps."""
        found = self.sources(op, inputs, outputs)
        return [IndexMap.by_steps(shape, source.steps, source.offset) for shape, source in found]

    def launches(self, op: Any, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch a copy for each output that does not lie where its elements do."""
        x = given(inputs, 0)
        for y, (shape, source) in zip(outputs, self.sources(op, inputs, outputs), strict=False):
            if not k.lies_at(y, x, IndexMap.by_steps(shape, source.steps, source.offset)):
                launch_move(k, x, y, shape, source, Strides(row_major(shape)))

    def why_not(self, op: object, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse parameters that are computed at run time."""
        for t in inputs[1:]:
            if t is not None and t.constant is None:
                return f"its parameter {t.name!r} is computed at run time"
        return None


@gpu_op(Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout)
class AliasOnGpu(MoveOnGpu):
    """Reuses the input's memory under another shape; copies only where the output needs its own."""

    wanted_layout = WantedLayout.ALIAS

    def why_not(self, op: object, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse parameters that are computed at run time, but for the ratio of Dropout, which means nothing here."""
        return None if isinstance(op, Dropout) else super().why_not(op, inputs, outputs, caps)

    def sources(self, op: object, inputs: Inputs, outputs: Outputs) -> Sequence[Source]:
        return [((prod(outputs[0].shape),), Strides((1,)))]

    def launches(self, op: object, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Copy unless the memory is shared."""
        super().launches(op, k, inputs, outputs)
        for mask in outputs[1:]:  # Dropout keeps every element.
            kept = k.constant("mask", lambda: np.ones(1, np.bool_))
            launch_move(k, kept, mask, (prod(mask.shape),), Strides((0,)), Strides((1,)))


@gpu_op(BitCast)
class BitCastOnGpu(GpuOp):
    """A copy of the bytes."""

    fuses_into_store = False
    moves_bits = True

    def why_not(self, op: object, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse bools, which kernels expect to be 0 or 1."""
        if outputs[0].dtype is DType.BOOL:
            return "kernels copy bits, and bools have to be 0 or 1"
        return None

    def launches(self, op: BitCast, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, y = given(inputs, 0), outputs[0]
        launch_move(k, x, y, (prod(x.shape),), Strides((1,)), Strides((1,)))


@gpu_op(Transpose)
class TransposeOnGpu(MoveOnGpu):
    """A strided copy in the output's order."""

    def sources(self, op: Transpose, inputs: Inputs, outputs: Outputs) -> Sequence[Source]:
        steps = row_major(given(inputs, 0).shape)
        perm = op.perm or tuple(reversed(range(len(steps))))
        return [(outputs[0].shape, Strides(tuple(steps[p] for p in perm)))]


@gpu_op(Expand)
class ExpandOnGpu(MoveOnGpu):
    """A strided copy with step 0 along the repeated axes."""

    def sources(self, op: Expand, inputs: Inputs, outputs: Outputs) -> Sequence[Source]:
        return [(outputs[0].shape, Strides(broadcast_steps(given(inputs, 0).shape, outputs[0].shape)))]


def broadcast_steps(shape: Shape, output: Shape) -> tuple[int, ...]:
    """Return the steps of a value along the axes of one that it is broadcast to."""
    full = (1,) * (len(output) - len(shape)) + tuple(shape)
    return tuple(0 if size == 1 else s for size, s in zip(full, row_major(full), strict=True))


def launch_expand(k: KernelBuilder, x: Tensor, y: Tensor) -> None:
    """Copy `x` to `y`, repeated along the axes where it has size 1."""
    launch_move(k, x, y, y.shape, Strides(broadcast_steps(x.shape, y.shape)), Strides(row_major(y.shape)))


@gpu_op(Slice)
class SliceOnGpu(MoveOnGpu):
    """A strided copy from an offset."""

    def sources(self, op: Slice, inputs: Inputs, outputs: Outputs) -> Sequence[Source]:
        x = given(inputs, 0)
        steps, offset = list(row_major(x.shape)), 0
        for axis, r in enumerate(op.ranges(x.shape, [None if t is None else t.constant for t in inputs[1:]])):
            offset += (r.start if len(r) else 0) * steps[axis]
            steps[axis] *= r.step
        return [(outputs[0].shape, Strides(tuple(steps), offset))]


@gpu_op(Split)
class SplitOnGpu(MoveOnGpu):
    """One strided copy per output."""

    def sources(self, op: Split, inputs: Inputs, outputs: Outputs) -> Sequence[Source]:
        x = given(inputs, 0)
        axis = op.axis % len(x.shape)
        steps, start, found = row_major(x.shape), 0, list[Source]()
        for y in outputs:
            found.append((y.shape, Strides(steps, start * steps[axis])))
            start += y.shape[axis]
        return found


register_family(
    "move", "moves of elements",
    cases=lambda: (
        one_node(Transpose(perm=(0, 3, 1, 2)), (2, 7, 5, 3)),
        one_node(Expand(), (3, 1), np.array([2, 3, 5]), constants=(1,)),
        one_node(Concat(axis=1), (3, 5), (3, 2)),
    ),
    forced=in_place_of("move_wide"),
)
register_family(
    "move_wide", "moves of several elements at once",
    cases=lambda: (one_node(Transpose(perm=(1, 0, 2)), (3, 5, 8)), one_node(Concat(axis=1), (3, 6), (3, 2))),
    templates=("move",), whole=False, fallback="moves of one element",
)
register_family(
    "block_copy", "copies of blocks of channels",
    cases=lambda: (one_node(Concat(axis=1), (2, 4, 3, 5), (2, 6, 3, 5)),), fallback="moves of elements",
)
