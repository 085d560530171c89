"""STATIC memory of a device, which its sessions share: pieces of a few large buffers."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

from weft.backends.gpu.device.device import GpuBuffer
from weft.backends.gpu.memory.heap import DeviceHeap
from weft.errors import OutOfMemory

CHUNK = 16 << 20


@dataclass(eq=False)
class _Chunk:
    buffer: GpuBuffer
    free: list[tuple[int, int]]
    """(offset, size) of the gaps, by offset."""


@dataclass
class StaticPool:
    """Sub-allocates constants from few large buffers, first fit: drivers allow few allocations."""

    heap: DeviceHeap
    _chunks: list[_Chunk] = field(default_factory=list)
    _sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, nbytes: int) -> tuple[GpuBuffer, int]:
        """Return a buffer and an aligned offset in it with room for `nbytes`."""
        a = self.heap.device.caps.offset_alignment
        size = -(-nbytes // a) * a
        with self._lock:
            for chunk in self._chunks:
                for k, (offset, room) in enumerate(chunk.free):
                    if room >= size:
                        chunk.free[k : k + 1] = [(offset + size, room - size)] if room > size else []
                        return self._note(chunk, offset, size)
            buffer = self._buffer(size)
            chunk = _Chunk(buffer, [(size, buffer.nbytes - size)] if buffer.nbytes > size else [])
            self._chunks.append(chunk)
            return self._note(chunk, 0, size)

    def _buffer(self, size: int) -> GpuBuffer:
        """Return a buffer for this piece and later ones, or only for this piece if memory is short."""
        wished = min(CHUNK, self.heap.device.caps.max_allocation)
        if size < CHUNK // 2 and size < wished:
            with suppress(OutOfMemory):
                return self.heap.allocate(wished)
        return self.heap.allocate(size)

    def _note(self, chunk: _Chunk, offset: int, size: int) -> tuple[GpuBuffer, int]:
        self._sizes[id(chunk.buffer), offset] = size
        return chunk.buffer, offset

    def give(self, buffer: GpuBuffer, offset: int) -> None:
        """Take a piece back; a chunk without pieces is freed."""
        with self._lock:
            chunk = next(c for c in self._chunks if c.buffer is buffer)
            size = self._sizes.pop((id(buffer), offset))
            gaps = sorted([*chunk.free, (offset, size)])
            merged = [gaps[0]]
            for start, room in gaps[1:]:
                last, last_room = merged[-1]
                if last + last_room == start:
                    merged[-1] = (last, last_room + room)
                else:
                    merged.append((start, room))
            chunk.free = merged
            if merged == [(0, buffer.nbytes)]:
                self._chunks.remove(chunk)
                self.heap.free(buffer)
