"""A transposed convolution as convolutions to sub-pixels.

With strides s, output pixels whose places are the same modulo s see the same taps. So each input pixel, with those
beside it, makes s * s output pixels as a convolution makes s * s times as many channels, which are stored where they
belong (`weft.kernels.output_maps`). Most kernels of convolutions can do that.

Where the taps are no multiple of the strides, some sub-pixels have a tap less than others along an axis. Those that
have as many are one convolution, so that nothing is multiplied by a tap that does not exist, not even a NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

import numpy as np

from weft.core.graph.layout import PACK, Array, Shape
from weft.core.graph.tensor import Tensor
from weft.core.host.derived_arrays import derived_arrays
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import KernelBuilder
from weft.kernels.output_maps import SubPixels, SubPixelsOfSlices
from weft.kernels.special import register_family
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.cases import transposed_case
from weft.ops.gpu.conv.gemm.tiles import TiledConv
from weft.ops.gpu.conv.problem import ConvPlan
from weft.ops.gpu.conv.volumes.slices import VolumeConv, runs_as_images
from weft.ops.gpu.packing import LateWeights
from weft.ops.window import Window

SUBPIXELS = "conv_subpixels"
"""Convolutions to sub-pixels; `DeviceCaps.without` names them where they were found wrong."""


@dataclass(frozen=True)
class ToSubPixels:
    """A convolution: each pixel of its result is `counts` pixels of the output, some of `strides` or all."""

    window: Window
    """The convolution's, in pixels of the input."""
    strides: Shape
    first: Shape
    """The first sub-pixel that it makes, by axis."""
    counts: Shape
    """How many it makes, by axis."""
    begin: Shape
    """How many sub-pixels of the first pixel lie before the output, by axis."""
    outputs: Shape
    """Pixels of the output, by axis."""

    @classmethod
    def all_of(cls, back: Window) -> list[ToSubPixels] | None:
        """Return the convolutions for a transposed one, given the window that this reverses, the largest one first.

        None with dilations, where more is cut off than the taps reach, and where sub-pixels have no taps. With s
        strides and p pixels cut off before the first one, tap t of input pixel i reaches output pixel
        o = i * s + t - p. So for o + p = q * s + r the input pixels q - j are read, by taps r + j * s.
        """
        if prod(back.dilations) > 1 or any(n < s for n, s in zip(back.kernel, back.strides, strict=True)):
            return None
        ranges = [_ranges(taps, s) for taps, s in zip(back.kernel, back.strides, strict=True)]
        parts = [cls._of(back, *zip(*each, strict=True)) for each in product(*ranges)]
        if any(min(part.window.begin) < 0 for part in parts):
            return None
        return [part for part in parts if min(part.window.outputs) > 0]

    @classmethod
    def _of(cls, back: Window, first: Shape, counts: Shape, kernel: Shape) -> ToSubPixels:
        pads = tuple(taps - 1 - p // s for taps, p, s in zip(kernel, back.begin, back.strides, strict=True))
        begin = tuple(p % s for p, s in zip(back.begin, back.strides, strict=True))
        sizes = zip(back.inputs, begin, first, back.strides, strict=True)
        pixels = tuple(-(-(o + b - f) // s) for o, b, f, s in sizes)
        reach = zip(pixels, kernel, pads, back.outputs, strict=True)
        end = tuple(max(q - 1 + taps - p - size, 0) for q, taps, p, size in reach)
        one = (1,) * back.rank
        window = Window(back.outputs, pixels, kernel, one, one, pads, end)
        return cls(window, back.strides, first, counts, begin, back.inputs)

    def launch(self, k: KernelBuilder, x: Tensor, weight: Array, bias: Array | None, y: Tensor) -> bool:
        """Launch the convolution, with weights (in, out, *taps); False if no kernel can address a volume's slice."""
        if prod(self.strides) == 1 and self.window.rank < 3:
            CONVOLUTIONS.launch(ConvPlan.of(k, self.window, x, y, self._late(weight, y.shape[1]), bias))
            return True
        channels = -(-y.shape[1] // PACK) * PACK
        late = self._late(weight, channels)
        shift = None
        if bias is not None:
            shift = np.tile(np.pad(bias.reshape(-1), (0, channels - bias.size)), prod(self.counts))
        before = tuple(b - f for b, f in zip(self.begin, self.first, strict=True))
        places = (self.strides, self.counts, before, self.outputs, self.window.outputs, channels // PACK)
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
        make = partial(by_subpixel, weight, self.strides, self.first, self.counts, kernel, channels)
        # An axis with one pixel has a stride of 1.
        order = f"{self.counts} of {self.strides} sub-pixels from {self.first} by {kernel}."
        return LateWeights(order, (prod(self.counts) * channels, weight.shape[0], *kernel), weight.dtype, make)


def _ranges(taps: int, stride: int) -> list[tuple[int, int, int]]:
    """Return the sub-pixels of an axis that have as many taps: the first one, how many there are, and their taps."""
    whole, more = divmod(taps, stride)
    return [(0, stride, whole)] if not more else [(0, more, whole + 1), (more, stride - more, whole)]


def are_finite(weight: Array) -> bool:
    """Tell whether weights are finite: zeros beyond the edges of an image, by which others are multiplied, stay so."""
    if derived_arrays.find(are_finite, [weight]) is None:  # another size of a network does not read them again
        if not np.isfinite(weight).all():
            return False
        derived_arrays.note(are_finite, [weight], [])
    return True


def by_subpixel(weight: Array, strides: Shape, first: Shape, counts: Shape, kernel: Shape, channels: int) -> Array:
    """Return weights (in, out, *taps) as (sub-pixels * channels, in, *kernel), the last tap first.

    There are `counts` sub-pixels from `first` on, which have `kernel` taps each. Channels beyond `out` are zeros.
    """
    inside, out = weight.shape[:2]
    filled = np.zeros((*counts, channels, inside, *kernel), weight.dtype)
    for place in product(*map(range, counts)):
        taps = (slice(f + a, f + a + n * s, s) for f, a, n, s in zip(first, place, kernel, strides, strict=True))
        seen = weight[(slice(None), slice(None), *taps)]
        filled[place][:out] = np.flip(seen, tuple(range(2, weight.ndim))).swapaxes(0, 1)
    return filled.reshape(-1, inside, *kernel)


def stores_subpixels(caps: DeviceCaps, rank: int) -> bool:
    """Tell whether the self-tests found sub-pixels of that rank right, and the kernel that computes them anywhere."""
    return not caps.without & {SUBPIXELS, TiledConv.name} and (rank < 3 or runs_as_images(caps))


register_family(
    SUBPIXELS, "convolutions to sub-pixels",
    cases=lambda: (
        transposed_case((2, 5, 5, 6), (5, 7, 4, 3), strides=(2, 2), pads=(1, 0, 2, 1)),
        transposed_case((1, 16, 9), (16, 8, 8), strides=(3,), pads=(4, 1)),
        transposed_case((2, 5, 2, 3, 4), (5, 6, 3, 3, 3), strides=(2, 2, 2), pads=(1,) * 6),
    ),
    templates=("conv_gemm",), whole=False, anywhere=True,
    fallback="transposed convolutions in a kernel of their own",
)
