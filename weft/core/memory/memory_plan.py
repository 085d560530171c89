"""The deferred memory plan (contract M8): record lifetimes, then pack them into one arena."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import le
from typing import Any, Generic, TypeVar

from weft.core.contract.backend import StorageType
from weft.core.memory.arena_packing import Block, live_peak, pack
from weft.errors import BackendError

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(slots=True)
class _Life:
    """A size in bytes, and the steps of acquire and release."""

    size: int
    birth: int
    death: int | None = None


ROOM = 8
"""A block that grew from one plan to the next gets this fraction of its size as room to grow."""
FULL = 0.85
"""The share of a plan's bytes that blocks must need for the plan to serve them."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """A packing: the lives and the sizes that it was made for, the sizes that fit, offsets and bytes."""

    lives: list[tuple[int, int]]
    asked: list[int]
    sizes: list[int]
    offsets: list[int]
    total: int


class ArenaPlan(Generic[KeyT]):
    """Records acquires and releases; `plan` then gives each key an offset in one arena.

    If blocks with the same lives were planned before, that plan is used again where the new ones fit into it. Where
    they do not, those that grew get room to grow: the cache of a language model does so at each token.
    """

    def __init__(self, alignment: int = 64) -> None:
        self.alignment = alignment
        self.size = 0
        self._blocks: dict[KeyT, _Life] = {}
        self._step = 0
        self._live = 0
        """Bytes that were acquired and not released."""
        self._peak: int | None = 0
        """The most that `_live` has been; None once a key was forgotten, which then had no part in it."""
        self._peak_before: int | None = 0
        """The same before the last acquire."""
        self._packed: _Packed | None = None

    def acquire(self, key: KeyT, nbytes: int) -> None:
        """Record that `key` needs `nbytes` from now on; BackendError if it is already live."""
        if key in self._blocks:
            raise BackendError(
                f"{key!r} was acquired twice without a clear in between",
                fix="call onReleaseBuffer or onClearBuffer before it is acquired again",
            )
        a = self.alignment
        size = max(-(-nbytes // a), 1) * a
        self._blocks[key] = _Life(size, self._step)
        self._step += 1
        self._live += size
        self._peak_before = self._peak
        if self._peak is not None and self._live > self._peak:
            self._peak = self._live

    def release(self, key: KeyT) -> None:
        """Record that `key` is no longer needed."""
        block = self._blocks.get(key)
        if block is None or block.death is not None:
            raise BackendError(
                f"{key!r} was released without being acquired",
                fix="release once what onAcquireBuffer gave since the last onClearBuffer",
            )
        block.death = self._step
        self._step += 1
        self._live -= block.size

    def forget(self, key: KeyT) -> None:
        """Remove a key from the plan because its memory is elsewhere."""
        del self._blocks[key]
        self._peak = None

    def is_last(self, key: KeyT) -> bool:
        """Tell whether the last step was the acquire of this key."""
        block = self._blocks.get(key)
        return block is not None and block.birth == self._step - 1

    def retract(self, key: KeyT) -> None:
        """Undo the last acquire, which was of this key."""
        self._live -= self._blocks.pop(key).size
        self._step -= 1
        self._peak = self._peak_before

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._blocks)

    def plan(self) -> dict[KeyT, int]:
        """Return the offset of every key and set `size`, the bytes of the arena."""
        blocks, end = self._blocks.values(), self._step
        lives = [(b.birth, end if b.death is None else b.death) for b in blocks]
        asked = [b.size for b in blocks]
        last = self._packed if self._packed is not None and self._packed.lives == lives else None
        if last is None or not _fits(last.sizes, asked):
            sizes = asked
            if last is not None:
                sizes = [s + self._room(s) if s > was else s for s, was in zip(asked, last.asked, strict=True)]
            offsets, total, _ = pack([Block(s, *life) for s, life in zip(sizes, lives, strict=True)])
            last = _Packed(lives, asked, sizes, offsets, total)
        self._packed, self.size = replace(last, asked=asked), last.total
        return dict(zip(self._blocks, last.offsets, strict=True))

    def _room(self, size: int) -> int:
        return -(-size // ROOM // self.alignment) * self.alignment

    def live_peak(self) -> int:
        """Return the bytes of the largest set of blocks alive at once: no plan can be smaller."""
        return live_peak(self._lives()) if self._peak is None else self._peak

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._step = self.size = self._live = self._peak = 0

    def _lives(self) -> list[Block]:
        """Return the blocks; one that was never released lives to the end."""
        return [Block(b.size, b.birth, self._step if b.death is None else b.death) for b in self._blocks.values()]


def _fits(planned: Sequence[int], wanted: Sequence[int]) -> bool:
    """Tell whether blocks fit into the places of others, and do not leave too much of them free."""
    return all(map(le, wanted, planned)) and sum(wanted) >= FULL * sum(planned)


@dataclass(eq=False, slots=True)
class Slot:
    """Memory of one tensor: a piece of a buffer. `buffer` is None until a deferred plan is allocated."""

    nbytes: int
    storage: StorageType
    buffer: Any = None
    offset: int = 0


class BufferManager:
    """The contract's three storage types (M5-M8) over any allocator, for every kind of backend.

    Between `begin` and `allocate` only STATIC memory is allocated: DYNAMIC slots are planned into
    one arena, DYNAMIC_SEPERATE slots into a second buffer. At other times memory is allocated at once, and released
    DYNAMIC memory is reused first.
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
        self._separate: dict[Slot, None] = {}
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

    def statistics(self) -> dict[str, int]:
        """Return the bytes of the arena, its lower bound, and the bytes of constants."""
        arena = self._arena
        return {"arena_bytes": arena.size, "arena_live_peak": arena.live_peak(), "static_bytes": self.static_bytes}

    def begin(self) -> None:
        """Start to record; call `clear` first."""
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
                self._separate[slot] = None
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
        """Release a slot according to its storage type.

        BackendError for STATIC memory, and for DYNAMIC memory of the arena, that is not acquired.
        """
        if slot.storage is StorageType.STATIC:
            if slot not in self._static:
                raise BackendError(
                    "STATIC memory was released twice or never acquired",
                    fix="release once what onAcquireBuffer gave",
                )
            self._static.remove(slot)
            self._static_give(slot.buffer, slot.offset)
            slot.buffer = None
        elif slot in self._eager:
            if slot.storage is StorageType.DYNAMIC:
                self._eager.remove(slot)
                self._spare.append(slot)
        elif slot.storage is StorageType.DYNAMIC:
            self._arena.release(slot)

    def withdraw(self, slot: Slot) -> bool:
        """Take back the last acquire of a recording, if it was of this slot; tell whether it was."""
        if not self._recording or slot.storage is not StorageType.DYNAMIC or not self._arena.is_last(slot):
            return False
        self._arena.retract(slot)
        return True

    def place(self, slot: Slot, buffer: Any) -> None:
        """Move a recorded slot to the start of the caller's buffer; the caller frees that buffer."""
        if slot.storage is StorageType.DYNAMIC:
            self._arena.forget(slot)
        else:
            del self._separate[slot]
        slot.buffer, slot.offset = buffer, 0
        self._placed.append(slot)

    def allocate(self) -> None:
        """Make the plan and allocate it; afterwards every recorded slot has its place."""
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
