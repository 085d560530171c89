"""Ops on boxes in images: suppress those that overlap, and resample a feature map within them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, standard_op
from weft.core.graph.run_sized import RunSized
from weft.core.graph.tensor import TensorSpec
from weft.ops.shape import given, one_type, optional, sized, unfit


@standard_op(most_inputs=5, wide_inputs=(0, 1, 3, 4), flags=("center_point_box",))
class NonMaxSuppression(RunSized):
    """Boxes in the order of their scores without those that overlap a better one too much; rows (image, class, box).

    Inputs boxes [N, B, 4], scores [N, C, B], the most boxes for each class and image (0: none), and the thresholds of
    overlap and of score. Boxes are two opposite corners (y, x, y, x), with `center_point_box` their centre and size
    (x, y, width, height). Only a score above its threshold counts, where that is given. A score of NaN ranks last.
    """

    center_point_box: int = 0
    most: int | None = None
    """Boxes, at most, for each class and image, where that was known when the network was planned."""

    def room(self, inputs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
        """Return a row for each box and class, or fewer where the most is known."""
        boxes, scores = given(inputs, 0), given(inputs, 1)
        b, s = boxes.dims, scores.dims
        if len(b) != 3 or len(s) != 3 or b[2] != 4 or b[0] != s[0] or b[1] != s[2]:
            raise unfit(f"boxes of shape {b} and scores of shape {s} are not [N, B, 4] and [N, C, B]")
        if boxes.dtype is not DType.FLOAT32 or scores.dtype is not DType.FLOAT32:
            one_type(boxes, scores)
        limit = s[2] if self.most is None else self.most
        wanted = optional(inputs, 2)
        most = min(s[2], limit) if wanted is not None and wanted.size else 0
        return (sized((s[0] * s[1] * most, 3), DType.INT64),)

    def counted_axes(self) -> tuple[int | None, ...]:
        return (0,)

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the specs; ModelError if `most` is not what the input says, where that is known."""
        wanted = self.wanted(constants)
        if self.most is not None and wanted not in (None, self.most):
            raise unfit(f"it was planned for at most {self.most} boxes, and its input says {wanted}")
        return super().infer(inputs, constants)

    def wanted(self, constants: Constants) -> int | None:
        """Return the most boxes that the input allows, if that is known."""
        limit = optional(constants, 2)
        if limit is None or not limit.size:
            return None
        if limit.size != 1:
            raise unfit(f"the most boxes are {limit.size} numbers")
        return max(int(limit.reshape(-1)[0]), 0)

    def with_bounds(self, constants: Constants) -> NonMaxSuppression:
        """Return the bounded form, with room for no more boxes than the most that are wanted, if that is known."""
        return replace(self, bounded=True, most=self.wanted(constants))

    def results(self, *inputs: Array | None) -> tuple[Array, ...]:
        boxes, scores = given(inputs, 0), given(inputs, 1)
        limit, overlap, least = (_number(optional(inputs, k)) for k in (2, 3, 4))
        most = 0 if limit is None else min(int(limit), scores.shape[2])
        rows = []
        for image in range(scores.shape[0]):
            low, high = self.corners(boxes[image])
            for group in range(scores.shape[1]):
                kept = suppress(low, high, scores[image, group], most, float(overlap or 0), least)
                rows += [(image, group, box) for box in kept]
        return (np.array(rows, np.int64).reshape(-1, 3),)

    def corners(self, boxes: Array) -> tuple[Array, Array]:
        """Return the lower and the upper corner of each box."""
        if self.center_point_box:
            middle, half = boxes[:, :2], boxes[:, 2:] / 2
            return middle - half, middle + half
        return np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])


def _number(value: Array | None) -> Any:
    """Return the only element; None for an input that is missing, which one without elements stands for, too."""
    return None if value is None or not value.size else value.reshape(-1)[0]


def suppress(low: Array, high: Array, scores: Array, most: int, overlap: float, least: float | None) -> list[int]:
    """Return the boxes to keep, best first: those that overlap no kept one by more than `overlap`."""
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    area = np.prod(high - low, axis=1)
    kept: list[int] = []
    alive = np.ones(len(scores), bool)
    for box in order:
        if len(kept) >= most:
            break
        if not alive[box]:
            continue
        kept.append(int(box))
        sides = np.minimum(high, high[box]) - np.maximum(low, low[box])
        shared = np.where((sides > 0).all(1), np.prod(np.maximum(sides, 0), axis=1), 0)
        both = area + area[box] - shared
        with np.errstate(all="ignore"):
            alive &= ~((shared > 0) & (area > 0) & (area[box] > 0) & (shared / both > overlap))
    return kept


@standard_op(most_inputs=3)
class RoiAlign(Op):
    """What a feature map holds in each of a list of boxes, resampled to one size; inputs X, rois, batch_indices.

    Rois are (x1, y1, x2, y2) in the image, of which X is `spatial_scale` the size. Each bin of the output is the mean,
    or with mode "max" the largest product of weight and pixel, of `sampling_ratio` squared points (0: as many as the
    roi has pixels a bin, but an axis at most one more than X has), as He et al., Mask R-CNN, 2017, describe it.
    """

    op_class = "arithmetic"
    coordinate_transformation_mode: str = "half_pixel"
    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        x, rois, images = (given(inputs, k) for k in range(3))
        one_type(x, rois)
        if len(x.dims) != 4 or len(rois.dims) != 2 or rois.dims[1] != 4 or images.dims != rois.dims[:1]:
            raise unfit(f"X {x.dims}, rois {rois.dims} and indices {images.dims} are not [N, C, H, W], [R, 4] and [R]")
        if images.dtype not in (DType.INT64, DType.INT32):
            raise unfit(f"the indices of images are {images.dtype.value}")
        if rois.dims[0] and 0 in x.dims[2:]:
            raise unfit(f"X {x.dims} has no pixels to resample")
        if self.mode not in ("avg", "max") or self.coordinate_transformation_mode not in (
            "half_pixel",
            "output_half_pixel",
        ):
            raise unfit(f"mode {self.mode!r} with {self.coordinate_transformation_mode!r} is unknown")
        if self.output_height < 1 or self.output_width < 1 or self.sampling_ratio < 0:
            bins = f"{self.output_height} x {self.output_width} bins"
            raise unfit(f"{bins} of {self.sampling_ratio} points make no output")
        return (sized((rois.dims[0], x.dims[1], self.output_height, self.output_width), x.dtype),)

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return eight operations for each point."""
        points = max(self.sampling_ratio, 1) ** 2
        return 8 * points * sum(prod(shape) for shape in outputs)

    def reference(self, *inputs: Array | None) -> Array:
        x, rois, images = (given(inputs, k) for k in range(3))
        kind = np.float64 if x.dtype == np.float64 else np.float32
        wide = x.astype(kind, copy=False)
        out = np.zeros((len(rois), x.shape[1], self.output_height, self.output_width), kind)
        for k, (roi, image) in enumerate(zip(rois.astype(kind), images, strict=True)):
            if not 0 <= image < len(x):
                raise IndexError(f"roi {k} is of image {image}, and X holds {len(x)} images")
            out[k] = self._one(wide[int(image)], roi)
        return out.astype(x.dtype)

    def _one(self, x: Array, roi: Array) -> Array:
        kind = x.dtype.type
        half = kind(0.5 if self.coordinate_transformation_mode == "half_pixel" else 0)
        left, top, right, bottom = roi * kind(self.spatial_scale) - half
        height, width = bottom - top, right - left
        if not half:
            height, width = max(height, kind(1)), max(width, kind(1))
        rows = self._points(top, height, self.output_height, x.shape[1])
        columns = self._points(left, width, self.output_width, x.shape[2])
        inside = rows[2][:, None] & columns[2][None, :]
        parts = [
            np.where(
                inside,
                x[:, rows[0][side_y], :][:, :, columns[0][side_x]]
                * (rows[1][side_y][:, None] * columns[1][side_x][None, :]),
                kind(0),
            )
            for side_y in (0, 1)
            for side_x in (0, 1)
        ]
        ny, nx = len(rows[0][0]) // self.output_height, len(columns[0][0]) // self.output_width
        bins = (x.shape[0], self.output_height, ny, self.output_width, nx)
        if self.mode == "avg":
            total = sum(parts, kind(0))
            return np.asarray(total.reshape(bins).sum((2, 4)) / max(ny * nx, 1))
        if not ny * nx:
            return np.zeros((x.shape[0], self.output_height, self.output_width), kind)
        largest = np.maximum.reduce(parts)
        return np.asarray(largest.reshape(bins).max((2, 4)))

    @staticmethod
    def most_points(size: int) -> int:
        """Return how many points a bin has along an axis of `size` pixels, at most, if `sampling_ratio` is 0.

        A bin no longer than the map has fewer; a longer one, which the roi alone bounds, lies mostly outside of it.
        """
        return size + 1

    def _points(
        self, start: np.floating[Any], length: np.floating[Any], bins: int, size: int
    ) -> tuple[list[Array], list[Array], Array]:
        """Return the two pixels beside each point of an axis, their weights, and whether it lies in the map."""
        kind = type(start)
        one = length / kind(bins)
        count = self.sampling_ratio or int(np.fmin(np.fmax(np.ceil(one), 0), self.most_points(size)))
        steps = (np.arange(count, dtype=kind) + kind(0.5)) * one / kind(max(count, 1))
        with np.errstate(invalid="ignore"):  # an infinite bin has points that are NaN, and so outside
            at = (start + np.arange(bins, dtype=kind)[:, None] * one + steps[None, :]).reshape(-1)
        inside = (at >= -1) & (at <= size)
        at = np.fmin(np.fmax(at, 0), size - 1)
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, size - 1)
        share = (at - low).astype(kind)
        return [low, high], [1 - share, share], inside
