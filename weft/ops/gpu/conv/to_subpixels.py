"""A transposed convolution as a convolution to sub-pixels.

With strides s, output pixels whose places are the same modulo s see the same taps. So each input pixel, with those
beside it, makes s * s output pixels as a convolution makes s * s times as many channels, which are stored where they
belong (`weft.kernels.output_maps`). Most kernels of convolutions can do that.

Where the taps are no multiple of the strides, some sub-pixels have fewer taps than others, and weights of zero in place
of those. So an input that is infinite or NaN makes NaN of outputs that such a tap would reach, and an infinite weight
may make NaN at the edges, as docs/use.md says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from weft.core.graph.layout import PACK, Array, Shape
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import KernelBuilder
from weft.kernels.output_maps import SubPixels, SubPixelsOfSlices
from weft.kernels.special import KernelFamily, register_family
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.cases import transposed_case
from weft.ops.gpu.conv.gemm import TiledConv
from weft.ops.gpu.conv.problem import ConvPlan
from weft.ops.gpu.conv.volumes import VolumeConv, runs_as_images
from weft.ops.gpu.packing import LateWeights
from weft.ops.window import Window

SUBPIXELS = "conv_subpixels"
"""Convolutions to sub-pixels; `DeviceCaps.without` names them where they were found wrong."""
MOST_PRODUCTS, MOST_OF_VOLUMES = 2.0, 2.5
"""Sub-pixels are used up to this many times the products of the transposed convolution: the others are with zeros.

Three taps with a stride of two, along three axes, take 2.37 times as many.
"""


@dataclass(frozen=True)
class ToSubPixels:
    """The geometry: each pixel of the convolution's result is `strides` pixels of the output."""

    window: Window
    """The convolution's, in pixels of the input."""
    strides: Shape
    begin: Shape
    """How many sub-pixels of the first pixel lie before the output, by axis."""
    outputs: Shape
    """Pixels of the output, by axis."""

    @classmethod
    def of(cls, back: Window) -> ToSubPixels | None:
        """Return the convolution for a transposed one, given the window that this reverses.

        None with dilations, where more is cut off than the taps reach, and where more than `MOST_PRODUCTS` times the
        products would be computed. With s strides and p pixels cut off before the first one, tap t of input pixel i
        reaches output pixel o = i * s + t - p. So for o + p = q * s + r the input pixels q - j are read, by taps
        r + j * s.
        """
        axes = list(zip(back.strides, back.kernel, back.begin, back.inputs, strict=True))
        kernel = tuple(-(-taps // s) for s, taps, *_ in axes)
        pads = tuple(taps - 1 - p // s for taps, (s, _, p, _) in zip(kernel, axes, strict=True))
        products = prod(s * taps for s, taps in zip(back.strides, kernel, strict=True))
        most = MOST_OF_VOLUMES if back.rank == 3 else MOST_PRODUCTS
        if prod(back.dilations) > 1 or min(pads) < 0 or products > most * prod(back.kernel):
            return None
        begin = tuple(p % s for s, _, p, _ in axes)
        pixels = tuple(-(-(o + b) // s) for b, (s, _, _, o) in zip(begin, axes, strict=True))
        reach = zip(pixels, kernel, pads, back.outputs, strict=True)
        end = tuple(max(q - 1 + taps - p - size, 0) for q, taps, p, size in reach)
        one = (1,) * back.rank
        return cls(Window(back.outputs, pixels, kernel, one, one, pads, end), back.strides, begin, back.inputs)

    def launch(self, k: KernelBuilder, x: Tensor, weight: Array, bias: Array | None, y: Tensor) -> bool:
        """Launch the convolution, with weights (in, out, *taps); False if no kernel can address a volume's slice."""
        if prod(self.strides) == 1 and self.window.rank < 3:
            CONVOLUTIONS.launch(ConvPlan.of(k, self.window, x, y, self._late(weight, y.shape[1]), bias))
            return True
        channels = -(-y.shape[1] // PACK) * PACK
        late = self._late(weight, channels)
        shift = None
        if bias is not None:
            shift = np.tile(np.pad(bias.reshape(-1), (0, channels - bias.size)), prod(self.strides))
        places = (self.strides, self.begin, self.outputs, self.window.outputs, channels // PACK)
        stored = SubPixels(*places)
        if self.window.rank == 3:
            of_slices = partial(SubPixelsOfSlices, *places)
            return VolumeConv(k, self.window, x, late, shift, y, stored, of_slices, channels).launch()
        mapped, image = k.for_output_map(y, (y.shape[0], late.shape[0], *self.window.outputs), stored)
        CONVOLUTIONS.launch(ConvPlan.of(mapped, self.window, x, image, late, shift, subpixel_channels=channels))
        return True

    def _late(self, weight: Array, channels: int) -> LateWeights:
        """Return what `by_subpixel` will make of the weights, with so many channels a sub-pixel."""
        kernel = self.window.kernel
        make = partial(by_subpixel, weight, self.strides, kernel, channels)
        order = f"{self.strides} sub-pixels by {kernel}."  # an axis with one pixel has a stride of 1
        return LateWeights(order, (prod(self.strides) * channels, weight.shape[0], *kernel), weight.dtype, make)


def by_subpixel(weight: Array, strides: Shape, kernel: Shape, channels: int) -> Array:
    """Return weights (in, out, *taps) as (sub-pixels * channels, in, *kernel), the last tap first.

    Channels beyond `out`, and taps that a sub-pixel does not have, are zeros.
    """
    inside, out, *taps = weight.shape
    padded = np.zeros((inside, out, *(n * s for n, s in zip(kernel, strides, strict=True))), weight.dtype)
    padded[(slice(None), slice(None), *map(slice, taps))] = weight
    rank = len(taps)
    apart = padded.reshape(inside, out, *(size for pair in zip(kernel, strides, strict=True) for size in pair))
    apart = np.flip(apart, tuple(range(2, 2 + 2 * rank, 2)))
    order = (*range(3, 3 + 2 * rank, 2), 1, 0, *range(2, 2 + 2 * rank, 2))
    filled = np.zeros((prod(strides), channels, inside, *kernel), weight.dtype)
    filled[:, :out] = apart.transpose(order).reshape(prod(strides), out, inside, *kernel)
    return filled.reshape(-1, inside, *kernel)


def stores_subpixels(caps: DeviceCaps, rank: int) -> bool:
    """Tell whether the self-tests found sub-pixels of that rank right, and the kernel that computes them anywhere."""
    return not caps.without & {SUBPIXELS, TiledConv.name} and (rank < 3 or runs_as_images(caps))


register_family(
    KernelFamily(
        SUBPIXELS, "convolutions to sub-pixels",
        cases=lambda: (
            transposed_case((2, 5, 5, 6), (5, 7, 4, 3), strides=(2, 2), pads=(1, 0, 2, 1)),
            transposed_case((1, 16, 9), (16, 8, 8), strides=(3,), pads=(4, 1)),
            transposed_case((2, 5, 2, 3, 4), (5, 6, 3, 3, 3), strides=(2, 2, 2), pads=(1,) * 6),
        ),
        templates=("conv_gemm",), whole=False, anywhere=True,
        fallback="transposed convolutions in a kernel of their own",
    )
)
