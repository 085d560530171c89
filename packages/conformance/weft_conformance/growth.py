"""How much memory of Python and numpy each round of something leaves behind, as `tracemalloc` counts it."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

import numpy as np

WINDOWS, ROUNDS, WARM_UP = 9, 6, 4
"""A leak grows in every window of `ROUNDS` rounds; a cache is full, or emptied, in one of the windows."""

FRAMES = 4
"""Frames that are kept of each allocation to find the line of a leak; counting takes one, which costs less."""
NUMPY = str(Path(np.__file__).parent)


def growth(do: Callable[[int], object], most: float) -> str:
    """Return what a round leaves behind if it is more than `most` bytes, else "".

    `do` is called with the number of the round. Memory of drivers is not counted.
    """
    least = _least(do, most)
    if least <= most:
        return ""
    return f"{least:,.0f} bytes, most of them from {_where(do)}"


def _least(do: Callable[[int], object], most: float) -> float:
    """Return the least that a round left in one of the windows; windows end at one that left no more than `most`."""
    with _traced(1):
        for k in range(WARM_UP):
            do(k)
        held, least = _held(), inf
        for window in range(WINDOWS):
            for k in range(ROUNDS):
                do(WARM_UP + window * ROUNDS + k)
            last, held = held, _held()
            least = min(least, (held - last) / ROUNDS)
            if least <= most:
                break
    return least


@contextmanager
def _traced(frames: int) -> Iterator[None]:
    """Trace allocations within the block, unless the caller of the kit does already."""
    if tracemalloc.is_tracing():
        yield
        return
    tracemalloc.start(frames)
    try:
        yield
    finally:
        tracemalloc.stop()


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


def _where(do: Callable[[int], object]) -> str:
    """Return the line that holds most of what further rounds add."""
    with _traced(FRAMES):
        before = _snapshot()
        for k in range(ROUNDS):
            do(WARM_UP + (WINDOWS + 1) * ROUNDS + k)
        added = _snapshot().compare_to(before, "traceback")
    most = max(added, key=lambda d: d.size_diff, default=None)
    if most is None or most.size_diff <= 0:
        return "nowhere"
    inner = list(reversed(most.traceback))  # numpy allocates for its caller
    frame = next((f for f in inner if not f.filename.startswith(NUMPY)), inner[0])
    return f"{Path(frame.filename).name}:{frame.lineno}"
