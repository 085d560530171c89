"""Which of a device's memory types each kind of buffer gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.backends.gpu.device.device import MemoryKind
from weft.backends.gpu.device.profiles import DeviceProfile

LOCAL, VISIBLE, COHERENT, CACHED = 0x1, 0x2, 0x4, 0x8
"""VkMemoryPropertyFlagBits."""
_SPECIAL = 0x10 | 0x20 | 0x40 | 0x80
"""Memory types that are lazily allocated, protected or AMD's uncached: each needs a feature that is not enabled."""


@dataclass(frozen=True)
class _Choice:
    """Suitable memory types: all flags of `required`, none of `forbidden`; if `whole`, in a heap as large as any."""

    required: int
    forbidden: int = 0
    whole: bool = False


_UPLOAD = (
    _Choice(LOCAL | VISIBLE | COHERENT, whole=True),
    _Choice(VISIBLE | COHERENT, LOCAL),
    _Choice(VISIBLE | COHERENT),
    _Choice(VISIBLE),
)
_CHOICES = {
    MemoryKind.DEVICE: (_Choice(LOCAL, VISIBLE), _Choice(LOCAL)),
    MemoryKind.UPLOAD: _UPLOAD,
    # Host memory, through the CPU's caches: several threads write it faster than the bus takes it.
    MemoryKind.STREAM: (_Choice(VISIBLE | CACHED | COHERENT, LOCAL), _Choice(VISIBLE | COHERENT, LOCAL), *_UPLOAD),
    MemoryKind.DOWNLOAD: (_Choice(VISIBLE | CACHED | COHERENT), _Choice(VISIBLE | CACHED), _Choice(VISIBLE)),
}


@dataclass(frozen=True)
class MemoryType:
    """A memory type: its flags, and the indices of its heap and of itself in the driver's list."""

    flags: int
    heap: int
    index: int


@dataclass(frozen=True)
class MemoryTypes:
    """The memory types of a device, in the driver's order, and the bytes of its heaps.

    `largest_local` are the bytes of the largest heap of the device's own memory.
    """

    types: Sequence[MemoryType]
    heaps: Sequence[int]
    largest_local: int

    @classmethod
    def of(cls, types: Sequence[tuple[int, int]], heaps: Sequence[int]) -> MemoryTypes:
        """Return those of a device, each given by its flags and its heap."""
        local = max((heaps[heap] for flags, heap in types if flags & LOCAL), default=0)
        return cls([MemoryType(flags, heap, index) for index, (flags, heap) in enumerate(types)], heaps, local)

    def limited(self, profile: DeviceProfile) -> MemoryTypes:
        """Return what is left under a profile: without a window, memory is the device's own or the host's."""
        left = list[MemoryType]()
        for each in self.types:
            flags = each.flags & (~0 if profile.coherent else ~COHERENT)
            apart = not profile.window and flags & LOCAL and flags & VISIBLE
            parts = (flags & ~(VISIBLE | COHERENT | CACHED), flags & ~LOCAL) if apart else (flags,)
            left += [replace(each, flags=part) for part in parts]
        return replace(self, types=left)

    def candidates(self, kind: MemoryKind, offered: int = ~0) -> list[MemoryType]:
        """Return the types for a kind of buffer, the best first; bit i of `offered` is the driver's type i."""
        each = (t for choice in _CHOICES[kind] for t in self.types if self._suits(t, choice))
        return list(dict.fromkeys(t for t in each if offered >> t.index & 1))

    def importing(self, offered: int) -> MemoryType | None:
        """Return a coherent, cached type of those offered, for memory of the process; None if there is none."""
        wanted = VISIBLE | COHERENT | CACHED
        fitting = (t for t in self.types if t.flags & (wanted | _SPECIAL) == wanted)
        return next((t for t in fitting if offered >> t.index & 1), None)

    def largest_heap(self, kind: MemoryKind) -> int:
        """Return the index of the largest heap with a type for a kind of buffer; 0 if there is no such type."""
        return max({t.heap for t in self.candidates(kind)}, key=lambda heap: self.heaps[heap], default=0)

    @property
    def writes_to_device(self) -> bool:
        """Tell whether UPLOAD memory is the device's own, all of it writable by the host."""
        return any(self._suits(t, _UPLOAD[0]) for t in self.types)

    @property
    def is_unified(self) -> bool:
        """Tell whether all memory that the host writes is the device's own, so that STREAM is no other than UPLOAD."""
        best = {self.candidates(kind)[0] for kind in (MemoryKind.STREAM, MemoryKind.UPLOAD)}
        return self.writes_to_device and len(best) == 1

    def _suits(self, each: MemoryType, choice: _Choice) -> bool:
        if choice.whole and self.heaps[each.heap] < self.largest_local:
            return False
        return each.flags & choice.required == choice.required and not each.flags & (choice.forbidden | _SPECIAL)
