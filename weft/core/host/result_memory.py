"""Memory for results: what callers drop serves the next runs.

The C library returns large blocks to the system (glibc from 32 MiB on, whatever it learned), and each run would pay for
new pages: the system clears them, at about the speed at which one core copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.layout import Array

SMALLEST = 1 << 20
"""Results of fewer bytes are numpy's own: the C library keeps such memory itself."""
KEPT = 2
"""Blocks that are kept for each result. A loop that keeps the last result takes the other block meanwhile."""


class ResultMemory:
    """Hands out arrays, and takes their memory back when the last array in it is gone; one thread at a time asks."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._free: dict[str, deque[Array]] = {}

    def array(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return an array for a result, whose content is arbitrary."""
        size = prod(shape) * dtype.itemsize
        if size < SMALLEST or not self._kept:
            return np.empty(shape, dtype)
        free = self._free.setdefault(name, deque(maxlen=self._kept))
        block = free.pop() if free else None
        if block is None or block.nbytes != size:
            block = np.empty(size, np.uint8)
        return np.asarray(_Memory(block, free)).view(dtype).reshape(shape)

    def clear(self) -> None:
        """Free what no caller holds; what callers hold is freed when they drop it."""
        self._free = {}


class _Memory:
    """What an array has as its base, so that each view of the array keeps the block."""

    __slots__ = ("__array_interface__", "_block", "_free")

    def __init__(self, block: Array, free: deque[Array]) -> None:
        self._block, self._free = block, free
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._block)  # in any thread: this is atomic, and a full deque drops its oldest block
