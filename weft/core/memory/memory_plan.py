"""The deferred memory plan (contract M8): record lifetimes, then pack them into one arena."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import le
from typing import Generic, TypeVar

from weft.core.memory.arena_packing import Block, pack
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
        """The most that `_live` has been; None once a key was forgotten, which then had no part in it, or sizes were
        changed."""
        self._peak_before: int | None = 0
        """`_peak` before the last acquire."""
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

    def refit(self, sizes: Mapping[KeyT, int]) -> bool:
        """Give keys other numbers of bytes if the last plan, which is of just these blocks, has room for them.

        Every offset then stays. False, and nothing changes, if a new plan is needed.
        """
        last, a = self._packed, self.alignment
        if last is None or not sizes.keys() <= self._blocks.keys():
            return False
        rounded = {key: max(-(-nbytes // a), 1) * a for key, nbytes in sizes.items()}
        asked = [rounded.get(key, block.size) for key, block in self._blocks.items()]
        if not _fits(last.sizes, asked):
            return False
        for key, size in rounded.items():
            self._blocks[key].size = size
        self._packed, self._peak = replace(last, asked=asked), None
        return True

    def live_peak(self) -> int:
        """Return the bytes of the largest set of blocks alive at once: no plan can be smaller."""
        if self._peak is not None:
            return self._peak
        changes = [0] * self._step  # each step is one acquire or one release
        for block in self._blocks.values():
            changes[block.birth] += block.size
            if block.death is not None:
                changes[block.death] -= block.size
        return max(accumulate(changes), default=0)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._step = self.size = self._live = self._peak = 0


def _fits(planned: Sequence[int], wanted: Sequence[int]) -> bool:
    """Tell whether blocks fit into the places of others, and do not leave too much of them free."""
    return all(map(le, wanted, planned)) and sum(wanted) >= FULL * sum(planned)
