"""Transposed convolution on GPUs.

With steps s, output pixels whose places are the same modulo s see the same taps. So each input pixel, with those beside
it, makes s * s output pixels as a convolution makes s * s times as many channels, which are stored where they belong
(`weft.kernels.subpixels`). Any kernel of convolutions does that. What is left runs in a kernel of its own, in which
each output pixel gathers the input pixels that reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.layout import PACK, Array, Layout, Shape, row_major
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder, nested_rounds
from weft.kernels.self_test_cases import SelfTestCase, one_node
from weft.kernels.special import KernelFamily, register_family
from weft.kernels.subpixels import SubPixels
from weft.ops.conv import ConvTranspose
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.problem import ConvPlan, why_not_computed, why_not_empty, window_constants
from weft.ops.gpu.move import Strides, launch_move
from weft.ops.gpu.packing import Weights, as_image, pack_in_run, weights_of
from weft.ops.window import Window

SUBPIXELS = "conv_subpixels"
"""Convolutions to sub-pixels; `DeviceCaps.without` names them where they were found wrong."""
MOST_ZEROS = 2
"""At most so many times the products of the transposed convolution, of which the rest are with zeros."""


@gpu_op(ConvTranspose)
class ConvTransposeOnGpu(GpuOp):
    """A convolution to sub-pixels where one can do it without much that is multiplied by zero."""

    wanted_layout = WantedLayout.CHANNELS
    splits_constants = True
    laid_inputs = 1

    def why_not(
        self, op: ConvTranspose, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Refuse an input of no elements, and weights that a run computes and that exceed a kernel argument packed."""
        return why_not_empty(inputs[0]) or why_not_computed(inputs[1], caps)

    def rounds(self, op: ConvTranspose, inputs: Sequence[Tensor | None], caps: DeviceCaps) -> int:
        """Return the products of four outputs, and the loops around them."""
        w = inputs[1]
        assert w is not None
        return nested_rounds(*w.shape[2:], PACK * w.shape[0] // op.group)

    def launches(
        self, op: ConvTranspose, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch a convolution to sub-pixels, or the kernel of its own.

        In that an item makes four channels of a pixel; weights beyond the range of one argument are passed in pieces.
        """
        x, weight, bias, y = inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else None, outputs[0]
        assert x is not None and weight is not None
        channels, inside = y.shape[1], x.shape[1] // op.group
        window = op.window(x.shape, weight.shape)
        constant = weight.constant is not None and (bias is None or bias.constant is not None)
        if constant and op.group == 1 and SUBPIXELS not in k.caps.without:
            to_subpixels = ToSubPixels.of(window)
            if to_subpixels is not None:
                to_subpixels.launch(k, x, weight, bias, y)
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
            grid, local = k.for_items(total)
            k.launch(
                "conv_transpose",
                reads={**reads, "w": _packed(k, flat, first, count, op.group > 1)},
                writes={"y": y},
                ints={**ints, "FIRST": first, "COUNT": count, "TOTAL": total},
                variant={"grouped": op.group > 1},
                grid=grid,
                local=local,
            )


@dataclass(frozen=True)
class ToSubPixels:
    """A transposed convolution as a convolution, each pixel of which is `strides` pixels of the output."""

    window: Window
    strides: Shape
    begin: Shape
    """Pixels before the first one of the output."""
    outputs: Shape
    taps: Shape
    """Those of the transposed convolution."""

    @classmethod
    def of(cls, back: Window) -> ToSubPixels | None:
        """Return that of a window of a transposed convolution; None where there is none, or zeros would be most of it.

        With s steps and p pixels cut off before the first one, tap t of input pixel i reaches output pixel
        o = i * s + t - p. So for o + p = q * s + r the input pixels q - j are read, by taps r + j * s.
        """
        sizes = zip(back.strides, back.kernel, back.begin, strict=True)
        kernel = tuple(-(-taps // s) for s, taps, _ in sizes)
        first = tuple(p // s for s, p in zip(back.strides, back.begin, strict=True))
        begin = tuple(p % s for s, p in zip(back.strides, back.begin, strict=True))
        pads = tuple(taps - 1 - at for taps, at in zip(kernel, first, strict=True))
        multiplied = prod(s * taps for s, taps in zip(back.strides, kernel, strict=True))
        if back.rank > 2 or prod(back.dilations) > 1 or min(pads) < 0 or multiplied > MOST_ZEROS * prod(back.kernel):
            return None
        pixels = tuple(-(-(o + b) // s) for o, b, s in zip(back.inputs, begin, back.strides, strict=True))
        reach = zip(pixels, kernel, pads, back.outputs, strict=True)
        end = tuple(max(q - 1 + taps - p - size, 0) for q, taps, p, size in reach)
        one = (1,) * back.rank
        window = Window(back.outputs, pixels, kernel, one, one, pads, end)
        return cls(window, back.strides, begin, back.inputs, back.kernel)

    def launch(self, k: KernelBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor) -> None:
        """Launch the convolution; `weight` and `bias` are constants."""
        assert weight.constant is not None
        channels = y.shape[1] if prod(self.strides) == 1 else -(-y.shape[1] // PACK) * PACK
        flat = self._weights(weight.constant, channels)
        shift = None if bias is None or bias.constant is None else self._each(bias.constant.reshape(1, -1), channels)
        image, subpixels = y, 0
        if prod(self.strides) > 1:
            stored = SubPixels(self.strides, self.begin, self.outputs, self.window.outputs[-1], channels // PACK)
            k, image = k.for_subpixels(y, (y.shape[0], len(flat), *self.window.outputs), stored)
            subpixels = channels
        flat_bias = None if shift is None else shift.reshape(-1)
        CONVOLUTIONS.launch(ConvPlan.of(k, self.window, x, image, flat, flat_bias, subpixels=subpixels))

    def _weights(self, weight: Array, channels: int) -> Array:
        """Return weights (in, out, *taps) as (sub-pixels * out, in, *taps of a sub-pixel), the last tap first."""
        inside, out, *taps = weight.shape
        steps = list(zip(self.window.kernel, self.strides, strict=True))
        padded = np.zeros((inside, out, *(n * s for n, s in steps)), weight.dtype)
        padded[(slice(None), slice(None), *map(slice, taps))] = weight
        rank = len(steps)
        apart = padded.reshape(inside, out, *(size for pair in steps for size in pair))
        apart = np.flip(apart, tuple(range(2, 2 + 2 * rank, 2)))
        order = (*range(3, 3 + 2 * rank, 2), 1, 0, *range(2, 2 + 2 * rank, 2))
        by_subpixel = apart.transpose(order).reshape(prod(self.strides), out, -1)
        return self._filled(by_subpixel, channels).reshape(-1, inside, *self.window.kernel)

    def _each(self, bias: Array, channels: int) -> Array:
        return np.tile(self._filled(bias[..., None], channels), (prod(self.strides), 1, 1))

    @staticmethod
    def _filled(values: Array, channels: int) -> Array:
        """Return values (sub-pixels, out, ...) with zeros for channels that only fill a block."""
        filled = np.zeros((values.shape[0], channels, *values.shape[2:]), values.dtype)
        filled[:, : values.shape[1]] = values
        return filled


def _turned(k: KernelBuilder, weight: Tensor, group: int) -> Weights:
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


def _packed(k: KernelBuilder, weight: Weights, first: int, count: int, grouped: bool) -> Tensor:
    """Return `count` blocks of output channels as the kernel reads them."""
    out, inside, taps = weight.shape
    if isinstance(weight, Tensor):
        if not grouped:
            return pack_in_run(k, weight, (out, inside, taps))
        return as_image(k, "weight", weight, (1, out, inside * taps), Layout.NC4HW4)
    part = weight[first * PACK : (first + count) * PACK]
    if grouped:
        return as_image(k, f"weight.{first}", part, (1, len(part), inside * taps), Layout.NC4HW4)
    return k.constant(f"weight.{first}", partial(_by_vector, part), Layout.NC4HW4)


def _by_vector(part: Array) -> Array:
    """Return weights (out, in, taps) as the image whose NC4HW4 form is [tap][in block][out block][4 in][4 out]."""
    out, inside, taps = part.shape
    full = np.zeros((-(-out // PACK) * PACK, -(-inside // PACK) * PACK, taps), part.dtype)
    full[:out, :inside] = part
    packed = full.reshape(-1, PACK, full.shape[1] // PACK, PACK, taps).transpose(4, 2, 0, 3, 1)
    return packed.reshape(1, -1, PACK).transpose(0, 2, 1)


def _transposed(x: Shape, w: Shape, precision: Precision = Precision.HIGH, **attributes: object) -> SelfTestCase:
    """Return the case of a transposed convolution without groups, with a bias."""
    op = ConvTranspose(**attributes)  # type: ignore[arg-type]
    return one_node(op, x, w, (w[1],), constants=(1, 2), precision=precision)


register_family(
    KernelFamily(
        "conv_transpose", "transposed convolutions",
        cases=lambda: (
            _transposed((1, 5, 5, 6), (5, 7, 4, 3), strides=(2, 2), pads=(1, 0, 2, 1), dilations=(2, 1)),
            one_node(ConvTranspose(strides=(1, 3), group=2), (2, 4, 5, 4), (4, 3, 2, 2), constants=(1,)),
        ),
    )
)
register_family(
    KernelFamily(
        SUBPIXELS, "convolutions to sub-pixels",
        cases=lambda: (
            _transposed((2, 5, 5, 6), (5, 7, 4, 3), strides=(2, 2), pads=(1, 0, 2, 1)),
            _transposed((1, 16, 9), (16, 8, 8), strides=(3,), pads=(4, 1)),
            _transposed((1, 32, 6, 5), (32, 16, 2, 2), Precision.LOW, strides=(2, 2)),
        ),
        templates=("conv_gemm",), whole=False, anywhere=True,
        fallback="transposed convolutions in a kernel of their own",
    )
)  # fmt: skip
