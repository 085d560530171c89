"""What it costs to round new constants to the type in which they will be stored, beside those that they are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.passes.precision import to_float16


def loses_more(new: Array, old: Sequence[Array], stored: DType, *, summed: bool = False) -> bool:
    """Tell whether rounding an array costs more than rounding those that it is made of, and more than it mostly does.

    Norms over the whole array decide, not single numbers: channels that do nothing have factors that round to zero.
    Numbers below the smallest normal one of a type lose relative accuracy, and those beyond the largest are clamped. An
    array `summed` of others has the errors of these, and may itself be small.
    """
    if not _narrows(new, stored) or not new.size:
        return False
    info = np.finfo(stored.numpy)
    # Each number is off by half an epsilon of its own, or of the smallest normal number, at most. The sum of squares
    # tells in one look that this is little for an array, and that no number is too large.
    with np.errstate(all="ignore"):
        squares = float(np.vdot(new, new))
    usual = squares >= float(info.smallest_normal) ** 2 * new.size
    if usual and (squares <= float(info.max) ** 2 or not exceeds(new, stored)):
        return False
    norm = _norm(new)
    before = [_error(each, stored) / ((norm if summed else _norm(each)) or 1) for each in old]
    return _error(new, stored) > max(float(info.eps), sum(before)) * norm


def exceeds(array: Array, stored: DType) -> bool:
    """Tell whether a type lacks numbers as large as some of an array that will be stored in it."""
    most = float(np.finfo(stored.numpy).max)
    return _narrows(array, stored) and bool(array.size) and bool(array.max() > most or array.min() < -most)


def _narrows(array: Array, stored: DType) -> bool:
    """Tell whether a type is the narrower one; float64 is stored as it is."""
    return stored is DType.FLOAT16 and array.dtype == np.float32


def _error(array: Array, stored: DType) -> float:
    """Return the norm of what rounding changes."""
    return _norm(array - to_float16(array).astype(array.dtype))


def _norm(array: Array) -> float:
    """Return the norm in float64: squares of float32 may be too small for it, or too large."""
    return float(np.linalg.norm(array.astype(np.float64, copy=False)))
