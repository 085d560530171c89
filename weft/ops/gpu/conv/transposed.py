"""Transposed convolution on GPUs: each output gathers what reaches it, in NC4HW4."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from weft.core.graph.layout import PACK, Array, Layout
from weft.core.graph.tensor import Tensor
from weft.kernels.launch import DeviceCaps, GpuOp, KernelBuilder, Placement, gpu_op
from weft.ops.conv import ConvTranspose
from weft.ops.gpu.conv.problem import window_constants


@gpu_op(ConvTranspose)
class ConvTransposeOnGpu(GpuOp):
    """One item computes one pixel of four channels; weights beyond a kernel argument's range are split."""

    placement = Placement.CHANNELS
    splits_constants = True

    def why_not(
        self, op: ConvTranspose, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Refuse weights that are computed at run time."""
        if any(t is not None and t.constant is None for t in inputs[1:]):
            return (
                "the convolution's weights or bias are computed at run time; GPU kernels pack them beforehand"
            )
        return None

    def rounds(self, op: ConvTranspose, inputs: Sequence[Tensor | None]) -> int:
        """Return twice the products of an output."""
        w = inputs[1]
        assert w is not None
        return 2 * w.shape[0] // op.group * prod(w.shape[2:])

    def launches(
        self, op: ConvTranspose, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch one kernel for each piece of the weights."""
        x, y, bias = inputs[0], outputs[0], inputs[2] if len(inputs) > 2 else None
        assert x is not None and inputs[1] is not None and inputs[1].constant is not None
        weight = inputs[1].constant
        by_channel = np.swapaxes(weight.reshape(op.group, -1, *weight.shape[1:]), 1, 2)
        flat = by_channel.reshape(y.shape[1], by_channel.shape[2], -1)  # (out, in of its group, taps)
        window = op.window(x.shape, weight.shape)
        ints = window_constants(window) | {"C4": -(-x.shape[1] // PACK)}
        if op.group > 1:
            del ints["C4"]
            ints |= {"CHANNELS": len(flat), "OUT_GROUP": len(flat) // op.group, "IN_GROUP": flat.shape[1]}
        reads = {"x": x}
        if bias is not None and bias.constant is not None:
            reads["b"] = k.constant("bias", partial(bias.constant.reshape, 1, -1, 1), Layout.NC4HW4)
        pack = _by_channel if op.group > 1 else _by_vector
        blocks = -(-y.shape[1] // PACK)
        nbytes = prod(flat.shape[1:]) * PACK * PACK * flat.itemsize
        most = max(k.caps.max_buffer_range // max(nbytes, 1), 1)
        for first in range(0, blocks, most):
            count = min(most, blocks - first)
            part = flat[first * PACK : (first + count) * PACK]
            total = y.shape[0] * count * prod(window.inputs)
            grid, local = k.for_items(total)
            k.launch(
                "conv_transpose",
                reads={**reads, "w": k.constant(f"weight.{first}", partial(pack, part), Layout.NC4HW4)},
                writes={"y": y},
                ints={**ints, "FIRST": first, "COUNT": count, "TOTAL": total},
                variant={"grouped": op.group > 1},
                grid=grid,
                local=local,
            )


def _by_channel(part: Array) -> Array:
    """Return weights (out, in, taps) as an image whose channels are the outputs."""
    return part.reshape(1, len(part), -1)


def _by_vector(part: Array) -> Array:
    """Return weights (out, in, taps) as the image whose NC4HW4 form is [tap][in block][out block][4 in][4 out]."""
    out, inside, taps = part.shape
    full = np.zeros((-(-out // PACK) * PACK, -(-inside // PACK) * PACK, taps), part.dtype)
    full[:out, :inside] = part
    packed = full.reshape(-1, PACK, full.shape[1] // PACK, PACK, taps).transpose(4, 2, 0, 3, 1)
    return packed.reshape(1, -1, PACK).transpose(0, 2, 1)
