"""Compares a device's numbers with those of the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from scripts.fuzz.target import Finding
from weft.core.graph.layout import Array

RELATIVE = {1: 0.3, 2: 2e-2, 4: 1e-3, 8: 1e-3}
"""Tolerances by element size, relative to a number and to a tenth of the largest of its tensor.

They are loose, because a mutant multiplies and cancels freely. The fuzzer looks for other tensors' memory and for
another meaning.
"""


Between = Mapping[int, tuple[Array, Array]]
"""The least and the largest integers that rounding errors make of the exact values of an output, by its number."""


def compare(
    mine: Sequence[Array],
    theirs: Sequence[Array],
    nudged: Sequence[Array] = (),
    between: Between = MappingProxyType({}),
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
        wrong = ~_near(a, b)
        if wrong.any() and number in between:
            least, largest = between[number]
            wrong &= (np.minimum(a, b) < least) | (np.maximum(a, b) > largest)
            word = "skipped: a rounding error decides"
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


def _near(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    relative = RELATIVE[a.dtype.itemsize]
    finite = np.abs(b[np.isfinite(b)])
    largest = float(finite.max()) if finite.size else 0.0
    with np.errstate(all="ignore"):
        return np.isclose(a, b, rtol=relative, atol=largest * relative / 10 + 1e-30, equal_nan=True)


def _shaky(b: Array, nudged: Array, wrong: Array) -> bool:
    """Tell whether a rounding error in the inputs changes the oracle's own result at all those places."""
    if b.shape != nudged.shape:
        return True
    with np.errstate(all="ignore"):
        same = np.asarray(b == nudged) | (np.isnan(b) & np.isnan(nudged) if b.dtype.kind == "f" else False)
        moved = ~_near(nudged, b) if b.dtype.kind == "f" else ~same
    return bool((moved & wrong).any()) and bool((~same)[wrong].all())
