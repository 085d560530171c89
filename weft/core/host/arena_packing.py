"""Pack blocks of memory, each with a lifetime, into the smallest arena (contract M8).

The problem is NP-hard. Greedy orders are tried one after the other, each block going to the tightest gap that is free
during its whole life; "largest first" is the order of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
Net Inference" (2020). Where all of them leave more than the bound, a search goes on from the best: the block that did
not fit below the best size so far is placed first next time. Everything stops as soon as the bound is reached.

A greedy order looks at every pair of blocks that live at the same time. Where one value has 50,000 readers there are a
billion pairs: beyond a number of pairs for each block only the orders of birth and death are tried, which need none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

PAIRS_A_BLOCK, FEW_PAIRS = 16, 50_000
"""Pairs of blocks that live together up to which greedy orders are tried: so many for each block, or so many in all."""
TRIES, SEARCH_VISITS = 64, 30_000
"""What the search may do: pack so often, and look at so many placed blocks, which takes about 10 ms."""


class Block(NamedTuple):
    """Bytes that are needed from step `birth` up to, not including, step `death`; no two births share a step."""

    size: int
    birth: int
    death: int


class Packing(NamedTuple):
    """The offset of each block, the bytes of all together, and how many steps it took to find that."""

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


def pack(blocks: Sequence[Block]) -> Packing:
    """Return the best packing that was found; equal blocks get equal packings."""
    return _Packer(blocks).run()


class _Packer:
    """The best packing so far, and the order of the blocks that led to it."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._bound = live_peak(blocks)
        self._near: list[list[int]] = []
        """For each block, those that live at some step of its life."""
        self._best: list[int] = []
        self._order: list[int] = []
        self._size: int | None = None
        self._visits = len(blocks)

    def run(self) -> Packing:
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
        return Packing(self._best, self._size or 0, self._visits)

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
        """Keep a packing if it is smaller than the best; return whether none can be smaller."""
        if self._size is None or size < self._size:
            self._best, self._size, self._order = offsets, size, order
        return self._size <= self._bound

    # -- greedy orders ---------------------------------------------------------------------------------------

    def _greedy(self, key: Callable[[Block], tuple[int, ...]]) -> bool:
        order = sorted(range(len(self._blocks)), key=lambda k: key(self._blocks[k]))
        self._place(order)
        return self._size == self._bound

    def _search(self) -> bool:
        """Place first what did not fit, again and again."""
        order, end = self._order.copy(), self._visits + SEARCH_VISITS
        for _ in range(TRIES):
            late = self._place(order)
            if self._size == self._bound or self._visits >= end:
                break
            if late is None:
                continue  # a smaller one was found: the same order breaks its size
            order.remove(late)
            order.insert(0, late)
        return self._size == self._bound

    def _place(self, order: list[int]) -> int | None:
        """Place the blocks in an order and keep the packing; or return the block that does not fit below the best."""
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
        """Place the blocks as they are born: only the gaps of that moment count."""
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
    """Return the steps at which blocks are born and die, with their numbers; each block comes twice."""
    births = [(b.birth, 1, k) for k, b in enumerate(blocks)]
    deaths = [(b.death, 0, k) for k, b in enumerate(blocks)]
    return [(step, k) for step, _, k in sorted(births + deaths)]


class _Gaps:
    """Free pieces of the arena below its highest block: each ends where a block begins, and none touch."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._begin: dict[int, int] = {}
        """Where the gap with this end begins."""
        self._end: dict[int, int] = {}
        """Where the gap with this beginning ends."""
        self._top = 0

    def take(self, size: int) -> int:
        """Return the offset of the tightest gap, the lowest of several, or of the top."""
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
        """Take a piece back and join it with the gaps that it touches."""
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
