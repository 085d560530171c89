"""Work on many arrays by several threads: numpy lets go of the interpreter while it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from weft.core.hostcopy import default_threads
from weft.core.layout import Array

WORTH = 4 << 20
"""Bytes of all arrays below which threads cost more than they save."""


def in_threads(function: Callable[[Array], Array], arrays: Sequence[Array]) -> list[Array]:
    """Return what the function makes of each array, in order; it must not write what others read."""
    threads = min(default_threads(), len(arrays))
    if threads < 2 or sum(a.nbytes for a in arrays) < WORTH:
        return [function(a) for a in arrays]
    with ThreadPoolExecutor(threads, "weft-arrays") as pool:
        return list(pool.map(function, arrays))
