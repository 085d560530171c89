"""Layouts, which say how a tensor's elements lie in memory: NCHW, NHWC, NC4HW4 and NHWC4.

A tensor's *shape* is always the logical one, channels second. A layout maps it to a *storage shape*:
`(N, C, ...)`, `(N, ..., C)`, `(N, ceil(C/4), ..., 4)` or `(N, ..., 4 * ceil(C/4))`. Shapes without a channel axis
(rank 0 and 1) are stored linearly in every layout. The padding lanes of NC4HW4 and NHWC4 are always zero.
"""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

PACK = 4


class Layout(Enum):
    """The order in which a tensor's elements are stored."""

    NCHW = "NCHW"
    NHWC = "NHWC"
    NC4HW4 = "NC4HW4"
    NHWC4 = "NHWC4"

    @property
    def packed(self) -> bool:
        """Tell whether channels are stored in whole blocks of four, so that kernels read them as vectors."""
        return self in (Layout.NC4HW4, Layout.NHWC4)


def address_of(array: Array) -> int:
    """Return where the memory of an array begins."""
    return int(array.__array_interface__["data"][0])


def row_major(shape: Shape) -> tuple[int, ...]:
    """Return the strides, in elements, of an array in C order."""
    steps = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        steps[axis - 1] = steps[axis] * shape[axis]
    return tuple(steps)


def to_rows(rank: int) -> tuple[int, ...]:
    """Return the order of axes that moves the channels of an image behind its pixels, whose rows they become."""
    return (0, *range(2, rank), 1)


def to_image(rank: int) -> tuple[int, ...]:
    """Return the order of axes that moves channels behind the pixels back to the second axis."""
    return (0, rank - 1, *range(1, rank - 1))


def storage_shape(shape: Shape, layout: Layout) -> Shape:
    """Return the shape of the array that stores a tensor of logical `shape` in `layout`."""
    if layout is Layout.NCHW or len(shape) < 2:
        return shape
    n, c, *rest = shape
    if layout is Layout.NHWC:
        return (n, *rest, c)
    if layout is Layout.NHWC4:
        return (n, *rest, -(-c // PACK) * PACK)
    return (n, -(-c // PACK), *rest, PACK)


def storage_size(shape: Shape, layout: Layout) -> int:
    """Return the number of stored elements, padding lanes included."""
    return prod(storage_shape(shape, layout))


def to_storage(array: Array, layout: Layout) -> Array:
    """Return the contiguous stored form of a logical array; padding lanes are zero."""
    if array.ndim < 2 or layout is Layout.NCHW:
        return np.ascontiguousarray(array).reshape(array.shape)
    if layout is Layout.NHWC:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1))
    n, c, *rest = array.shape
    blocks = -(-c // PACK)
    if c % PACK:
        array = np.concatenate([array, np.zeros((n, blocks * PACK - c, *rest), array.dtype)], axis=1)
    if layout is Layout.NHWC4:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1))
    packed = np.moveaxis(array.reshape(n, blocks, PACK, *rest), 2, -1)
    return np.ascontiguousarray(packed)


def from_storage(stored: Array, shape: Shape, layout: Layout) -> Array:
    """Return the logical array of `shape` from its stored form, without padding lanes."""
    stored = stored.reshape(storage_shape(shape, layout))
    if len(shape) < 2 or layout is Layout.NCHW:
        return stored
    if layout is Layout.NHWC:
        return np.ascontiguousarray(np.moveaxis(stored, -1, 1))
    n, c, *rest = shape
    if layout is Layout.NHWC4:
        return np.ascontiguousarray(np.moveaxis(stored[..., :c], -1, 1))
    unpacked = np.moveaxis(stored, -1, 2).reshape(n, stored.shape[1] * PACK, *rest)
    return np.ascontiguousarray(unpacked[:, :c])


def convert(stored: Array, shape: Shape, source: Layout, target: Layout, dtype: Any) -> Array:
    """Return an array stored in `source` layout converted to `target` layout and `dtype`.

    The result's padding lanes are zero, whatever the source has in its own.
    """
    if source is target is Layout.NCHW and stored.dtype == dtype and stored.shape == shape:
        return stored
    if source is not target or (source.packed and len(shape) > 1 and shape[1] % PACK):
        stored = to_storage(from_storage(stored, shape, source), target)
    with np.errstate(over="ignore", invalid="ignore"):
        return stored.reshape(storage_shape(shape, target)).astype(dtype, copy=False)
