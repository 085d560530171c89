"""What the sessions on one device share: the open device, the pool of STATIC memory, verdicts and tuned choices."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from weft.backends.gpu.device.built_kernels import KERNELS_KEPT
from weft.backends.gpu.device.device import GpuBuffer, GpuDevice
from weft.backends.gpu.device.varying import Varying
from weft.backends.gpu.memory.heap import DeviceHeap
from weft.backends.gpu.tuning_tables.tuning_table import TuningTable
from weft.core.contract.backend import SameNodes
from weft.core.contract.backend_options import NO_OPTIONS, Options
from weft.errors import OutOfMemory
from weft.kernels.verdict import Verdict

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


@dataclass
class GpuRuntime:
    """An open device, and what its sessions share."""

    device: GpuDevice
    options: Options = NO_OPTIONS
    """The options that the device was opened with."""
    heap: DeviceHeap = field(init=False)
    static: StaticPool = field(init=False)
    notes: list[str] = field(default_factory=list)
    """Notes for every report on the device."""
    users: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """The users that keep the device open: open backends, and leases of backends being made."""
    closed: bool = False
    selftest_seconds: float = 0.0
    """Seconds of the self-test, or of reading its verdicts."""
    kernel_notes: list[str] = field(default_factory=list)
    """The `notes` on kernels that are wrong or could not be tested."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """The verdicts of the self-test, by the name of the kind or family."""
    verified: bool = False
    """Whether the verdicts are known; see `weft.backends.gpu.selftest.verdict_store.verify`."""
    verifying: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        pretended = self.device.profile.memory if self.device.profile is not None else 0
        self.heap = DeviceHeap(self.device, int(self.options.get("memory_limit", 0)), pretended)
        self.static = StaticPool(self.heap)
        self.device.hold_kernels(int(self.options.get("kernels_kept", KERNELS_KEPT)))
        if self.device.profile is not None:
            self.notes.append(f"the device pretends to be another: {self.device.profile}")

    _varying: weakref.WeakKeyDictionary[SameNodes, Varying] = field(default_factory=weakref.WeakKeyDictionary)

    def varying(self, nodes: SameNodes | None) -> Varying:
        """Return what is known of the shapes of nodes that several pipelines run; nothing yet for those of one."""
        return Varying() if nodes is None else self._varying.setdefault(nodes, Varying())

    def trust(self) -> None:
        """Use whatever the hardware claims, without a self-test."""
        self.verified = True

    @cached_property
    def tuning(self) -> TuningTable:
        """Return the tuning table of the device."""
        return TuningTable(self.device.info, proposes=bool(self.options.get("tuning", True)))

    def close(self) -> None:
        """Close the device."""
        self.closed = True
        self.device.close()
        self.heap.close()


@runtime_checkable
class OpensRuntimes(Protocol):
    """A creator that opens each device as a `GpuRuntime`, as `GpuCreator` does."""

    def runtime(self, index: int, options: Options = NO_OPTIONS) -> GpuRuntime:
        """Return the runtime of a device with these options."""
        ...
