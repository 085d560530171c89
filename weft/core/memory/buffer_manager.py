"""A backend's memory: what is acquired and released while a pipeline is resized (contract M5 to M8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.contract.backend import StorageType
from weft.core.memory.memory_plan import ArenaPlan
from weft.errors import BackendError


@dataclass(eq=False, slots=True)
class Slot:
    """Memory of one tensor: a piece of a buffer. `buffer` is None until a deferred plan is allocated."""

    nbytes: int
    storage: StorageType
    buffer: Any = None
    offset: int = 0


class BufferManager:
    """The contract's storage types (M5-M8) over any allocator, for every kind of backend.

    Between `begin` and `allocate` only STATIC and STATE memory is allocated: DYNAMIC slots are planned into
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
        self._apart: Any = None
        """The buffer of the recorded DYNAMIC_SEPERATE slots, which is among `_buffers`."""
        self._recording = False

    @property
    def arena(self) -> ArenaPlan[Slot]:
        """Return the plan of the DYNAMIC memory."""
        return self._arena

    @property
    def static_bytes(self) -> int:
        """Return the bytes of STATIC and STATE memory that is held."""
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
        if storage.stays:
            return self.hold(nbytes, *self._static_take(max(nbytes, 1)), storage)
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

    def hold(self, nbytes: int, buffer: Any, offset: int, storage: StorageType = StorageType.STATIC) -> Slot:
        """Return a slot that stays, at a place that was taken for it; its release gives the place back."""
        slot = Slot(nbytes, storage, buffer, offset)
        self._static.add(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """Release a slot according to its storage type.

        BackendError for STATIC and STATE memory, and for DYNAMIC memory of the arena, that is not acquired.
        """
        if slot.storage.stays:
            if slot not in self._static:
                raise BackendError(
                    f"{slot.storage.name} memory was released twice or never acquired",
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
        self._place_separate()

    def refit(self, sizes: Mapping[Slot, int]) -> bool:
        """Give slots of the last plan other sizes if it has room for them: no other slot of the arena moves.

        False, and nothing changes, if it has not. `renew_separate` then gives DYNAMIC_SEPERATE slots their places.
        """
        planned = {slot: n for slot, n in sizes.items() if slot.storage is StorageType.DYNAMIC}
        if self._recording or any(slot not in planned and slot not in self._separate for slot in sizes):
            return False
        if not self._arena.refit(planned):
            return False
        for slot, nbytes in sizes.items():
            slot.nbytes = nbytes
        return True

    def renew_separate(self) -> None:
        """Free the DYNAMIC_SEPERATE slots of the plan and allocate them for the sizes that they have now."""
        old, self._apart = self._apart, None
        if old is not None:
            self._buffers = [buffer for buffer in self._buffers if buffer is not old]
            for slot in self._separate:
                slot.buffer = None
            self._free(old)
        del old  # who holds the last reference to a buffer on the host frees it
        self._place_separate()

    def _place_separate(self) -> None:
        offsets, total = {}, 0
        for slot in self._separate:
            offsets[slot] = total
            total += max(-(-slot.nbytes // self._alignment), 1) * self._alignment
        self._apart = self._place(offsets, total)

    def _place(self, offsets: dict[Slot, int], total: int) -> Any:
        if not total:
            return None
        buffer = self._allocate(total)
        self._buffers.append(buffer)
        for slot, offset in offsets.items():
            slot.buffer, slot.offset = buffer, offset
        return buffer

    def clear(self) -> None:
        """Free all DYNAMIC and DYNAMIC_SEPERATE memory; STATIC and STATE memory stays."""
        for slot in (*self._eager, *self._spare, *self._separate, *self._placed, *self._arena):
            slot.buffer = None
        for buffer in self._buffers:
            self._free(buffer)
        self._buffers.clear()
        self._apart = None
        self._arena.clear()
        self._separate.clear()
        self._placed.clear()
        self._spare.clear()
        self._eager.clear()
        self._recording = False

    def close(self) -> None:
        """Free everything, STATIC and STATE memory too."""
        self.clear()
        for slot in list(self._static):
            self.release(slot)
