"""Slices of volumes, one after the other in the channels of images: what a convolution along the depth sees of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from weft.core.graph.layout import PACK, Shape
from weft.core.graph.tensor import Tensor
from weft.kernels.launch import KernelBuilder
from weft.ops.window import Window

STACKED = "stack_slices"
"""The template that writes stacks, and its family."""


@dataclass(frozen=True)
class SliceStack:
    """Images that a launch would write; a kernel may read the slices where they are instead.

    Image n is what slice n + `first` of all results sees: for each tap along the depth a slice, with zeros for one in
    the padding, and for channels that fill blocks of four.
    """

    k: KernelBuilder
    volumes: Tensor
    """In blocks of four channels (n, channels, depth, height, width)."""
    window: Window
    """That of the convolution of volumes."""
    images: Tensor
    first: int = 0

    @classmethod
    def of(cls, k: KernelBuilder, volumes: Tensor, window: Window, at_once: int) -> SliceStack:
        """Return the stack of the first results, at most so many, for which it takes memory if it is written."""
        count = min(at_once, volumes.shape[0] * window.outputs[0])
        shape = (count, channels_of(volumes, window), *window.inputs[1:])
        return cls(k, volumes, window, k.scratch(shape, volumes.dtype, volumes.layout))

    def part(self, first: int) -> SliceStack:
        """Return the stack of the results from `first` on, in the same memory."""
        count = min(self.images.shape[0], self.volumes.shape[0] * self.window.outputs[0] - first)
        shape: Shape = (count, *self.images.shape[1:])
        return replace(self, first=first, images=replace(self.images, shape=shape))

    @property
    def blocks(self) -> int:
        """Return the blocks of four channels of a slice."""
        return -(-self.volumes.shape[1] // PACK)

    def constants(self) -> dict[str, int]:
        """Return where slices lie: those of a result are `DD` apart, and results `SD`."""
        w = self.window
        return {
            "FIRST": self.first, "ID": w.inputs[0], "OD": w.outputs[0], "SD": w.strides[0], "PD": w.begin[0],
            "DD": w.dilations[0],
        }

    def write(self) -> None:
        """Launch what writes the images."""
        taps, area = self.window.kernel[0], prod(self.window.inputs[1:])
        total = self.images.shape[0] * taps * self.blocks * area
        grid, local = self.k.for_items(total)
        self.k.launch(
            STACKED, reads={"x": self.volumes}, writes={"y": self.images},
            ints={"TOTAL": total, "C4": self.blocks, "TAPS": taps, "AREA": area, **self.constants()}, grid=grid,
            local=local, epilogue=False,
        )


def channels_of(volumes: Tensor, window: Window) -> int:
    """Return the channels of an image of a stack."""
    return window.kernel[0] * -(-volumes.shape[1] // PACK) * PACK
