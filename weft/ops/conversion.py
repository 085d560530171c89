"""Numbers from one element type to another, as ONNX's Cast means it."""

from __future__ import annotations

import numpy as np

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.op import Op
from weft.ops.elementwise import misfit

SATURATING = (DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ)
"""Types that have a value for what is too large, NaN or infinity, and take the largest number instead if asked to."""
ROUND_MODES = ("up", "down", "nearest")
_FRACTION = 23
"""Bits of a float32 behind its exponent."""
_NOT_FINITE = 0xFF
"""The exponent of infinities and NaN in a float32, and NaN as a float8_e8m0."""


def check_round_mode(op: Op, mode: str) -> None:
    """Raise ModelError for a way of rounding to powers of two that ONNX does not know."""
    if mode not in ROUND_MODES:
        raise misfit(op, f"round_mode is {mode!r}; allowed: {', '.join(ROUND_MODES)}")


def convert(x: Array, to: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """Return `x` in another element type, rounded to nearest even; integers keep the lower bits that fit.

    What floats out of range become as integers, which ONNX leaves open, says `to_integers`. With `saturate`, what is
    beyond the largest number of an 8-bit float becomes that number, infinities too; without, NaN, or an infinity where
    the type has one. Floats of six and four bits always saturate. `round_mode` is how float8_e8m0, whose numbers are
    powers of two, rounds: "up", "down" or "nearest". Complex numbers lose their imaginary part.
    """
    with np.errstate(all="ignore"):
        if np.iscomplexobj(x) and not to.is_complex:
            x = x.real
        x = x if x.dtype == to.numpy else _known_to_numpy(x)
        if to is DType.FLOAT8E8M0 and x.dtype != to.numpy:
            return _to_power_of_two(x.astype(np.float32), saturate, round_mode)
        if saturate and to in SATURATING:
            import ml_dtypes  # as in DType.numpy

            most = float(ml_dtypes.finfo(to.numpy).max)  # type: ignore[no-untyped-call]
            wide = x if x.dtype == np.float64 else x.astype(np.float32)
            return np.clip(wide, -most, most).astype(to.numpy)
        return to_integers(x, to) if to.is_integer and x.dtype.kind == "f" else x.astype(to.numpy)


def to_integers(x: Array, to: DType) -> Array:
    """Return floats as integers, rounded towards zero, the same on every device and processor.

    They pass through int32 or, to uint32, int64 and uint64, through int64, of which the lower bits stay; what is out
    of its range, and NaN, becomes its least number. A uint64 also holds numbers from 2**63 on; from 2**64 on they
    become 0. That is what numpy and ONNX Runtime do on x86, but for uint32, of which they have this or that.
    """
    through = np.int64 if to in (DType.UINT32, DType.INT64, DType.UINT64) else np.int32
    limit = 2.0 ** (8 * np.dtype(through).itemsize - 1)
    x = x.astype(np.float32) if x.dtype == np.float16 else x  # which does not hold the limit
    if x.size and x.min() >= -limit and x.max() < limit:
        return x.astype(through).astype(to.numpy, copy=False)
    whole = np.trunc(x)
    above = whole >= limit if to is DType.UINT64 else np.False_
    whole = np.where(above, whole - limit, whole)
    fits = (whole >= -limit) & (whole < limit)
    made = np.where(fits, whole, -limit).astype(through)
    return np.where(above, np.bitwise_xor(made, np.iinfo(through).min), made).astype(to.numpy)


def _known_to_numpy(x: Array) -> Array:
    """Return an array of a type that numpy lacks in one of numpy's that has all of its numbers; others as they are."""
    dtype = DType.of(x.dtype)
    return x if dtype.raw == dtype.numpy else x.astype(np.int8 if dtype.is_integer else np.float32)


def _to_power_of_two(x: Array, saturate: bool, round_mode: str) -> Array:
    """Return the exponents of float32 numbers: 0 is 2**-127, 254 the largest, 2**127, and 255 stands for NaN."""
    bits = x.view(np.uint32)
    exponent = (bits >> _FRACTION & 0xFF).astype(np.int32)
    fraction = bits & (1 << _FRACTION) - 1
    half = 1 << _FRACTION - 1
    # A tie goes up, to the even one of the two numbers in the sense of the bit before the last; of subnormals down.
    above = {
        "up": fraction > 0,
        "down": np.False_,
        "nearest": (fraction > half) | (fraction == half) & (exponent > 0),
    }
    raised = exponent + (above[round_mode] & (exponent < (_NOT_FINITE - 1 if saturate else _NOT_FINITE)))
    return np.where(exponent == _NOT_FINITE, _NOT_FINITE, raised).astype(np.uint8).view(DType.FLOAT8E8M0.numpy)
