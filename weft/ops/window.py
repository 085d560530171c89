"""The geometry of convolutions and pools: which inputs a window covers, and how often it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from weft.core.graph.layout import Array, Shape
from weft.errors import ModelError

MAX_GROWTH = 64
SMALL = 2**22
"""Padding that makes an image this many times as large, and larger than this, counts as a mistake."""
AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class Window:
    """A window over 1 to 3 spatial dimensions, everything explicit; each field has one entry a dimension.

    Output o and tap k read input `o * stride + k * dilation - begin`, which lies in the padding where it
    is outside `[0, input)`. With ceil_mode the last window may reach beyond the end padding. Strides and
    dilations that are never taken, since there is one output or one tap, are 1.
    """

    inputs: Shape
    outputs: Shape
    kernel: Shape
    strides: Shape
    dilations: Shape
    begin: Shape
    end: Shape

    @property
    def rank(self) -> int:
        """Return the number of spatial dimensions."""
        return len(self.kernel)

    @property
    def extent(self) -> Shape:
        """Return the inputs from the first to the last tap, gaps included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def reach(self) -> Shape:
        """Return the padded inputs from the first tap of the first output to the last of the last."""
        each = zip(self.outputs, self.strides, self.extent, strict=True)
        return tuple((o - 1) * s + e for o, s, e in each)

    @property
    def padded(self) -> Shape:
        """Return the sizes of `pad`'s result."""
        each = zip(self.inputs, self.begin, self.reach, strict=True)
        return tuple(max(r, b + i) for i, b, r in each)

    @property
    def is_pointwise(self) -> bool:
        """Tell whether every output reads only the input at its own position."""
        return self.inputs == self.outputs and prod(self.kernel + self.strides) == 1 and not any(self.begin)

    def taps(self) -> Iterator[Shape]:
        """Iterate over the kernel's positions, the last dimension fastest."""
        return product(*(range(k) for k in self.kernel))

    def pad(self, x: Array, fill: float) -> Array:
        """Return (..., *inputs) padded to at least `reach`: input i then lies at i + begin."""
        padded = self.padded
        if padded == self.inputs:
            return x
        out = np.full((*x.shape[: x.ndim - self.rank], *padded), fill, x.dtype)
        self.crop(out)[...] = x
        return out

    def crop(self, padded: Array) -> Array:
        """Return the view (..., *inputs) without the padding."""
        inner = tuple(slice(b, b + i) for b, i in zip(self.begin, self.inputs, strict=True))
        return padded[(slice(None),) * (padded.ndim - self.rank) + inner]

    def tap(self, padded: Array, at: Shape) -> Array:
        """Return the view (..., *outputs) of the input that each output reads at one position of the kernel."""
        index = [slice(None)] * (padded.ndim - self.rank)
        for k, d, s, o in zip(at, self.dilations, self.strides, self.outputs, strict=True):
            index.append(slice(k * d, k * d + (o - 1) * s + 1, s))
        return padded[tuple(index)]

    def patches(self, padded: Array) -> Array:
        """Return the read-only view (..., *kernel, *outputs) of the inputs that each output reads."""
        lead = padded.ndim - self.rank
        steps = padded.strides[lead:]
        inner = [t * d for t, d in zip(steps, self.dilations, strict=True)]
        outer = [t * s for t, s in zip(steps, self.strides, strict=True)]
        shape, strides = (*padded.shape[:lead], *self.kernel, *self.outputs), (*padded.strides[:lead], *inner, *outer)
        view = np.lib.stride_tricks.as_strided(padded, shape, strides)
        view.setflags(write=False)
        return view


def slide(
    inputs: Shape, kernel: Shape, strides: Sequence[int] = (), dilations: Sequence[int] = (),
    pads: Sequence[int] = (), auto_pad: str = "NOTSET", ceil_mode: int = 0, padding_alone: bool = False,
) -> Window:
    """Return the window that these ONNX attributes describe; an empty attribute has its default.

    Raise ModelError if an attribute has a wrong length or sign, or the window does not fit even once; unless it may
    lie in `padding_alone`, also if an input is 0.
    """
    strides, dilations, begin, end = _complete(inputs, kernel, strides, dilations, pads, auto_pad)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if auto_pad.startswith("SAME"):
        outputs = [-(-i // s) for i, s in zip(inputs, strides, strict=True)]
        each = zip(inputs, outputs, strides, extent, strict=True)
        begin, end = split_padding([max((o - 1) * s + e - i, 0) for i, o, s, e in each], auto_pad)
    else:
        outputs = []
        for i, s, e, b, a in zip(inputs, strides, extent, begin, end, strict=True):
            room = i + b + a - e
            count = (-(-room // s) if ceil_mode else room // s) + 1
            # A window that starts in the end padding covers only padding: ONNX drops it.
            outputs.append(count - 1 if ceil_mode and (count - 1) * s >= i + b else count)
    # Not by `min`: of open sizes it would ask which is the smallest.
    if all(o > 0 for o in outputs) and not padding_alone and any(i < 1 for i in inputs):
        raise ModelError(f"an input of {inputs} has nothing to slide a window over", why="padding alone has no result")
    if any(o < 1 for o in outputs):
        raise ModelError(
            f"a window of {tuple(extent)} does not fit into the input even once",
            why=f"the input has {inputs}, padded by {begin} before and {end} behind",
        )
    return _checked(Window(inputs, tuple(outputs), kernel, strides, dilations, begin, end))


def slide_back(
    inputs: Shape, kernel: Shape, strides: Sequence[int] = (), dilations: Sequence[int] = (),
    pads: Sequence[int] = (), auto_pad: str = "NOTSET", output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
) -> Window:
    """Return the window of the convolution that a ConvTranspose with these attributes reverses.

    Its `outputs` are the inputs of the ConvTranspose and its `inputs` are the outputs; `end` covers
    what the sliding window reaches (an output padding makes the last inputs unread, not padded).
    """
    strides, dilations, begin, end = _complete(inputs, kernel, strides, dilations, pads, auto_pad)
    extra = tuple(output_padding) or (0,) * len(inputs)
    sizes = tuple(output_shape)[-len(inputs) :]
    if len(extra) != len(inputs) or min(extra) < 0 or len(sizes) not in (0, len(inputs)):
        raise ModelError(
            f"output_padding {extra} or output_shape {tuple(output_shape)} does not fit",
            why=f"there are {len(inputs)} spatial dimensions",
        )
    each = list(zip(inputs, kernel, strides, dilations, extra, strict=True))
    full = [(i - 1) * s + (k - 1) * d + 1 + x for i, k, s, d, x in each]
    if auto_pad.startswith("SAME") and not sizes:
        sizes = tuple(i * s for i, s in zip(inputs, strides, strict=True))
    if sizes:
        begin, end = split_padding([max(f - o, 0) for f, o in zip(full, sizes, strict=True)], auto_pad)
    else:
        sizes = tuple(f - b - e for f, b, e in zip(full, begin, end, strict=True))
    if any(size < 1 for size in sizes):
        raise ModelError(f"the result of ConvTranspose would have the sizes {sizes}", why=f"the input has {inputs}")
    return _checked(Window(sizes, inputs, kernel, strides, dilations, begin, end))


def split_padding(total: Sequence[int], auto_pad: str) -> tuple[Shape, Shape]:
    """Return the padding before and after; an odd element goes after for SAME_UPPER, else before."""
    half = tuple(t // 2 for t in total)
    rest = tuple(t - h for t, h in zip(total, half, strict=True))
    return (half, rest) if auto_pad == "SAME_UPPER" else (rest, half)


def _complete(
    inputs: Shape, kernel: Shape, strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int],
    auto_pad: str,
) -> tuple[Shape, Shape, Shape, Shape]:
    rank = len(inputs)
    ones = (1,) * rank
    strides, dilations = tuple(strides) or ones, tuple(dilations) or ones
    pads = tuple(pads) or (0,) * (2 * rank)
    if not 1 <= rank <= 3:
        raise ModelError(f"{rank} spatial dimensions are not supported", why="1 to 3 are")
    for name, values, count, least in (
        ("kernel_shape", kernel, rank, 1),
        ("strides", strides, rank, 1),
        ("dilations", dilations, rank, 1),
        ("pads", pads, 2 * rank, 0),
    ):
        if len(values) != count or min(values) < least:
            raise ModelError(
                f"{name} {tuple(values)} is invalid", why=f"{count} numbers of at least {least} are needed"
            )
    if auto_pad not in AUTO_PADS:
        raise ModelError(f"auto_pad {auto_pad!r} is unknown", why=f"ONNX has {', '.join(AUTO_PADS)}")
    if auto_pad != "NOTSET":
        pads = (0,) * (2 * rank)
    return strides, dilations, pads[:rank], pads[rank:]


def _checked(window: Window) -> Window:
    """Return the window with unused steps set to 1, since they may have any size."""
    padded = prod(i + b + e for i, b, e in zip(window.inputs, window.begin, window.end, strict=True))
    real = prod(window.inputs)
    if padded > MAX_GROWTH * real and padded > SMALL:
        raise ModelError("the padding is impossibly large", why=f"{padded} positions for {real} inputs")
    strides = tuple(s if o > 1 else 1 for s, o in zip(window.strides, window.outputs, strict=True))
    dilations = tuple(d if k > 1 else 1 for d, k in zip(window.dilations, window.kernel, strict=True))
    return replace(window, strides=strides, dilations=dilations)
