"""Resize's `tf_crop_and_resize`, held against ONNX's text in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from weft.ops.resize import Resize

TINY = -1.1754943508222875e-38
"""The smallest normal float32 below zero: a region that ends there reaches out of the tensor, if by next to nothing."""


def place(k: int, start: Fraction, end: Fraction, length: int, size: int) -> Fraction:
    """Return `x_original` of the operator's text."""
    if size == 1:
        return (start + end) / 2 * (length - 1)
    return start * (length - 1) + k * (end - start) * (length - 1) / (size - 1)


@pytest.mark.parametrize("end", [TINY, 0.0, 1.0, 1.5])
def test_what_lies_outside_of_any_axis_is_extrapolated(end: float) -> None:
    """Also on an axis whose size stays, which ONNX Runtime takes as it is; its last column is inside, exactly."""
    x = np.arange(1, 41, dtype=np.float32).reshape(2, 1, 5, 4)
    roi = np.array([0, 0, 0.1, 0.2, end, 1, 0.4, 1], np.float32)
    sizes = (2, 1, 1, 3)
    op = Resize(mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=-7.0)
    made = op.reference(x, roi, None, np.array(sizes, np.int64))
    starts, ends = [[Fraction(float(v)) for v in half] for half in (roi[:4], roi[4:])]
    for index in product(*map(range, sizes)):
        at = [place(*facts) for facts in zip(index, starts, ends, x.shape, sizes, strict=True)]
        if any(p < 0 or p > n - 1 for p, n in zip(at, x.shape, strict=True)):
            assert made[index] == -7
        else:  # the values are linear in each coordinate
            assert made[index] == pytest.approx(float(1 + 20 * at[0] + 20 * at[1] + 4 * at[2] + at[3]), rel=1e-6)
