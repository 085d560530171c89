"""Convolutions of volumes as convolutions of images, whose kernels reuse what they load.

Each slice of the result is an image. It depends on as many slices of the volume as there are taps along the depth:
stacked, these are the channels of one image, which a launch writes, unless the kernel reads the slices where they are.
Where there is one tap, each slice of the volume is an image as it is, if its channels come last. Where taps lie along
the depth alone, the volume is an image that has a row for each slice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from weft.core.graph.layout import Array, Layout, Shape
from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import KernelBuilder
from weft.kernels.output_maps import OutputMap, Slices
from weft.kernels.special import register_family
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.gpu.conv.direct import DIRECT
from weft.ops.gpu.conv.gemm.tiles import TiledConv
from weft.ops.gpu.conv.problem import ConvPlan
from weft.ops.gpu.conv.volumes.stack import STACKED, SliceStack, channels_of
from weft.ops.gpu.packing import LateWeights, Weights, array_of, order_of
from weft.ops.window import Window

MOST_STACKED = 1 << 28
"""Bytes of stacked slices; more slices are stacked and convolved in turns, but at least one at a time."""


@dataclass(frozen=True)
class VolumeConv:
    """A convolution of volumes (n, channels, depth, height, width), without groups, by constant weights."""

    k: KernelBuilder
    window: Window
    x: Tensor
    weight: Array | LateWeights
    """(out, in, *taps)."""
    bias: Weights | None
    y: Tensor
    stored: OutputMap
    """Where an image is stored that has all pixels of a volume."""
    stored_from: Callable[[int], OutputMap]
    """Returns where images are stored that are slices, from that one of all results on."""
    subpixel_channels: int = 0
    """As in `ConvProblem`."""

    @classmethod
    def of(
        cls, k: KernelBuilder, window: Window, x: Tensor, weight: Weights, bias: Weights | None, y: Tensor, group: int
    ) -> VolumeConv | None:
        """Return the convolution, or None if it is another or the self-tests found what it needs wrong."""
        if window.rank != 3 or group > 1 or isinstance(weight, Tensor) or not runs_as_images(k.caps):
            return None
        depth, area = window.outputs[0], prod(window.outputs[1:])
        return cls(k, window, x, weight, bias, y, Slices(1, depth * area), partial(Slices, depth, area))

    def launch(self) -> bool:
        """Launch it; False if a kernel cannot address a slice."""
        if self._sees_lines:
            self._launch_lines()
        elif self._sees_one_slice and self.x.layout is Layout.NHWC4:  # else a volume's blocks lie between its slices
            self._launch_slices()
        else:
            return self._launch_stacked()
        return True

    @property
    def _sees_lines(self) -> bool:
        """Tell whether an output sees one pixel of each slice, the one at its own place."""
        w = self.window
        return w.inputs[1:] == w.outputs[1:] and prod(w.kernel[1:] + w.strides[1:]) == 1 and not any(w.begin[1:])

    @property
    def _sees_one_slice(self) -> bool:
        """Tell whether an output sees pixels of one slice, the one at its own place."""
        w = self.window
        return w.inputs[0] == w.outputs[0] and w.kernel[0] == w.strides[0] == 1 and not w.begin[0]

    def _launch_lines(self) -> None:
        w, x, area = self.window, self.x, prod(self.window.inputs[1:])
        window = Window(
            (w.inputs[0], area), (w.outputs[0], area), (w.kernel[0], 1), (w.strides[0], 1), (w.dilations[0], 1),
            (w.begin[0], 0), (w.end[0], 0),
        )
        images = replace(x, shape=(*x.shape[:2], *window.inputs))
        self._convolve(window, images, self._without_axis(4, window.kernel), self.stored)

    def _launch_slices(self) -> None:
        n, channels, depth, *plane = self.x.shape
        images = replace(self.x, shape=(n * depth, channels, *plane))
        self._convolve(self._plane(), images, self._without_axis(2, self.window.kernel[1:]), self.stored_from(0))

    def _launch_stacked(self) -> bool:
        w, x = self.window, self.x
        channels = channels_of(x, w)
        each = channels * prod(w.inputs[1:]) * x.dtype.itemsize
        if each > self.k.caps.max_buffer_range:
            return False
        make = partial(by_slice, channels=channels // w.kernel[0])
        weight = LateWeights(
            f"{order_of(self.weight)}stacked.", (self.weight.shape[0], channels, *w.kernel[1:]), self.weight.dtype,
            lambda: make(array_of(self.weight)),
        )
        stack = SliceStack.of(self.k, x, w, max(min(MOST_STACKED, self.k.caps.max_buffer_range) // each, 1))
        for first in range(0, x.shape[0] * w.outputs[0], stack.images.shape[0]):
            part = stack.part(first)
            with self.k.turn():
                self._convolve(self._plane(), part.images, weight, self.stored_from(first), part)
        return True

    def _without_axis(self, axis: int, kernel: Shape) -> LateWeights:
        """Return the weights without an axis along which there is one tap."""
        weight = self.weight
        make = lambda: array_of(weight).squeeze(axis)  # noqa: E731
        order = f"{order_of(weight)}without axis {axis}."
        return LateWeights(order, (*weight.shape[:2], *kernel), weight.dtype, make)

    def _plane(self) -> Window:
        """Return the window within a slice."""
        w = self.window
        fields = (w.inputs, w.outputs, w.kernel, w.strides, w.dilations, w.begin, w.end)
        return Window(*(each[1:] for each in fields))

    def _convolve(
        self, window: Window, images: Tensor, weight: LateWeights, stored: OutputMap,
        stack: SliceStack | None = None,
    ) -> None:
        k, y = self.k.for_output_map(self.y, (images.shape[0], weight.shape[0], *window.outputs), stored)
        plan = ConvPlan.of(
            k, window, images, y, weight, self.bias, subpixel_channels=self.subpixel_channels,
            slices=self.window.outputs[0], stacked=0 if stack is None else self.window.kernel[0],
        )
        CONVOLUTIONS.launch(replace(plan, stack=stack))


def runs_as_images(caps: DeviceCaps) -> bool:
    """Tell whether the self-tests found right what convolutions of volumes need besides those of images."""
    return not caps.without & {STACKED, TiledConv.name}


def by_slice(weight: Array, channels: int) -> Array:
    """Return weights (out, in, depth, *taps) as (out, depth * channels, *taps): zeros for channels beyond `in`."""
    out, inside, depth, *taps = weight.shape
    padded = np.pad(weight, ((0, 0), (0, channels - inside), *[(0, 0)] * (1 + len(taps))))
    return np.ascontiguousarray(padded.swapaxes(1, 2)).reshape(out, depth * channels, *taps)


register_family(
    STACKED, "convolutions of volumes as images",
    cases=lambda: (
        conv_with((2, 5, 5, 6, 7), (5, 5, 3, 2, 3), strides=(2, 1, 2), pads=(0, 1, 0, 1, 0, 1)),
        conv_with((1, 8, 4, 5, 6), (9, 8, 1, 3, 3), bias=False),
        conv_with(
            (2, 6, 7, 3, 5), (9, 6, 3, 1, 1), strides=(2, 1, 1), dilations=(2, 1, 1), pads=(1, 0, 0, 2, 0, 0)
        ),
    ),
    fallback=DIRECT, seconds=0.4,
)
