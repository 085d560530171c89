"""Work on many arrays by several threads: numpy lets go of the interpreter while it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from weft.core.host.parallel_copy import default_threads

T = TypeVar("T")
R = TypeVar("R")

WORTH = 4 << 20
"""Bytes of all arrays below which threads cost more than they save."""


def in_threads(function: Callable[[T], R], items: Sequence[T], nbytes: int) -> list[R]:
    """Return what the function makes of each item, in order; `nbytes` are those of the arrays of all items.

    The function must not write what others read.
    """
    threads = min(default_threads(), len(items))
    if threads < 2 or nbytes < WORTH:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads, "weft-arrays") as pool:
        return list(pool.map(function, items))
