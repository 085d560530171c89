"""Resize: a tensor resampled along some of its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.tensor import TensorSpec
from weft.errors import ModelError
from weft.ops.shape import MAX_RANK, given, ints, known, known_ints, many_axes, optional, sized, unfit

EXACT = 1 << 24
"""Whole numbers below it are exact in float32."""
CHOICES = {
    "mode": ("nearest", "linear", "cubic"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "ceil_if_shrunk"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "coordinate_transformation_mode": (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_crop_and_resize", "tf_half_pixel_for_nn",
    ),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one axis is sampled: the output size, the scale of outputs per input, and the region for crops."""

    axis: int
    size: int
    scale: np.float32
    region: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Taps:
    """The inputs of each output along an axis: (size, taps) positions and weights, and which lie outside."""

    indices: Array
    weights: Array
    outside: Array

    def widened(self, taps: int) -> Taps:
        """Return the same with more taps, which weigh nothing."""
        more = ((0, 0), (0, taps - self.indices.shape[1]))
        return Taps(np.pad(self.indices, more), np.pad(self.weights, more), self.outside)


@standard_op(op_class="reduction", most_inputs=4, wide_inputs=(1, 2), flags=("antialias", "exclude_outside"))
class Resize(Op):
    """The tensor sampled at more or fewer positions along some axes; inputs X, roi, scales, sizes.

    The `nearest_mode` "ceil_if_shrunk" is that of files before opset 11, as ONNX Runtime reads them: the upper pixel
    along axes with a scale below 1, the lower one along others.
    """

    # Interpolation weights come from rounded coordinates, so the error grows with the coordinate.
    antialias: int = 0
    axes: tuple[int, ...] = ()
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x = given(inputs, 0)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ModelError(f"{name} {getattr(self, name)!r} is unknown", why=f"there are {', '.join(choices)}")
        if self.mode != "nearest" and x.dtype is DType.BOOL:
            raise ModelError(f"{self.mode} interpolation of bool is not supported", why="only of numbers")
        shape = list(x.dims)
        axes, (roi, scales, sizes) = self._axes(len(shape)), self._parameters(inputs, constants)
        self._regions(len(axes), roi)
        for axis, size in zip(axes, self._sizes([shape[axis] for axis in axes], scales, sizes), strict=True):
            shape[axis] = size
        return (sized(shape, x.dtype),)

    def _parameters(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[Array | None, ...]:
        """Return roi, scales and sizes, of which those that are needed must be known."""
        sizes = optional(inputs, 3)
        if sizes is not None and sizes.size:
            known_ints(constants, 3, "sizes")
        else:
            given(inputs, 2)
            known(constants, 2, "scales")
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            known(constants, 1, "roi")
        return tuple(optional(constants[1:], k) for k in range(3))

    def _axes(self, rank: int) -> tuple[int, ...]:
        return many_axes(self.axes, rank) if self.axes else tuple(range(rank))

    def plan(self, dims: Shape, parameters: Sequence[Array | None]) -> tuple[Sampling, ...]:
        """Return how each resized axis is sampled, for inputs roi, scales, sizes."""
        axes = self._axes(len(dims))
        roi, scales, sizes = (optional(parameters, k) for k in range(3))
        lengths = [dims[axis] for axis in axes]
        wanted = self._sizes(lengths, scales, sizes)
        stretch = _factors(scales) if sizes is None or not sizes.size else self._stretches(lengths, ints(sizes))
        regions = self._regions(len(axes), roi)
        return tuple(
            Sampling(axis, size, scale, (float(start), float(end)))
            for axis, size, scale, (start, end) in zip(axes, wanted, stretch, regions, strict=True)
            if size and (size != dims[axis] or scale != 1 or (start, end) != (0, 1))
        )

    def sampled(self, dims: Shape, parameters: Sequence[Array | None]) -> tuple[int, ...]:
        """Return the axes of the parts of `plan`; the lengths may be open, unless their ratio is kept."""
        axes = self._axes(len(dims))
        roi, scales, sizes = (optional(parameters, k) for k in range(3))
        if self.keep_aspect_ratio_policy != "stretch" and sizes is not None and sizes.size:
            return tuple(part.axis for part in self.plan(dims, parameters))
        wanted = self._sizes([dims[axis] for axis in axes], scales, sizes)
        factors = [1] * len(axes) if sizes is not None and sizes.size else _factors(scales)
        regions = self._regions(len(axes), roi)
        return tuple(
            axis
            for axis, size, factor, (start, end) in zip(axes, wanted, factors, regions, strict=True)
            if size and (size != dims[axis] or factor != 1 or (start, end) != (0, 1))
        )

    def _regions(self, axes: int, roi: Array | None) -> Array:
        """Return the start and the end of what is taken along each axis, as shares of it."""
        if self.coordinate_transformation_mode != "tf_crop_and_resize":
            return np.tile([0.0, 1.0], (axes, 1))
        if roi is None or roi.size != 2 * axes or not np.isfinite(roi).all():
            raise unfit(f"roi must be {2 * axes} numbers for {axes} axes")
        return roi.reshape(2, -1).T

    def _sizes(self, lengths: list[int], scales: Array | None, sizes: Array | None) -> list[int]:
        """Return the lengths of the output; those of the input may be open."""
        if sizes is not None and sizes.size:
            return self._by_sizes(lengths, ints(sizes))
        if scales is None:
            raise unfit("Resize needs scales or sizes")
        return _by_scales(lengths, scales)

    def _by_sizes(self, lengths: list[int], sizes: Shape) -> list[int]:
        fits = len(sizes) == len(lengths) and min(sizes, default=0) >= 0
        if not fits or any((s > 0) != (d > 0) for s, d in zip(sizes, lengths, strict=True)):
            raise ModelError(
                f"sizes {sizes} do not fit axes of {lengths}",
                why="one positive number each is needed, and 0 for an axis of 0",
            )
        if self.keep_aspect_ratio_policy == "stretch":
            return list(sizes)
        stretches = self._stretches(lengths, sizes)
        return [floor(scale * np.float32(d) + np.float32(0.5)) for d, scale in zip(lengths, stretches, strict=True)]

    def _stretches(self, lengths: list[int], sizes: Shape) -> list[np.float32]:
        """Return the scale of each axis that sizes ask for: one for all, if the ratio is kept."""
        scales = [np.float32(s) / np.float32(max(d, 1)) for s, d in zip(sizes, lengths, strict=True)]
        if self.keep_aspect_ratio_policy == "stretch":
            return scales
        known = [scale for scale, d in zip(scales, lengths, strict=True) if d] or [np.float32(1)]
        scale = min(known) if self.keep_aspect_ratio_policy == "not_larger" else max(known)
        return [scale] * len(lengths)

    def taps(self, part: Sampling, length: int) -> Taps:
        """Return the positions and weights of each output along an axis of `length` inputs."""
        at = self._coordinates(part, length)
        outside = np.zeros(at.shape, np.bool_)
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            outside = (at < 0) | (at > length - 1)
        if self.mode == "nearest":
            indices = _round(at, self.nearest_mode, part.scale)[:, None]
            weights: Array = np.ones(indices.shape, np.float32)
        else:
            # The filter of antialiasing is as much wider as the output has fewer pixels.
            shrunk = min(part.scale, np.float32(1)) if self.antialias else np.float32(1)
            reach = ceil(self.reach / shrunk)
            indices = np.floor(at)[:, None] + np.arange(1 - reach, 1 + reach, dtype=np.float32)
            distance = (at[:, None] - indices) * shrunk
            linear = self.mode == "linear"
            weights = np.maximum(1 - np.abs(distance), 0) if linear else _cubic(distance, self.cubic_coeff_a)
            if shrunk != 1:
                weights = weights / weights.sum(axis=1, keepdims=True)
        if self.exclude_outside and self.mode != "nearest":
            weights = np.where((indices >= 0) & (indices < length), weights, np.float32(0))
            total = weights.sum(axis=1, keepdims=True)
            weights = np.asarray(weights / np.where(total == 0, 1, total))
        return Taps(indices.clip(0, length - 1).astype(np.int64), weights.astype(np.float32), outside)

    @property
    def reach(self) -> int:
        """Return how many pixels to each side are mixed, where antialiasing takes no more."""
        return {"nearest": 0, "linear": 1, "cubic": 2}[self.mode]

    def _coordinates(self, part: Sampling, length: int) -> Array:
        """Return the input coordinate of each output along an axis; in float32, as ONNX Runtime does."""
        half, mode = np.float32(0.5), self.coordinate_transformation_mode
        at, scale = np.arange(part.size, dtype=np.float32), part.scale
        if mode == "asymmetric":
            return at / scale
        if mode == "tf_half_pixel_for_nn":
            return (at + half) / scale
        if mode == "align_corners":
            return at * np.float32(length - 1) / np.float32(max(part.size - 1, 1))
        if mode == "tf_crop_and_resize":
            start, end = np.float32(part.region[0]), np.float32(part.region[1])
            if part.size == 1:
                return np.asarray([half * (start + end) * np.float32(length - 1)])
            last = np.float32(length - 1)
            return start * last + at * (end - start) * last / np.float32(part.size - 1)
        if mode == "pytorch_half_pixel" and part.size == 1:
            return np.zeros(1, np.float32)
        shift: Array = np.zeros((), np.float32)
        if mode == "half_pixel_symmetric":
            shrink = np.float32(part.size) / (scale * np.float32(length))
            shift = np.asarray(np.float32(length / 2) * (1 - shrink))
        return np.asarray(shift + (at + half) / scale - half)

    def reference(self, *inputs: Array | None) -> Array:
        x = given(inputs, 0)
        mixes, whole = self.mode != "nearest", x.dtype.kind in "iu"
        wide = np.dtype(np.float32) if mixes and whole else np.promote_types(x.dtype, np.float32) if mixes else x.dtype
        out, outside = x.astype(wide, copy=False), np.zeros((1,) * x.ndim, np.bool_)
        for part in self.plan(x.shape, inputs[1:]):
            taps = self.taps(part, x.shape[part.axis])
            column = (-1, *(1,) * (x.ndim - 1 - part.axis))
            outside = outside | taps.outside.reshape(column)
            if self.mode == "nearest":
                out = out.take(taps.indices[:, 0], axis=part.axis)
                continue
            mixed: Array = np.zeros((1,) * x.ndim, wide)
            for at, weight in zip(taps.indices.T, taps.weights.T, strict=True):
                mixed = mixed + out.take(at, axis=part.axis) * weight.reshape(column).astype(wide)
            out = mixed
        if outside.any():
            out = np.where(outside, np.asarray(self.extrapolation_value, wide), out)
        if mixes and whole:
            # ONNX says nothing of the rounding. onnx's evaluator rounds to the nearest, and so does onnxruntime with
            # antialiasing; without it, it rounds towards zero, and the files were tried with that.
            out = np.rint(out) if self.antialias else out
            # Cubic weights lead beyond the type.
            bounds = np.iinfo(x.dtype)
            beyond = np.float32(bounds.max + 1)
            inside = out.clip(bounds.min, np.nextafter(beyond, np.float32(0))).astype(x.dtype)
            return np.where(out >= beyond, x.dtype.type(bounds.max), inside)
        return out.astype(x.dtype, copy=False)


def _factors(scales: Array | None) -> list[np.float32]:
    return [] if scales is None else [np.float32(s) for s in scales.reshape(-1)[:MAX_RANK]]


def _by_scales(lengths: list[int], scales: Array) -> list[int]:
    factors = _factors(scales)
    if scales.size != len(lengths) or not all(np.isfinite(f) and f > 0 for f in factors):
        raise ModelError(f"scales {factors} do not fit axes of {lengths}", why="one positive number each is needed")
    wanted = [_scaled(d, f) for d, f in zip(lengths, factors, strict=True)]
    if any(size < 1 and length for size, length in zip(wanted, lengths, strict=True)):
        raise ModelError(f"scales {factors} make {wanted} of {lengths}", why="nothing would be left of an axis")
    return wanted


def _scaled(length: int, factor: np.float32) -> int:
    """Return floor(length * factor) in float32: in whole numbers, which open sizes know, where nothing is rounded."""
    over, under = float(factor).as_integer_ratio()
    if length * over < EXACT and under < EXACT:
        return length * over // under
    return floor(np.float32(length) * factor)


def _round(at: Array, mode: str, scale: np.float32) -> Array:
    if mode == "round_prefer_floor":
        return np.ceil(at - np.float32(0.5))
    if mode == "round_prefer_ceil":
        return np.floor(at + np.float32(0.5))
    upper = mode == "ceil" or (mode == "ceil_if_shrunk" and scale < 1)
    return np.asarray(np.ceil(at) if upper else np.floor(at))


def _cubic(distance: Array, a: float) -> Array:
    """Return the weights of Keys' cubic convolution for samples at these distances."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))
