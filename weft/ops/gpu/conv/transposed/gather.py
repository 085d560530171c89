"""Transposed convolution on GPUs: to sub-pixels, or in a kernel where each output pixel gathers what reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK, Array, Layout, row_major
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder, nested_rounds
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.conv import ConvTranspose
from weft.ops.gpu.conv.cases import transposed_case
from weft.ops.gpu.conv.problem import why_not_computed, why_not_empty, window_constants
from weft.ops.gpu.conv.transposed.subpixels import ToSubPixels, are_finite, stores_subpixels
from weft.ops.gpu.move import Strides, launch_move
from weft.ops.gpu.packing import as_image, pack_in_run, weights_of
from weft.ops.shape import given, optional


@gpu_op(ConvTranspose)
class ConvTransposeOnGpu(GpuOp):
    """Convolutions to sub-pixels where all of these have taps, else a kernel of its own."""

    wanted_layout = WantedLayout.CHANNELS
    splits_constants = True
    laid_inputs = 1

    def why_not(self, op: ConvTranspose, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse an input of no elements, and weights that a run computes and that exceed a kernel argument packed."""
        return why_not_empty(inputs[0]) or why_not_computed(inputs[1], caps)

    def rounds(self, op: ConvTranspose, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the products of four outputs, and the loops around them."""
        w = given(inputs, 1)
        return nested_rounds(*w.shape[2:], PACK * w.shape[0] // op.group)

    def launches(self, op: ConvTranspose, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch convolutions to sub-pixels, or the kernel in which an item makes four channels of a pixel.

        Weights beyond the range of one argument are passed in pieces.
        """
        x, weight, bias, y = given(inputs, 0), given(inputs, 1), optional(inputs, 2), outputs[0]
        channels, inside = y.shape[1], x.shape[1] // op.group
        window = op.window(x.shape, weight.shape)
        if op.group == 1 and weight.constant is not None and stores_subpixels(k.caps, window.rank):
            forms, shift = ToSubPixels.all_of(window), None if bias is None else bias.constant
            is_known = bias is None or shift is not None
            if forms and is_known and are_finite(weight.constant) and _launched(forms, k, x, weight.constant, shift, y):
                return
        flat = _turned(k, weight, op.group)
        ints = window_constants(window) | {"C4": -(-x.shape[1] // PACK)}
        if op.group > 1:
            del ints["C4"]
            ints |= {"CHANNELS": channels, "OUT_GROUP": channels // op.group, "IN_GROUP": inside}
        reads = {"x": x}
        if bias is not None:
            reads["b"] = as_image(k, "bias", weights_of(bias), (1, channels, 1), Layout.NC4HW4)
        blocks = -(-channels // PACK)
        nbytes = inside * prod(weight.shape[2:]) * PACK * PACK * weight.dtype.itemsize
        most = blocks if isinstance(flat, Tensor) else max(k.caps.max_buffer_range // max(nbytes, 1), 1)
        for first in range(0, blocks, max(most, 1)):
            count = min(most, blocks - first)
            total = y.shape[0] * count * prod(window.inputs)
            k.launch(
                "conv_transpose", reads={**reads, "w": _packed(k, flat, first, count, op.group > 1)},
                writes={"y": y}, ints={**ints, "FIRST": first, "COUNT": count, "TOTAL": total},
                variant={"grouped": op.group > 1}, items=total,
            )


def _launched(
    forms: Sequence[ToSubPixels], k: KernelBuilder, x: Tensor, weight: Array, bias: Array | None, y: Tensor
) -> bool:
    """Launch convolutions one after the other; False if no kernel can address a slice of the first, the largest."""
    for form in forms:
        with k.turn():
            if not form.launch(k, x, weight, bias, y):
                return False
    return True


def _turned(k: KernelBuilder, weight: Tensor, group: int) -> Array | Tensor:
    """Return weights (in, out of a group, ...) as (out, in of its group, taps)."""
    inside, out, taps = weight.shape[0] // group, weight.shape[1], prod(weight.shape[2:])
    if weight.constant is not None:
        by_group = weight.constant.reshape(group, inside, out, taps)
        return np.swapaxes(by_group, 1, 2).reshape(group * out, inside, taps)
    turned = k.scratch((group * out, inside, taps), weight.dtype)
    steps = (inside * out * taps, taps, out * taps, 1)
    shape = (group, out, inside, taps)
    launch_move(k, weight, turned, shape, Strides(steps), Strides(row_major(shape)))
    return turned


def _packed(k: KernelBuilder, weight: Array | Tensor, first: int, count: int, grouped: bool) -> Tensor:
    """Return `count` blocks of output channels as the kernel reads them."""
    out, inside, taps = weight.shape
    if isinstance(weight, Tensor):
        if not grouped:
            return pack_in_run(k, weight, (out, inside, taps))
        return as_image(k, "weight", weight, (1, out, inside * taps), Layout.NC4HW4)
    part = weight[first * PACK : (first + count) * PACK]
    if grouped:
        return as_image(k, f"weight.{first}", part, (1, len(part), inside * taps), Layout.NC4HW4)
    spec = TensorSpec((1, PACK, taps * -(-inside // PACK) * -(-len(part) // PACK) * PACK), DType.of(part.dtype))
    return k.constant(f"weight.{first}", partial(_by_vector, part), Layout.NC4HW4, spec)


def _by_vector(part: Array) -> Array:
    """Return weights (out, in, taps) as the image whose NC4HW4 form is [tap][in block][out block][4 in][4 out]."""
    out, inside, taps = part.shape
    full = np.zeros((-(-out // PACK) * PACK, -(-inside // PACK) * PACK, taps), part.dtype)
    full[:out, :inside] = part
    packed = full.reshape(-1, PACK, full.shape[1] // PACK, PACK, taps).transpose(4, 2, 0, 3, 1)
    return packed.reshape(1, -1, PACK).transpose(0, 2, 1)


register_family(
    "conv_transpose", "transposed convolutions",
    cases=lambda: (
        transposed_case((1, 5, 5, 6), (5, 7, 4, 3), strides=(2, 2), pads=(1, 0, 2, 1), dilations=(2, 1)),
        one_node(ConvTranspose(strides=(1, 3), group=2), (2, 4, 5, 4), (4, 3, 2, 2), constants=(1,)),
    ),
)
