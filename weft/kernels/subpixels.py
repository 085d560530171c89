"""How a launch stores several pixels of an output for each pixel that it computes: sub-pixel convolution.

Its channels are those of the sub-pixels, one after the other, as W. Shi et al. describe it (Real-Time Single Image and
Video Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural Network, 2016). Kernels compute and number
pixels and channels as for any other output. Only the store knows where they belong, so the epilogue does, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.graph.layout import Shape


@dataclass(frozen=True, slots=True)
class SubPixels:
    """Sub-pixel (a, b) of pixel (q, r) of what is computed is pixel (q, r) * `strides` + (a, b) - `begin`.

    What would lie outside of the output is not stored.
    """

    strides: Shape
    """Sub-pixels of a pixel, by axis."""
    begin: Shape
    """Sub-pixels of the first pixel that lie before the output, by axis."""
    outputs: Shape
    """Pixels of the output, by axis."""
    across: int
    """Pixels of a row of what is computed."""
    blocks: int
    """Blocks of four channels of a sub-pixel."""

    def constants(self, name: str) -> dict[str, int]:
        """Return the constants that the store to argument `name` needs; an output may have one dimension or two."""
        ints = {"SUB": self.blocks, "ACROSS": self.across}
        for letter, values, default in (("S", self.strides, 1), ("B", self.begin, 0), ("Z", self.outputs, 1)):
            ints |= dict(zip((f"{letter}H", f"{letter}W"), (*[default] * (2 - len(values)), *values), strict=True))
        return {f"{name}_{part}": value for part, value in ints.items()}


def pixel_of(name: str, n: str, c4: str, hw: str) -> Sequence[str]:
    """Return the lines that name image _n and pixel _p of the output for a block of what is computed.

    The last one opens the braces of a condition, that the pixel lies in the output; `CLOSING` closes them.
    """
    return (
        f"const int _n = {n}; const int _q = {hw}; const int _s = ({c4}) / {name}_SUB;",
        f"const int _h = _q / {name}_ACROSS * {name}_SH + _s / {name}_SW - {name}_BH;",
        f"const int _w = _q % {name}_ACROSS * {name}_SW + _s % {name}_SW - {name}_BW;",
        f"if (_h >= 0 && _h < {name}_ZH && _w >= 0 && _w < {name}_ZW) {{ const int _p = _h * {name}_ZW + _w;",
    )


CLOSING = "}"
"""What closes the condition of `pixel_of`."""


def block_of(name: str, c4: str) -> str:
    """Return the output's block of channels for a computed block."""
    return f"({c4}) % {name}_SUB"
