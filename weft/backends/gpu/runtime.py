"""What the sessions on one device share: the open device and the pool of STATIC memory."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from weft.backends.gpu.device.built_kernels import KERNELS_KEPT
from weft.backends.gpu.device.device import GpuBuffer, GpuDevice
from weft.backends.gpu.memory.heap import DeviceHeap
from weft.backends.gpu.selftest.verdict_store import Verdict, examine, tests_families, told
from weft.backends.gpu.tuning.tuning_table import TuningTable
from weft.core.contract.backend_options import NO_OPTIONS, Options
from weft.errors import OutOfMemory

CHUNK = 16 << 20


@dataclass(eq=False)
class _Chunk:
    buffer: GpuBuffer
    free: list[tuple[int, int]]
    """(offset, size) of the gaps, by offset."""


@dataclass
class StaticPool:
    """Sub-allocates constants from few large buffers: drivers allow few allocations. First fit."""

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
        """Return a buffer for this piece and others after it; for it alone where there is no memory for more."""
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


@dataclass
class GpuRuntime:
    """An open device with what its sessions share."""

    device: GpuDevice
    options: Options = NO_OPTIONS
    """Those that the device was opened with."""
    heap: DeviceHeap = field(init=False)
    static: StaticPool = field(init=False)
    notes: list[str] = field(default_factory=list)
    """What every report on the device says."""
    users: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """What keeps the device open: backends that were not closed, and leases of those being made."""
    closed: bool = False
    selftest_seconds: float = 0.0
    """What it took to know which kernels are right here."""
    kernel_notes: list[str] = field(default_factory=list)
    """Those of `notes` that are about kernels which are wrong, or could not be tested."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """What the tests of kernels found, by the name of the kind or family."""
    _verified: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        pretended = self.device.profile.memory if self.device.profile is not None else 0
        self.heap = DeviceHeap(self.device, int(self.options.get("memory_limit", 0)), pretended)
        self.static = StaticPool(self.heap)
        self.device.hold_kernels(int(self.options.get("kernels_kept", KERNELS_KEPT)))
        if self.device.profile is not None:
            self.notes.append(f"the device pretends to be another: {self.device.profile}")

    def verify(self) -> None:
        """Have the kernels tested, once; those that are wrong here are not used."""
        with self._lock:
            if self._verified:
                return
            begun = time.perf_counter()
            for kind, verdict in examine(self, families=tests_families(self)):
                self.verdicts[kind.name] = verdict
                if verdict.why is not None:
                    self.kernel_notes.append(told(kind, verdict))
            self.notes += self.kernel_notes
            self.selftest_seconds = time.perf_counter() - begun
            self._verified = True

    def trust(self) -> None:
        """Use whatever the hardware claims: the process is there to test it."""
        self._verified = True

    @cached_property
    def tuning(self) -> TuningTable:
        """Return the choices that were tuned for the device."""
        return TuningTable(self.device.info, proposes=bool(self.options.get("tuning", True)))

    def close(self) -> None:
        """Close the device."""
        self.closed = True
        self.device.close()
