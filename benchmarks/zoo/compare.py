"""How far the outputs of a network are from those that are right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOOR, CEILING = 1e-4, 1e-2
"""A difference up to the first is right in any network, one above the second in none."""
ROOM = 10.0
"""Between them, so many times what ONNX Runtime and PyTorch are apart is right: random weights may amplify."""


def difference(found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> float:
    """Return the largest norm of an output's difference over the norm of what is right; inf if they do not compare."""
    if len(found) != len(expected):
        return math.inf
    return max(map(_apart, found, expected), default=0.0)


def allowed(apart: float | None) -> float:
    """Return how large a difference is right where ONNX Runtime and PyTorch are `apart`."""
    return FLOOR if apart is None else min(max(FLOOR, ROOM * apart), CEILING)


def _apart(found: NDArray[Any], expected: NDArray[Any]) -> float:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return math.inf
    if found.dtype.kind not in "fc":
        return 0.0 if np.array_equal(found, expected) else math.inf
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return math.inf
    kind = np.complex128 if found.dtype.kind == "c" else np.float64
    exact = expected[finite].astype(kind)
    norm, apart = np.linalg.norm(exact), np.linalg.norm(found[finite].astype(kind) - exact)
    return float(apart / norm) if norm else float(apart)
