"""Where launches store what they compute, if not as their own pixels and channels of an output.

Kernels compute and number images, pixels and channels as for any other output. Only the store knows where they belong,
so the epilogue does, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from weft.core.graph.layout import Shape


class StoredPlaces(ABC):
    """The numbers of one way to store; `STORES` has its text."""

    way: ClassVar[str]
    """Its key in `STORES`."""

    @abstractmethod
    def constants(self, name: str) -> dict[str, int]:
        """Return the constants that the store to argument `name` needs."""


@dataclass(frozen=True, slots=True)
class SubPixels(StoredPlaces):
    """Several pixels of an output for each one that is computed: sub-pixel convolution.

    Channels are those of the sub-pixels, one after the other, as W. Shi et al. describe it (Real-Time Single Image and
    Video Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural Network, 2016). Sub-pixel a of pixel q of
    what is computed is pixel q * `strides` + a - `begin`, for each of up to three axes. What would lie outside of the
    output is not stored.
    """

    way: ClassVar[str] = "subpixels"
    strides: Shape
    """Sub-pixels of a pixel, by axis."""
    begin: Shape
    """Sub-pixels of the first pixel that lie before the output, by axis."""
    outputs: Shape
    """Pixels of the output, by axis."""
    computed: Shape
    """Pixels of what is computed, by axis."""
    blocks: int
    """Blocks of four channels of a sub-pixel."""

    def constants(self, name: str) -> dict[str, int]:
        """Return the constants of the store; axes that the output does not have come first, with one pixel."""
        ints = {"SUB": self.blocks}
        fields = (("S", self.strides, 1), ("B", self.begin, 0), ("Z", self.outputs, 1), ("Q", self.computed, 1))
        for letter, values, default in fields:
            every = (*[default] * (3 - len(values)), *values)
            ints |= {f"{letter}{axis}": value for axis, value in zip("DHW", every, strict=True)}
        return {f"{name}_{part}": value for part, value in ints.items()}


@dataclass(frozen=True, slots=True)
class SubPixelsOfSlices(SubPixels):
    """Sub-pixels of images that are the slices of what is computed, as `Slices` numbers them."""

    way: ClassVar[str] = "subpixels_of_slices"
    first: int = 0
    """The slice of all volumes that is image 0."""

    def constants(self, name: str) -> dict[str, int]:
        """Return the constants of the store."""
        return {**SubPixels.constants(self, name), f"{name}_FIRST": self.first}


@dataclass(frozen=True, slots=True)
class Slices(StoredPlaces):
    """Images that are the slices of volumes: image n is slice (n + `first`) mod `depth` of a volume, one by one."""

    way: ClassVar[str] = "slices"
    depth: int
    """Slices of a volume."""
    area: int
    """Pixels of a slice."""
    first: int = 0
    """The slice of all volumes that is image 0."""

    def constants(self, name: str) -> dict[str, int]:
        """Return the constants of the store."""
        return {f"{name}_DEPTH": self.depth, f"{name}_AREA": self.area, f"{name}_FIRST": self.first}


@dataclass(frozen=True, slots=True)
class StoreText:
    """How kernels find the places of what they store."""

    pixel: Callable[[str, str, str, str], Sequence[str]]
    """Returns the lines that name image _n and pixel _p of argument `name` for image, block and pixel of a kernel."""
    block: Callable[[str, str], str]
    """Returns the output's block of channels for a computed one."""
    closing: str = ""
    """Closes the condition that `pixel` opens, if there is one."""


def _subpixel(name: str, n: str, c4: str, hw: str) -> Sequence[str]:
    return (f"const int _n = {n}; const int _q = {hw};", *_pixel_of_subpixel(name, c4))


def _subpixel_of_slice(name: str, n: str, c4: str, hw: str) -> Sequence[str]:
    return (
        f"const int _m = ({n}) + {name}_FIRST; const int _n = _m / {name}_QD;",
        f"const int _q = _m % {name}_QD * ({name}_QH * {name}_QW) + ({hw});",
        *_pixel_of_subpixel(name, c4),
    )


def _pixel_of_subpixel(name: str, c4: str) -> Sequence[str]:
    return (
        f"const int _s = ({c4}) / {name}_SUB;",
        f"const int _d = _q / ({name}_QH * {name}_QW) * {name}_SD + _s / ({name}_SH * {name}_SW) - {name}_BD;",
        f"const int _h = _q / {name}_QW % {name}_QH * {name}_SH + _s / {name}_SW % {name}_SH - {name}_BH;",
        f"const int _w = _q % {name}_QW * {name}_SW + _s % {name}_SW - {name}_BW;",
        f"if (_d >= 0 && _d < {name}_ZD && _h >= 0 && _h < {name}_ZH && _w >= 0 && _w < {name}_ZW) {{",
        f"const int _p = (_d * {name}_ZH + _h) * {name}_ZW + _w;",
    )


def _pixel_of_slice(name: str, n: str, c4: str, hw: str) -> Sequence[str]:
    return (
        f"const int _m = ({n}) + {name}_FIRST; const int _n = _m / {name}_DEPTH;",
        f"const int _p = _m % {name}_DEPTH * {name}_AREA + ({hw});",
    )


def _block_of_subpixel(name: str, c4: str) -> str:
    return f"({c4}) % {name}_SUB"


STORES = {
    SubPixels.way: StoreText(_subpixel, _block_of_subpixel, "}"),
    SubPixelsOfSlices.way: StoreText(_subpixel_of_slice, _block_of_subpixel, "}"),
    Slices.way: StoreText(_pixel_of_slice, lambda name, c4: c4),
}
"""The text of each way."""
