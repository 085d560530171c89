"""Compares a device's numbers with those of the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scripts.fuzz.target import Finding
from weft.core.graph.layout import Array

RELATIVE = {1: 0.3, 2: 2e-2, 4: 1e-3, 8: 1e-3}
"""Tolerances by element size, relative to a number and to a tenth of the largest of its tensor.

They are loose, because a mutant multiplies and cancels freely. The fuzzer looks for other tensors' memory and for
another meaning.
"""


@dataclass(frozen=True)
class Grid:
    """How far numbers may be apart that are rounded to a coarse grid."""

    step: float = 0.0
    """The share of the largest number of a tensor by which floats may differ."""
    unit: int = 0
    """How much up to a third of the integers may differ: what rounding errors decide is not most of them."""


EXACT = Grid()


def compare(
    mine: Sequence[Array], theirs: Sequence[Array], nudged: Sequence[Array] = (), grid: Grid = EXACT
) -> str:
    """Return "right", or why the numbers cannot be compared; raise Finding if they differ without a reason.

    `nudged` are the oracle's results for inputs changed by a rounding error.
    """
    if len(mine) != len(theirs):
        raise Finding("another number of outputs", f"{len(mine)} instead of {len(theirs)}")
    word = "right"
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        a = np.asarray(a)
        if a.dtype.kind == "V" and b.dtype.kind == "u" and a.dtype.itemsize == b.dtype.itemsize:
            a = a.view(b.dtype)  # a float of 8 bits, which numpy lacks: ONNX Runtime gives its bytes
        if a.shape != b.shape:
            raise Finding("another shape of an output", f"output {number} has {a.shape} instead of {b.shape}")
        if a.dtype != b.dtype:
            raise Finding("another type of an output", f"output {number} is {a.dtype} instead of {b.dtype}")
        wrong = ~_near(a, b, grid)
        if not wrong.any():
            continue
        if nudged and _shaky(b, nudged[number], wrong):
            word = "skipped: a rounding error decides"
            continue
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise Finding(
            "numbers differ from the oracle's",
            f"{int(wrong.sum())} of {wrong.size} numbers of output {number}; at {at} it is {a[at]} instead of {b[at]}",
        )
    return word


def _near(a: Array, b: Array, grid: Grid = EXACT) -> Array:
    if a.dtype.kind in "iu":
        same = np.asarray(a == b)
        return same if 3 * same.sum() < 2 * same.size else np.asarray(np.maximum(a, b) - np.minimum(a, b) <= grid.unit)
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    relative = RELATIVE[a.dtype.itemsize]
    share = max(relative / 10, grid.step)
    finite = np.abs(b[np.isfinite(b)])
    largest = float(finite.max()) if finite.size else 0.0
    with np.errstate(all="ignore"):
        return np.isclose(a, b, rtol=relative, atol=largest * share + 1e-30, equal_nan=True)


def _shaky(b: Array, nudged: Array, wrong: Array) -> bool:
    """Tell whether a rounding error in the inputs changes the oracle's own result at all those places."""
    if b.shape != nudged.shape:
        return True
    with np.errstate(all="ignore"):
        same = np.asarray(b == nudged) | (np.isnan(b) & np.isnan(nudged) if b.dtype.kind == "f" else False)
        moved = ~_near(nudged, b) if b.dtype.kind == "f" else ~same
    return bool((moved & wrong).any()) and bool((~same)[wrong].all())
