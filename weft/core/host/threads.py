"""Work on many arrays in several threads: numpy releases the GIL while it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from weft.core.host.background import Background
from weft.core.host.parallel_copy import cores

T = TypeVar("T")
R = TypeVar("R")

WORTH = 4 << 20
"""Below this many bytes in all, threads cost more than they save."""


def in_threads(function: Callable[[T], R], items: Sequence[T], nbytes: int) -> list[R]:
    """Return the function's result for each item, in order; `nbytes` is the size of all items' arrays together.

    The function must not write what other calls read.
    """
    threads = min(cores(), len(items))
    if threads < 2 or nbytes < WORTH:
        return [function(item) for item in items]
    with Background(threads, "weft-arrays") as pool:
        return list(pool.map(function, items))
