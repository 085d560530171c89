"""How far the outputs of two runs are apart, values that are not finite included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.core.graph.control_op import Value
from weft.core.graph.layout import Array


def tensors(names: Sequence[str], values: Sequence[Value]) -> dict[str, Array]:
    """Return the tensors among outputs: those of a sequence `y` are `y.0`, `y.1`; an empty optional is none."""
    made = {}
    for name, value in zip(names, values, strict=True):
        if isinstance(value, np.ndarray):
            made[name] = value
        else:
            made |= {f"{name}.{k}": each for k, each in enumerate(value or ())}
    return made


def not_finite(array: Array) -> int:
    """Return how many elements are infinite or no numbers."""
    return array.size - int(np.count_nonzero(np.isfinite(array)))


@dataclass(frozen=True, slots=True)
class Difference:
    """How arrays differ: the largest absolute difference of finite numbers, and counts of numbers that are not finite.

    `alike` are the same on both sides, NaN for NaN; `unlike` are finite on one side only, or not the same.
    """

    largest: float = 0.0
    alike: int = 0
    unlike: int = 0
    shapes: int = 0
    """How many arrays have another shape on the other side, where their sizes follow from values, or are not there."""

    @property
    def bound(self) -> float:
        """Return the largest difference of all; infinity if some numbers are unlike, or shapes."""
        return math.inf if self.unlike or self.shapes else self.largest

    def text(self, form: str) -> str:
        """Return the difference in a format, with what is not finite in words."""
        if self.shapes:
            return f"other shapes: {self.shapes}"
        if self.unlike:
            return f"not finite: {self.unlike} differ"
        return f"{self.largest:{form}}" + (f", {self.alike} not finite" if self.alike else "")


def difference(outputs: Sequence[Array], reference: Sequence[Array]) -> Difference:
    """Return the difference over all outputs of two runs."""
    pairs = [(a, b) for a, b in zip(outputs, reference, strict=False) if a.shape == b.shape]
    each = [_of_one(a, b) for a, b in pairs]
    largest = max((d.largest for d in each), default=0.0)
    shapes = max(len(outputs), len(reference)) - len(pairs)
    return Difference(largest, sum(d.alike for d in each), sum(d.unlike for d in each), shapes)


def _of_one(a: Array, b: Array) -> Difference:
    finite = np.isfinite(a) & np.isfinite(b)
    if finite.all():
        return Difference(_largest(a, b))
    strange_a, strange_b = a[~finite], b[~finite]
    alike = int(np.count_nonzero((strange_a == strange_b) | (np.isnan(strange_a) & np.isnan(strange_b))))
    return Difference(_largest(a[finite], b[finite]), alike, strange_a.size - alike)


def _largest(a: Array, b: Array) -> float:
    if a.size and a.dtype.kind in "iu" and a.dtype == b.dtype:  # float64 does not tell all integers of 64 bits apart
        bits = np.dtype(f"u{a.dtype.itemsize}")
        return float((np.maximum(a, b).view(bits) - np.minimum(a, b).view(bits)).max())
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) if a.size else 0.0
