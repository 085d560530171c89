"""How much memory of Python and numpy each round of something leaves behind, as `tracemalloc` counts it."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from math import inf
from pathlib import Path

import numpy as np

WINDOWS, ROUNDS, WARM_UP = 9, 6, 4
"""A leak grows in every window of `ROUNDS` rounds; a cache is full, or emptied, in one of the windows."""


FRAMES = 4
NUMPY = str(Path(np.__file__).parent)


def growth(do: Callable[[int], object], most: float) -> str:
    """Return what a round leaves behind if it is more than `most` bytes, else "".

    `do` is called with the number of the round. Memory of drivers is not counted.
    """
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start(FRAMES)
    try:
        return _growth(do, most)
    finally:
        if not was_tracing:
            tracemalloc.stop()


def _growth(do: Callable[[int], object], most: float) -> str:
    for k in range(WARM_UP):
        do(k)
    before, held = _snapshot(), _held()
    least = inf
    for window in range(WINDOWS):
        for k in range(ROUNDS):
            do(WARM_UP + window * ROUNDS + k)
        last, held = held, _held()
        least = min(least, (held - last) / ROUNDS)
        if least <= most:
            return ""
    return f"{least:,.0f} bytes, most of them from {_where(before, _snapshot())}"


def _clear() -> None:
    """Collect garbage, and clear the interpreter's cache of attributes, which keeps names alive."""
    gc.collect()
    clear: Callable[[], None] = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
    clear()


def _held() -> int:
    _clear()
    return tracemalloc.get_traced_memory()[0]


def _snapshot() -> tracemalloc.Snapshot:
    _clear()
    own = (tracemalloc.Filter(False, __file__), tracemalloc.Filter(False, tracemalloc.__file__))
    return tracemalloc.take_snapshot().filter_traces(own)


def _where(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> str:
    """Return the line that holds most of what was added."""
    added = after.compare_to(before, "traceback")
    most = max(added, key=lambda d: d.size_diff, default=None)
    if most is None or most.size_diff <= 0:
        return "nowhere"
    inner = list(reversed(most.traceback))  # numpy allocates for its caller
    frame = next((f for f in inner if not f.filename.startswith(NUMPY)), inner[0])
    return f"{Path(frame.filename).name}:{frame.lineno}"
