"""Where launches store what they compute, if not as their own pixels and channels of an output.

Kernels compute and number images, pixels and channels as for any other output. Only the store knows where they belong,
so the epilogue does, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from weft.core.graph.layout import Shape
from weft.kernels.gate import Gate


class OutputMap(ABC):
    """The numbers of one way to store, and its text."""

    name: ClassVar[str]
    """Its key in `OUTPUT_MAPS`."""
    closing: ClassVar[str] = ""
    """Closes the condition that `pixel` opens, if there is one."""

    @abstractmethod
    def constants(self, arg: str) -> dict[str, int]:
        """Return the constants that the store to an argument needs."""

    @staticmethod
    @abstractmethod
    def pixel(arg: str, n: str, c4: str, hw: str) -> Sequence[str]:
        """Return the lines that name image _n and pixel _p of an argument for image, block and pixel of a kernel."""

    @staticmethod
    def block(arg: str, c4: str) -> str:
        """Return the argument's block of channels for a computed one."""
        return c4


@dataclass(frozen=True, slots=True)
class SubPixels(OutputMap):
    """Several pixels of an output for each one that is computed: sub-pixel convolution.

    Channels are those of the sub-pixels, one after the other, as W. Shi et al. describe it (Real-Time Single Image and
    Video Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural Network, 2016). Sub-pixel a of `counts` of
    pixel q of what is computed is pixel q * `strides` + a - `begin`, for each of up to three axes. What would lie
    outside of the output is not stored.
    """

    name: ClassVar[str] = "subpixels"
    closing: ClassVar[str] = "}"
    strides: Shape
    """Pixels of the output from one computed pixel to the next, by axis."""
    counts: Shape
    """Sub-pixels of a computed pixel, by axis."""
    begin: Shape
    """Pixels that the first sub-pixel of the first pixel lies before the output, negative if behind, by axis."""
    outputs: Shape
    """Pixels of the output, by axis."""
    computed: Shape
    """Pixels of what is computed, by axis."""
    blocks: int
    """Blocks of four channels of a sub-pixel."""

    def constants(self, arg: str) -> dict[str, int]:
        """Return the constants of the store; axes that the output does not have come first, with one pixel."""
        ints = {"SUB": self.blocks}
        fields = (
            ("S", self.strides, 1), ("N", self.counts, 1), ("B", self.begin, 0), ("Z", self.outputs, 1),
            ("Q", self.computed, 1),
        )
        for letter, values, default in fields:
            every = (*[default] * (3 - len(values)), *values)
            ints |= {f"{letter}{axis}": value for axis, value in zip("DHW", every, strict=True)}
        return {f"{arg}_{part}": value for part, value in ints.items()}

    @staticmethod
    def pixel(arg: str, n: str, c4: str, hw: str) -> Sequence[str]:
        """Return the lines of the store, which is done if the sub-pixel lies in the output."""
        return (f"const int _n = {n}; const int _q = {hw};", *_pixel_of_subpixel(arg, c4))

    @staticmethod
    def block(arg: str, c4: str) -> str:
        """Return the block of the sub-pixel's channels."""
        return f"({c4}) % {arg}_SUB"


@dataclass(frozen=True, slots=True)
class SubPixelsOfSlices(SubPixels):
    """Sub-pixels of images that are the slices of what is computed, as `Slices` numbers them."""

    name: ClassVar[str] = "subpixels_of_slices"
    first: int = 0
    """The slice of all volumes that is image 0."""

    def constants(self, arg: str) -> dict[str, int]:
        """Return the constants of the store."""
        return {**SubPixels.constants(self, arg), f"{arg}_FIRST": self.first}

    @staticmethod
    def pixel(arg: str, n: str, c4: str, hw: str) -> Sequence[str]:
        """Return the lines of the store, which is done if the sub-pixel lies in the output."""
        return (
            f"const int _m = ({n}) + {arg}_FIRST; const int _n = _m / {arg}_QD;",
            f"const int _q = _m % {arg}_QD * ({arg}_QH * {arg}_QW) + ({hw});",
            *_pixel_of_subpixel(arg, c4),
        )


@dataclass(frozen=True, slots=True)
class Slices(OutputMap):
    """Images that are the slices of volumes: image n is slice (n + `first`) mod `depth` of a volume, one by one."""

    name: ClassVar[str] = "slices"
    depth: int
    """Slices of a volume."""
    area: int
    """Pixels of a slice."""
    first: int = 0
    """The slice of all volumes that is image 0."""

    def constants(self, arg: str) -> dict[str, int]:
        """Return the constants of the store."""
        return {f"{arg}_DEPTH": self.depth, f"{arg}_AREA": self.area, f"{arg}_FIRST": self.first}

    @staticmethod
    def pixel(arg: str, n: str, c4: str, hw: str) -> Sequence[str]:
        """Return the lines of the store."""
        return (
            f"const int _m = ({n}) + {arg}_FIRST; const int _n = _m / {arg}_DEPTH;",
            f"const int _p = _m % {arg}_DEPTH * {arg}_AREA + ({hw});",
        )


def _pixel_of_subpixel(arg: str, c4: str) -> Sequence[str]:
    return (
        f"const int _s = ({c4}) / {arg}_SUB;",
        f"const int _d = _q / ({arg}_QH * {arg}_QW) * {arg}_SD + _s / ({arg}_NH * {arg}_NW) - {arg}_BD;",
        f"const int _h = _q / {arg}_QW % {arg}_QH * {arg}_SH + _s / {arg}_NW % {arg}_NH - {arg}_BH;",
        f"const int _w = _q % {arg}_QW * {arg}_SW + _s % {arg}_NW - {arg}_BW;",
        f"if (_d >= 0 && _d < {arg}_ZD && _h >= 0 && _h < {arg}_ZH && _w >= 0 && _w < {arg}_ZW) {{",
        f"const int _p = (_d * {arg}_ZH + _h) * {arg}_ZW + _w;",
    )


@dataclass(frozen=True, eq=False, slots=True)
class Pairs(OutputMap):
    """Two channels of what is computed, side by side, for each one of the output, which a gate makes of them."""

    name: ClassVar[str] = "pairs"
    gate: Gate

    def constants(self, arg: str) -> dict[str, int]:
        """Return no constants."""
        return {}

    @staticmethod
    def pixel(arg: str, n: str, c4: str, hw: str) -> Sequence[str]:
        """Return the lines of the store."""
        return (f"const int _n = {n}; const int _p = {hw};",)


OUTPUT_MAPS: dict[str, type[OutputMap]] = {
    each.name: each for each in (SubPixels, SubPixelsOfSlices, Slices, Pairs)
}
"""By the names that `Arg.output_map` has."""
