"""Concat: a view where channels allow it, else one copy per input."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.core.graph.index_map import IndexMap
from weft.core.graph.layout import PACK, Layout, row_major
from weft.core.graph.tensor import Tensor
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.ops.concat import Concat
from weft.ops.gpu.move import Strides, launch_block_copy, launch_move


@gpu_op(Concat)
class ConcatOnGpu(GpuOp):
    """In NC4HW4, a concat of channels is a view: the producers of the inputs write their part of it."""

    wanted_layout = WantedLayout.EITHER
    packed_family = "block_copy"
    fuses_into_store = False
    any_place = True
    moves_bits = True

    def fits_channels(self, op: Concat, inputs: Inputs, outputs: Outputs) -> bool:
        """Accept channel concats in which each input but the last fills whole blocks."""
        rank = len(outputs[0].shape)
        return rank >= 3 and op.axis % rank == 1 and all(x and x.shape[1] % PACK == 0 for x in inputs[:-1])

    def joined_at(self, op: Concat, inputs: Inputs, outputs: Outputs) -> Sequence[IndexMap] | None:
        """Return where each input begins in the output."""
        steps, start, maps = row_major(outputs[0].shape), 0, list[IndexMap]()
        axis = op.axis % len(steps)
        for x in inputs:
            assert x is not None
            maps.append(IndexMap.by_steps(x.shape, steps, start * steps[axis]))
            start += x.shape[axis]
        return maps

    def launches(self, op: Concat, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Copy the inputs that do not already lie in the output."""
        y = outputs[0]
        axis = op.axis % len(y.shape)
        start = 0
        for x in inputs:
            assert x is not None
            if y.layout.packed:
                if not k.shares_memory(x, y, start // PACK):
                    launch_block_copy(k, _packed(k, x), y, start // PACK)
            elif prod(x.shape):
                target = Strides(row_major(y.shape), start * row_major(y.shape)[axis])
                if not k.lies_at(x, y, IndexMap.by_steps(x.shape, target.steps, target.offset)):
                    launch_move(k, x, y, x.shape, Strides(row_major(x.shape)), target)
            start += x.shape[axis]


def _packed(k: KernelBuilder, x: Tensor) -> Tensor:
    """Return a constant in NC4HW4; any other tensor unchanged, since it is packed already."""
    value = x.constant
    return x if value is None else k.constant(f"{x.name}.c4", lambda: value, Layout.NC4HW4)
