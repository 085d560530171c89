"""Memory for results: what callers drop serves the next runs.

The C library returns large blocks to the system (glibc from 32 MiB on, whatever it learned), and each run would pay for
new pages: the system clears them, at about the speed at which one core copies.

Blocks that serve run after run are offered to the device that makes the result. If the device reaches one, runs leave
the result there themselves, and the host copies nothing. The block stays the process's own memory. Memory that a driver
allocates would be shared with forked processes, which would see results change, or not be there for them at all.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from weft.core.graph.layout import Array
from weft.core.host.dropped import ArrayBase

SMALLEST = 1 << 20
"""Results of fewer bytes are numpy's own: the C library keeps such memory itself."""
KEPT = 2
"""Blocks that are kept for each result. A loop that keeps the last result takes the other block meanwhile."""
PATIENCE = 8
"""Runs that the host copies before a block is offered: for each block a device records its commands once more, which
takes about as long as several copies."""

Reach = Callable[[Array], object]
"""Puts memory in a device's reach; returns what keeps it there as long as it lives, or None if the device cannot."""


def is_large(result: Array) -> bool:
    """Tell whether memory for such a result is kept."""
    return result.nbytes >= SMALLEST


class ResultMemory:
    """Hands out arrays, and takes their memory back when the last array in it is gone; one thread at a time asks."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._pools: dict[tuple[str, int], _Pool] = {}

    def array(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return an array for a result, whose content is arbitrary."""
        size = prod(shape) * dtype.itemsize
        if size < SMALLEST or not self._kept:
            return np.empty(shape, dtype)
        pool = self._pools.get((name, size))
        if pool is None:
            pool = self._pools[name, size] = _Pool(self._kept)
        return _array(pool.take() or _Block(size), pool, shape, dtype)

    def reached(self, name: str, shape: Sequence[int], dtype: np.dtype[Any], reach: Reach) -> Array | None:
        """Return an array that the device reaches, or None if no such memory is free, or the device reaches none."""
        pool = self._pools.get((name, prod(shape) * dtype.itemsize))
        block = pool.take_reached(reach) if pool is not None else None
        return None if pool is None or block is None else _array(block, pool, shape, dtype)

    def clear(self) -> None:
        """Free what no caller holds; what callers hold is freed when they drop it."""
        self._pools = {}


class _Block:
    """Whole pages of memory, in which nothing else lies, as devices need it."""

    __slots__ = ("bytes", "hold", "interface")

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        whole = -(-size // page) * page
        raw = np.empty(whole + page, np.uint8)
        first = -raw.ctypes.data % page
        self.bytes: Array = raw[first : first + whole]
        self.interface: dict[str, Any] = raw[first : first + size].__array_interface__
        """What numpy makes arrays of the result's bytes of. To put it together for each run takes some microseconds."""
        self.hold: object = None
        """Keeps the block in a device's reach."""


class _Pool:
    """The blocks of one result. Any thread may give one back: deques are atomic."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._free = deque[_Block](maxlen=kept)
        self._reached = deque[_Block]()
        """The free blocks that the device reaches. They stay until the end, because others cost it much time."""
        self._reaches = 0
        """How many blocks the device reaches, free or not."""
        self._patience = PATIENCE
        self._refused = False

    def take(self) -> _Block | None:
        """Return a free block, if there is one."""
        for free in (self._free, self._reached):
            if free:
                return free.pop()
        return None

    def take_reached(self, reach: Reach) -> _Block | None:
        """Return a free block that the device reaches, or None."""
        if self._reached:
            return self._reached.pop()
        if self._refused or self._reaches == self._kept or not self._free:
            return None
        self._patience -= 1
        if self._patience >= 0:
            return None
        block = self._free.pop()
        block.hold = reach(block.bytes)
        if block.hold is None:
            self._refused = True
            self._free.append(block)
            return None
        self._reaches, self._patience = self._reaches + 1, PATIENCE
        return block

    def give(self, block: _Block) -> None:
        """Take a block back, or leave it to be freed if enough are kept."""
        if block.hold is not None:
            self._reached.append(block)
        elif len(self._free) + self._reaches < self._kept:
            self._free.append(block)


def _array(block: _Block, pool: _Pool, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    return np.asarray(_Lent(block, pool)).view(dtype).reshape(shape)


class _Lent(ArrayBase):
    """Gives the block back when the last array in it is gone."""

    def __init__(self, block: _Block, pool: _Pool) -> None:
        super().__init__(block.interface, block)
        self._block, self._pool = block, pool

    def __del__(self) -> None:
        self._pool.give(self._block)
