"""STATIC memory of a device, which its sessions share: pieces of a few large buffers, and equal constants once."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from weft.backends.gpu.device.device import GpuBuffer
from weft.backends.gpu.memory.heap import DeviceHeap
from weft.backends.gpu.memory.slots import SMALLEST
from weft.core.graph.layout import Array
from weft.core.host.shared_arrays import SHARED_FROM, Key, sample_key
from weft.errors import OutOfMemory

CHUNK = 16 << 20
COMPARED_AT_ONCE = 16 << 20
"""How many bytes of a constant are read back at once, to be compared."""
Piece = tuple[GpuBuffer, int]
"""A buffer and an offset in it."""


@dataclass(eq=False)
class _Chunk:
    buffer: GpuBuffer
    free: list[tuple[int, int]]
    """(offset, size) of the gaps, by offset."""


@dataclass(eq=False)
class _Shared:
    """A constant that several holders may use: its piece, and how many hold it."""

    key: Key | None
    """None if it is too small to be found by its bytes."""
    holders: int = 1
    piece: Piece | None = None
    """None until it is uploaded, and for good if that fails."""
    ready: threading.Event = field(default_factory=threading.Event)


@dataclass
class StaticPool:
    """Sub-allocates constants from few large buffers, first fit: drivers allow few allocations.

    A constant with the bytes of one that another session, another shape or another node uploaded takes no memory.
    """

    heap: DeviceHeap
    _chunks: list[_Chunk] = field(default_factory=list)
    _sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    _alike: dict[Key, list[_Shared]] = field(default_factory=dict)
    """The shared constants, by their size and a digest of samples."""
    _by_place: dict[tuple[int, int], _Shared] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def upload(self, content: Array) -> Piece:
        """Return a piece that holds the bytes of a contiguous array; nobody may write to it. `give` takes it back.

        The bytes of a candidate are read back from the device and compared, so that no digest of all weights is needed
        in the first session, which has none to share.
        """
        data = content.reshape(-1).view(np.uint8)
        key = sample_key(data) if content.nbytes >= SHARED_FROM else None
        held = list[_Shared]()
        made: _Shared | None = None
        try:  # Ctrl-C may come anywhere: what is noted is left again, and nobody waits for it for ever
            with self._lock:
                for each in self._alike.get(key, ()) if key is not None else ():
                    each.holders += 1
                    held.append(each)
                if not held:
                    made = _Shared(key)
                    self._list(made)
            while held:
                each = held[-1]
                each.ready.wait()
                if each.piece is not None and self._holds(each.piece, data):
                    others, held = held[:-1], [each]
                    self._leave(*others)
                    return each.piece
                self._leave(held.pop())
            if made is None:
                made = _Shared(key)
                with self._lock:
                    self._list(made)
            made.piece = piece = self._uploaded(content)
            with self._lock:
                self._by_place[_place(piece)] = made
            return piece
        except BaseException:
            self._leave(*held, *([made] if made is not None else []))
            raise
        finally:
            if made is not None:
                made.ready.set()

    def _list(self, made: _Shared) -> None:
        if made.key is not None:
            self._alike.setdefault(made.key, []).append(made)

    def _uploaded(self, content: Array) -> Piece:
        buffer, offset = self.take(max(content.nbytes, SMALLEST))
        try:
            self.heap.device.upload(buffer, offset, content)
        except BaseException:
            self._free(buffer, offset)
            raise
        return buffer, offset

    def again(self, piece: Piece) -> None:
        """Hold a piece that `upload` returned, and that somebody holds, once more; `give` takes it back."""
        with self._lock:
            self._by_place[_place(piece)].holders += 1

    def _holds(self, piece: Piece, data: Array) -> bool:
        """Tell whether a piece holds these bytes."""
        buffer, offset = piece
        found = np.empty(min(data.size, COMPARED_AT_ONCE), np.uint8)
        for start in range(0, data.size, COMPARED_AT_ONCE):
            wanted = data[start : start + COMPARED_AT_ONCE]
            self.heap.device.download(buffer, offset + start, found[: wanted.size])
            if not np.array_equal(found[: wanted.size], wanted):
                return False
        return True

    def _leave(self, *left: _Shared) -> None:
        """Hold these constants no more; the last holder of each frees it."""
        for shared in left:
            with self._lock:
                shared.holders -= 1
                if shared.holders:
                    continue
                if shared.key is not None:
                    alike = self._alike.get(shared.key, [])
                    alike[:] = [each for each in alike if each is not shared]
                    if not alike:
                        self._alike.pop(shared.key, None)
                if shared.piece is not None:
                    self._by_place.pop(_place(shared.piece), None)
            if shared.piece is not None:
                self._free(*shared.piece)

    def take(self, nbytes: int) -> Piece:
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

    def _note(self, chunk: _Chunk, offset: int, size: int) -> Piece:
        self._sizes[id(chunk.buffer), offset] = size
        return chunk.buffer, offset

    def give(self, buffer: GpuBuffer, offset: int) -> None:
        """Take a piece back; others may hold it, too. A chunk without pieces is freed."""
        with self._lock:
            shared = self._by_place.get((id(buffer), offset))
        if shared is None:
            self._free(buffer, offset)
        else:
            self._leave(shared)

    def _free(self, buffer: GpuBuffer, offset: int) -> None:
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


def _place(piece: Piece) -> tuple[int, int]:
    buffer, offset = piece
    return id(buffer), offset
