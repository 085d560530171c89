"""Images at other sizes, and samples at given places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.torch.builder import Builder, Size, Value
from weft.frontends.torch.rules import aten

Scales = Sequence[float | None] | None


def _resize(g: Builder, x: Value, sizes: Sequence[Size] | None, scales: Scales, **how: Any) -> Value:
    axes = tuple(range(2, x.rank))
    known = [None if scales is None else s for s in (scales or [None] * len(axes))]
    if all(s is not None for s in known):  # torch maps places by the scales that a caller gives
        numbers = g.constant(np.array(known, np.float32))
        return g.op("Resize", x, None, numbers, None, axes=axes, **how)
    assert sizes is not None
    return g.op("Resize", x, None, None, g.ints(sizes), axes=axes, **how)


def _mapping(align_corners: bool) -> str:
    return "align_corners" if align_corners else "half_pixel"


def _nearest(rank: int, name: str, **how: Any) -> None:
    def of_vector(g: Builder, x: Value, sizes: Sequence[Size] | None, scales: Scales) -> Value:
        return _resize(g, x, sizes, scales, mode="nearest", **how)

    def of_sizes(g: Builder, x: Value, sizes: Sequence[Size], *scales: float | None) -> Value:
        return _resize(g, x, sizes, scales, mode="nearest", **how)

    aten(f"{name}{rank}d.vec")(of_vector)
    aten(f"{name}{rank}d")(of_sizes)


def _interpolated(name: str, mode: str, **how: Any) -> None:
    def of_vector(g: Builder, x: Value, sizes: Sequence[Size] | None, align: bool, scales: Scales) -> Value:
        return _resize(g, x, sizes, scales, mode=mode, coordinate_transformation_mode=_mapping(align), **how)

    def of_sizes(g: Builder, x: Value, sizes: Sequence[Size], align: bool, *scales: float | None) -> Value:
        return _resize(g, x, sizes, scales, mode=mode, coordinate_transformation_mode=_mapping(align), **how)

    aten(f"{name}.vec")(of_vector)
    aten(name)(of_sizes)


for _rank in (1, 2, 3):
    _nearest(_rank, "upsample_nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    _nearest(_rank, "_upsample_nearest_exact", coordinate_transformation_mode="half_pixel",
             nearest_mode="round_prefer_ceil")
for _name, _mode in (
    ("upsample_linear1d", "linear"), ("upsample_bilinear2d", "linear"), ("upsample_trilinear3d", "linear"),
    ("upsample_bicubic2d", "cubic"),
):  # fmt: skip
    _interpolated(_name, _mode)
_interpolated("_upsample_bilinear2d_aa", "linear", antialias=1, exclude_outside=1)
_interpolated("_upsample_bicubic2d_aa", "cubic", antialias=1, cubic_coeff_a=-0.5, exclude_outside=1)


@aten("grid_sampler grid_sampler_2d grid_sampler_3d")
def grid_sampler(g: Builder, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return g.op("GridSample", x, grid, mode=modes[mode], padding_mode=paddings[padding],
                align_corners=int(align_corners))


@aten("affine_grid_generator")
def affine_grid(g: Builder, theta: Value, sizes: Sequence[Size], align_corners: bool) -> Value:
    return g.op("AffineGrid", theta, g.ints(sizes), align_corners=int(align_corners))


@aten("pixel_shuffle")
def pixel_shuffle(g: Builder, x: Value, factor: int) -> Value:
    if x.rank == 4:
        return g.op("DepthToSpace", x, blocksize=factor, mode="CRD")
    lead = [g.size(x, k) for k in range(x.rank - 3)]
    rows = [g.size(x, k) for k in (-3, -2, -1)]
    whole = g.reshape(x, [-1, *rows], (None, *x.shape[-3:]))
    shape = (None, *g.out.shape[-3:])
    made = g.op("DepthToSpace", whole, blocksize=factor, mode="CRD", shape=shape)
    return g.reshape(made, [*lead, *(g.size(made, k) for k in (1, 2, 3))])
