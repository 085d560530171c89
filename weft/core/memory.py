"""The deferred memory plan (contract M8): lifetimes are recorded, then packed into one arena.

Packing intervals into the smallest arena is NP-hard. Three greedy orders are tried, each placing a
block at the lowest offset that is free during its whole life, and the smallest result is kept; the
"largest first" order is the one of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
Net Inference" (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from weft.core.backend import StorageType
from weft.errors import BackendError

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(slots=True)
class Block:
    """A piece of the arena: bytes, the steps at which it is acquired and released, and its place."""

    size: int
    birth: int
    death: int | None = None
    offset: int = 0

    def overlaps(self, other: Block) -> bool:
        """Tell whether both are alive at some step."""
        return (other.death is None or self.birth < other.death) and (self.death is None or other.birth < self.death)


class ArenaPlan(Generic[KeyT]):
    """Record acquires and releases; `plan` then gives each key an offset in one arena."""

    def __init__(self, alignment: int = 64) -> None:
        self.alignment = alignment
        self.size = 0
        self._blocks: dict[KeyT, Block] = {}
        self._step = 0

    def acquire(self, key: KeyT, nbytes: int) -> None:
        """Record that `key` needs `nbytes` from now on; a second acquire of a live key is refused."""
        if key in self._blocks:
            raise BackendError(f"{key!r} was acquired twice without a clear between")
        a = self.alignment
        self._blocks[key] = Block(max(-(-nbytes // a), 1) * a, self._step)
        self._step += 1

    def release(self, key: KeyT) -> None:
        """Record that `key` is not needed any more."""
        block = self._blocks.get(key)
        if block is None or block.death is not None:
            raise BackendError(f"{key!r} was released without being acquired")
        block.death = self._step
        self._step += 1

    def forget(self, key: KeyT) -> None:
        """Take a key out of the plan: it lies somewhere else."""
        del self._blocks[key]

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._blocks)

    def plan(self) -> dict[KeyT, int]:
        """Return the offset of every key and set `size`, the bytes of the arena."""
        blocks = list(self._blocks.values())
        orders: list[Callable[[Block], tuple[int, ...]]] = [
            lambda b: (-b.size, b.birth),
            lambda b: (b.birth, -b.size),
            lambda b: (-b.size * (self._end(b) - b.birth), b.birth),
        ]
        best: list[int] | None = None
        self.size = 0
        for order in orders:
            size = _pack(sorted(blocks, key=order))
            if best is None or size < self.size:
                best, self.size = [b.offset for b in blocks], size
        return dict(zip(self._blocks, best or [], strict=True))

    def live_peak(self) -> int:
        """Return the bytes of the largest set of blocks alive at once: no plan can be smaller."""
        events = sorted((step, size) for b in self._blocks.values() for step, size in self._edges(b))
        live = peak = 0
        for _, size in events:
            live += size
            peak = max(peak, live)
        return peak

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._step = self.size = 0

    def _end(self, block: Block) -> int:
        return self._step if block.death is None else block.death

    def _edges(self, block: Block) -> tuple[tuple[int, int], tuple[int, int]]:
        return (block.birth, block.size), (self._end(block), -block.size)


def _pack(blocks: list[Block]) -> int:
    """Place the blocks in the given order, each at the tightest gap that is free for its whole life."""
    placed: list[Block] = []
    total = 0
    for block in blocks:
        cursor, best, best_gap = 0, -1, 0
        for other in sorted((p for p in placed if p.overlaps(block)), key=lambda p: p.offset):
            gap = other.offset - cursor
            if gap >= block.size and (best < 0 or gap < best_gap):
                best, best_gap = cursor, gap
            cursor = max(cursor, other.offset + other.size)
        block.offset = best if best >= 0 else cursor
        placed.append(block)
        total = max(total, block.offset + block.size)
    return total


@dataclass(eq=False, slots=True)
class Slot:
    """Memory of one tensor: a piece of a buffer. Until a deferred plan is made `buffer` is None."""

    nbytes: int
    storage: StorageType
    buffer: Any = None
    offset: int = 0


class BufferManager:
    """The three storage types of the contract (M5-M8) over any allocator; for every kind of backend.

    Between `begin` and `allocate` nothing is allocated but STATIC memory: DYNAMIC slots are planned into
    one arena, DYNAMIC_SEPERATE ones into one other buffer. Outside, memory is given at once, and DYNAMIC
    memory that was released is preferred.
    """

    def __init__(
        self,
        allocate: Callable[[int], Any],
        free: Callable[[Any], None],
        *,
        alignment: int = 64,
        static: tuple[Callable[[int], tuple[Any, int]], Callable[[Any, int], None]] | None = None,
    ) -> None:
        self._allocate, self._free, self._alignment = allocate, free, alignment
        self._static_take, self._static_give = static or ((lambda n: (allocate(n), 0)), (lambda b, _: free(b)))
        self._arena = ArenaPlan[Slot](alignment)
        self._separate: list[Slot] = []
        self._placed: list[Slot] = []
        self._static: set[Slot] = set()
        self._spare: list[Slot] = []
        self._eager: set[Slot] = set()
        self._buffers: list[Any] = []
        self._recording = False

    @property
    def arena(self) -> ArenaPlan[Slot]:
        """Return the plan of the DYNAMIC memory."""
        return self._arena

    @property
    def static_bytes(self) -> int:
        """Return the bytes of STATIC memory that is held."""
        return sum(slot.nbytes for slot in self._static)

    def begin(self) -> None:
        """Begin to record; nothing may be left from before (call `clear` first)."""
        self._recording = True

    def acquire(self, nbytes: int, storage: StorageType) -> Slot:
        """Return a slot of at least `nbytes`."""
        if storage is StorageType.STATIC:
            slot = Slot(nbytes, storage, *self._static_take(max(nbytes, 1)))
            self._static.add(slot)
            return slot
        if self._recording:
            slot = Slot(nbytes, storage)
            if storage is StorageType.DYNAMIC:
                self._arena.acquire(slot, nbytes)
            else:
                self._separate.append(slot)
            return slot
        fitting = [s for s in self._spare if s.nbytes >= nbytes] if storage is StorageType.DYNAMIC else []
        if fitting:
            slot = min(fitting, key=lambda s: s.nbytes)
            self._spare.remove(slot)
        else:
            slot = Slot(nbytes, storage, self._allocate(max(nbytes, 1)))
            self._buffers.append(slot.buffer)
        self._eager.add(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """Take a slot back as its storage type says; BackendError if it was not acquired."""
        if slot.storage is StorageType.STATIC:
            if slot not in self._static:
                raise BackendError("STATIC memory was released twice or never acquired")
            self._static.remove(slot)
            self._static_give(slot.buffer, slot.offset)
            slot.buffer = None
        elif slot in self._eager:
            if slot.storage is StorageType.DYNAMIC:
                self._eager.remove(slot)
                self._spare.append(slot)
        elif slot.storage is StorageType.DYNAMIC:
            self._arena.release(slot)

    def place(self, slot: Slot, buffer: Any) -> None:
        """Let a slot that was recorded lie at the start of the caller's buffer, who also frees that."""
        if slot.storage is StorageType.DYNAMIC:
            self._arena.forget(slot)
        else:
            self._separate.remove(slot)
        slot.buffer, slot.offset = buffer, 0
        self._placed.append(slot)

    def allocate(self) -> None:
        """Make the plan and allocate it; every recorded slot has its place afterwards."""
        self._recording = False
        self._place(self._arena.plan(), self._arena.size)
        offsets, total = {}, 0
        for slot in self._separate:
            offsets[slot] = total
            total += max(-(-slot.nbytes // self._alignment), 1) * self._alignment
        self._place(offsets, total)

    def _place(self, offsets: dict[Slot, int], total: int) -> None:
        if not total:
            return
        buffer = self._allocate(total)
        self._buffers.append(buffer)
        for slot, offset in offsets.items():
            slot.buffer, slot.offset = buffer, offset

    def clear(self) -> None:
        """Free all DYNAMIC and DYNAMIC_SEPERATE memory; STATIC memory stays."""
        for slot in (*self._eager, *self._spare, *self._separate, *self._placed, *self._arena):
            slot.buffer = None
        for buffer in self._buffers:
            self._free(buffer)
        self._buffers.clear()
        self._arena.clear()
        self._separate.clear()
        self._placed.clear()
        self._spare.clear()
        self._eager.clear()
        self._recording = False

    def close(self) -> None:
        """Free everything, STATIC memory too."""
        self.clear()
        for slot in list(self._static):
            self.release(slot)
