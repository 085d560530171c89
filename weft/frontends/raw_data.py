"""The bytes of a tensor in a model's file, as arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array

LITTLE = sys.byteorder == "little"
MOST_ELEMENTS = 2**40
"""More elements than any machine holds: a shape that declares them is a mistake or an attack."""


def is_absurd(shape: Sequence[int]) -> bool:
    """Tell whether no array can have that shape; an absurd size counts even beside a size of zero."""
    return min(shape, default=0) < 0 or prod(max(size, 1) for size in shape) > MOST_ELEMENTS


def file_bytes(shape: tuple[int, ...], dtype: DType) -> int:
    """Return the bytes that a file has for a tensor: elements of fewer than eight bits are packed."""
    return -(-prod(shape) * dtype.bits // 8) if dtype.bits < 8 else prod(shape) * dtype.itemsize


def from_bytes(data: Array, dtype: DType, size: int) -> Array:
    """Return `size` elements of a type in bytes that a file has, without a copy where they allow that."""
    if dtype is DType.BOOL:
        return np.not_equal(data, 0)
    if dtype.bits < 8:
        return _unpacked(data, dtype.bits, size).view(dtype.numpy)
    raw = dtype.raw
    array = data.view(raw if LITTLE else raw.newbyteorder("<")).astype(raw, copy=False)
    # Kernels get pointers to constants, so a tensor that is misaligned in its file must move.
    return (array if array.flags.aligned else array.copy()).view(dtype.numpy)


def _unpacked(data: Array, bits: int, size: int) -> Array:
    """Return the first `size` elements of `bits` bits each, lowest bits first, as a byte each."""
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return ((data[:, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[:size]
    single = np.unpackbits(data, count=size * bits, bitorder="little").reshape(size, bits)
    return np.packbits(single, axis=1, bitorder="little").reshape(-1)
