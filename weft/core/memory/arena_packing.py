"""Pack blocks of memory, each with a lifetime, into the smallest arena (contract M8).

The problem is NP-hard. Several greedy orders are tried; each places a block in the tightest gap that is free during the
block's whole life. "Largest first" is the order of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
Net Inference" (2020). If all of them exceed the lower bound, a search continues from the best: the block that did
not fit below the best size so far is placed first next time. Everything stops when the bound is reached.

A greedy order looks at every pair of blocks that live at the same time. A value with 50,000 readers can cause a
billion pairs. Beyond a number of pairs for each block, only the orders of birth and death are tried, which need none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

PAIRS_A_BLOCK, FEW_PAIRS = 16, 50_000
"""Greedy orders are tried up to this many pairs of blocks that live together: for each block, or in all."""
TRIES, SEARCH_VISITS = 64, 30_000
"""Limits of the search: how often it packs, and how many placed blocks it looks at, which takes about 10 ms."""


class Block(NamedTuple):
    """Bytes that are needed from step `birth` until before step `death`; no two births share a step."""

    size: int
    birth: int
    death: int


class PackedArena(NamedTuple):
    """The offset of each block, the arena's bytes, and the number of steps that the packing took."""

    offsets: list[int]
    size: int
    visits: int


def live_peak(blocks: Sequence[Block]) -> int:
    """Return the bytes of the largest set of blocks alive at once: no packing can be smaller."""
    live = peak = 0
    for _, size in sorted([(b.birth, b.size) for b in blocks] + [(b.death, -b.size) for b in blocks]):
        live += size
        peak = max(peak, live)
    return peak


def pack(blocks: Sequence[Block]) -> PackedArena:
    """Return the best packing found; equal blocks give equal packings."""
    return _Packer(blocks).run()


class _Packer:
    """Keeps the best packing so far, and the order of blocks that gave it."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._bound = live_peak(blocks)
        self._near: list[list[int]] = []
        """For each block, the blocks whose lives overlap its own."""
        self._best: list[int] = []
        self._order: list[int] = []
        self._size: int | None = None
        self._visits = len(blocks)

    def run(self) -> PackedArena:
        backward = [Block(b.size, -b.death, -b.birth) for b in self._blocks]
        if self._pairs() > max(FEW_PAIRS, PAIRS_A_BLOCK * len(self._blocks)):
            ways: list[Callable[[], bool]] = [lambda: self._sweep(self._blocks), lambda: self._sweep(backward)]
        else:
            self._meet()
            ways = [
                lambda: self._greedy(lambda b: (-b.size, b.birth)),
                lambda: self._sweep(self._blocks),
                lambda: self._greedy(lambda b: (-b.size * (b.death - b.birth), b.birth)),
                lambda: self._sweep(backward),
                self._search,
            ]
        any(way() for way in ways)
        return PackedArena(self._best, self._size or 0, self._visits)

    def _pairs(self) -> int:
        live = pairs = 0
        for _, change in sorted([(b.birth, 1) for b in self._blocks] + [(b.death, -1) for b in self._blocks]):
            pairs += live if change > 0 else 0
            live += change
        return pairs

    def _meet(self) -> None:
        self._near = [[] for _ in self._blocks]
        live: set[int] = set()
        for _, k in _events(self._blocks):
            if k in live:
                live.remove(k)
                continue
            for other in live:
                self._near[k].append(other)
                self._near[other].append(k)
            self._visits += len(live)
            live.add(k)

    def _keep(self, offsets: list[int], size: int, order: list[int]) -> bool:
        """Keep a packing if it is smaller than the best; return whether the best has reached the bound."""
        if self._size is None or size < self._size:
            self._best, self._size, self._order = offsets, size, order
        return self._size <= self._bound

    # -- greedy orders -------------------------------------------------------------------------------------------

    def _greedy(self, key: Callable[[Block], tuple[int, ...]]) -> bool:
        order = sorted(range(len(self._blocks)), key=lambda k: key(self._blocks[k]))
        self._place(order)
        return self._size == self._bound

    def _search(self) -> bool:
        """Repeat: place first the block that did not fit."""
        order, end = self._order.copy(), self._visits + SEARCH_VISITS
        for _ in range(TRIES):
            late = self._place(order)
            if self._size == self._bound or self._visits >= end:
                break
            if late is None:
                continue  # it found a smaller packing, which the same order now exceeds
            order.remove(late)
            order.insert(0, late)
        return self._size == self._bound

    def _place(self, order: list[int]) -> int | None:
        """Place the blocks in an order and keep the packing, or return the first block that exceeds the best size."""
        blocks, offsets, total = self._blocks, [-1] * len(order), 0
        for k in order:
            size, cursor, best, best_gap = blocks[k].size, 0, -1, 0
            self._visits += len(self._near[k])
            placed = [(offsets[p], blocks[p].size) for p in self._near[k] if offsets[p] >= 0]
            for offset, taken in sorted(placed):
                gap = offset - cursor
                if gap >= size and (best < 0 or gap < best_gap):
                    best, best_gap = cursor, gap
                cursor = max(cursor, offset + taken)
            offsets[k] = best if best >= 0 else cursor
            total = max(total, offsets[k] + size)
            if self._size is not None and total >= self._size:
                return k
        self._keep(offsets, total, order.copy())
        return None

    # -- in the order of births, which needs no pairs ----------------------------------------------------------

    def _sweep(self, blocks: Sequence[Block]) -> bool:
        """Place the blocks in the order of their births, using only the gaps of that moment."""
        offsets, total, gaps = [-1] * len(blocks), 0, _Gaps()
        order = []
        for _, k in _events(blocks):
            self._visits += 1
            if offsets[k] >= 0:
                gaps.give(offsets[k], blocks[k].size)
                continue
            offsets[k] = gaps.take(blocks[k].size)
            total = max(total, offsets[k] + blocks[k].size)
            order.append(k)
        return self._keep(offsets, total, order)


def _events(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """Return each block's number at the step of its birth and again at that of its death, sorted by step."""
    births = [(b.birth, 1, k) for k, b in enumerate(blocks)]
    deaths = [(b.death, 0, k) for k, b in enumerate(blocks)]
    return [(step, k) for step, _, k in sorted(births + deaths)]


class _Gaps:
    """Free pieces of the arena below its highest block: each ends where a block begins, and no two touch."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._begin: dict[int, int] = {}
        """The beginning of the gap with this end."""
        self._end: dict[int, int] = {}
        """The end of the gap with this beginning."""
        self._top = 0

    def take(self, size: int) -> int:
        """Return the offset of the tightest gap, the lowest of equals, or of the top."""
        k = bisect_left(self._by_size, (size, -1))
        if k == len(self._by_size):
            self._top += size
            return self._top - size
        _, offset = self._by_size[k]
        end = self._end[offset]
        self._remove(offset, end)
        if offset + size < end:
            self._add(offset + size, end)
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free a piece and join it with the gaps that it touches."""
        begin, end = self._begin.get(offset, offset), self._end.get(offset + size, offset + size)
        if begin < offset:
            self._remove(begin, offset)
        if end > offset + size:
            self._remove(offset + size, end)
        if end == self._top:
            self._top = begin
        else:
            self._add(begin, end)

    def _add(self, begin: int, end: int) -> None:
        insort(self._by_size, (end - begin, begin))
        self._begin[end], self._end[begin] = begin, end

    def _remove(self, begin: int, end: int) -> None:
        del self._by_size[bisect_left(self._by_size, (end - begin, begin))]
        del self._begin[end], self._end[begin]
