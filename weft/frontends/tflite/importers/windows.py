"""How windows are padded, as convolutions and pools need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.errors import ModelError
from weft.frontends.tflite.schema import SAME, VALID


def same_pads(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Return the padding before and behind an axis whose output has a place for each stride; more is behind."""
    needed = (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size
    return max(needed, 0) // 2, max(needed, 0) - max(needed, 0) // 2


def window(
    padding: int, sizes: Sequence[int | None], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return the attributes of a window over spatial axes; ModelError for what is no window.

    `sizes` are those of the input, None where they are open.
    """
    dilations = [1] * len(kernel) if dilations is None else dilations
    if padding not in (SAME, VALID):
        raise ModelError(f"there is no padding {padding}")
    if min((*kernel, *strides, *dilations)) < 1:
        raise ModelError(f"a window of {tuple(kernel)} with strides {tuple(strides)} makes no sense")
    attributes: dict[str, Any] = {"kernel_shape": tuple(kernel), "strides": tuple(strides)}
    if any(d != 1 for d in dilations):
        attributes["dilations"] = tuple(dilations)
    if padding == SAME and None in sizes:
        attributes["auto_pad"] = "SAME_UPPER"
    elif padding == SAME:
        known = [n for n in sizes if n is not None]
        pairs = [same_pads(*each) for each in zip(known, kernel, strides, dilations, strict=True)]
        attributes["pads"] = (*(before for before, _ in pairs), *(behind for _, behind in pairs))
    return attributes
