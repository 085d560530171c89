"""What each launch of a run stores, for a watch that looks for overflow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from weft.backends.gpu.device.device import (
    BarrierCommand,
    Binding,
    Command,
    CopyCommand,
    GpuBuffer,
    MemoryKind,
)
from weft.backends.gpu.memory.heap import DeviceHeap
from weft.backends.gpu.recording.launches import BoundLaunch, access
from weft.backends.gpu.recording.schedule import run_commands
from weft.backends.gpu.recording.submissions import Submissions
from weft.core.contract.backend import StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array
from weft.core.graph.tensor import Tensor
from weft.errors import OutOfMemory

BATCH = 64 << 20
"""Most bytes that launches of one submission store: they come to the host together."""
ZEROS = 4 << 20
"""Bytes of zeros that are copied at a time."""
APART = 256
"""What one tensor stores begins at a multiple of so many bytes."""


def stored_by(
    launches: Sequence[BoundLaunch], filled: set[int], heap: DeviceHeap, submissions: Submissions
) -> Iterator[list[Tensor]]:
    """Run launches in order, and yield for each host tensors with all numbers in the memory of floats that it wrote.

    They are valid until the next one is asked for. Memory that a launch is the first to write is zero before, but that
    of the slots in `filled`, by `id`. Small launches share a submission, as far as there is memory for what they store.
    """
    batch = _Batch(heap, min(sum(map(_stored_bytes, launches)), BATCH))
    try:
        for launch in launches:
            read, written = launch.accessed
            filled |= {id(tensor.memory.slot) for tensor in read}
            new = {id(slot): slot for t in written if (slot := t.memory.slot).storage is not StorageType.STATE}
            first = [Binding(s.buffer, s.offset, s.nbytes) for key, s in new.items() if key not in filled]
            filled |= new.keys()
            parts = submissions.in_parts([launch], heap.device)
            us, is_alone = sum(part.us for part in parts), len(parts) > 1 or not batch.holds(launch)
            if is_alone or not batch.has_room(launch, us, submissions.most):
                yield from batch.run()
            batch.clear(first)
            if not is_alone:
                batch.add(launch, us)
                continue
            for part in parts:
                batch.commands.append(access(part.launch).command)
                yield from batch.run()
            yield [_fetched(heap, tensor) for tensor in _floats(launch)]
        yield from batch.run()
    finally:
        batch.close()


class _Batch:
    """Launches that are submitted together, one after the other, and host memory for what they store."""

    def __init__(self, heap: DeviceHeap, room: int) -> None:
        self.commands: list[Command] = []
        self._heap, self._used, self._us = heap, 0, 0.0
        self._stored: list[list[tuple[Tensor, int]]] = []
        """Of each launch the tensors that it wrote, and where they lie in the host memory."""
        self._zeros: GpuBuffer | None = None
        self._host: GpuBuffer | None = None
        with suppress(OutOfMemory):  # then launches run one by one
            self._host = heap.allocate(room, MemoryKind.DOWNLOAD) if room else None

    def holds(self, launch: BoundLaunch) -> bool:
        """Tell whether there is memory for what a launch stores, if it is the only one."""
        return _stored_bytes(launch) <= (0 if self._host is None else self._host.nbytes)

    def has_room(self, launch: BoundLaunch, us: float, most: float) -> bool:
        """Tell whether there is so beside the others, and all take at most so many microseconds."""
        room = 0 if self._host is None else self._host.nbytes
        return self._used + _stored_bytes(launch) <= room and self._us + us <= most

    def clear(self, pieces: Iterable[Binding]) -> None:
        """Fill memory with zeros."""
        before = len(self.commands)
        for piece in pieces:
            if self._zeros is None:
                self._zeros = self._heap.allocate(ZEROS, MemoryKind.UPLOAD)
                assert self._zeros.host is not None
                self._zeros.host[:] = 0
            for start in range(0, piece.nbytes, ZEROS):
                count = min(ZEROS, piece.nbytes - start)
                target = Binding(piece.buffer, piece.offset + start, count)
                self.commands.append(CopyCommand(Binding(self._zeros, 0, count), target, "zeros"))
        if len(self.commands) > before:
            self.commands.append(BarrierCommand())

    def add(self, launch: BoundLaunch, us: float) -> None:
        """Add a launch that has room, and what it stores."""
        self.commands += [access(launch).command, BarrierCommand()]
        self._us += us
        stored = []
        for tensor in _floats(launch):
            assert self._host is not None
            source = tensor.memory.binding()
            target = Binding(self._host, self._used, source.nbytes)
            self.commands.append(CopyCommand(source, target, f"look at {tensor.name}"))
            stored.append((tensor, self._used))
            self._used += -(-source.nbytes // APART) * APART
        self.commands += [BarrierCommand()] if stored else []
        self._stored.append(stored)

    def run(self) -> Iterator[list[Tensor]]:
        """Run what was added, and yield what each launch stored."""
        if self.commands:
            run_commands(self._heap.device, self.commands)
        for stored in self._stored:
            yield [_on_host(tensor, self._bytes(tensor, at)) for tensor, at in stored]
        self.commands, self._stored, self._used, self._us = [], [], 0, 0.0

    def _bytes(self, tensor: Tensor, at: int) -> Array:
        assert self._host is not None
        assert self._host.host is not None
        return self._host.host[at : at + tensor.memory.binding().nbytes]

    def close(self) -> None:
        """Free the memory."""
        for buffer in (self._zeros, self._host):
            if buffer is not None:
                self._heap.free(buffer)


def _floats(launch: BoundLaunch) -> list[Tensor]:
    return [t for t in launch.accessed[1] if t.dtype in (DType.FLOAT16, DType.FLOAT32)]


def _stored_bytes(launch: BoundLaunch) -> int:
    return sum(-(-tensor.memory.binding().nbytes // APART) * APART for tensor in _floats(launch))


def _fetched(heap: DeviceHeap, tensor: Tensor) -> Tensor:
    """Return the numbers that lie in the memory of a tensor."""
    piece = tensor.memory.binding()
    found = np.empty(piece.nbytes, np.uint8)
    if piece.buffer.host is None:
        heap.device.download(piece.buffer, piece.offset, found)
    else:
        found[:] = piece.buffer.host[piece.offset :][: piece.nbytes]
    return _on_host(tensor, found)


def _on_host(tensor: Tensor, numbers: Array) -> Tensor:
    whole = numbers[: len(numbers) // tensor.dtype.itemsize * tensor.dtype.itemsize].view(tensor.dtype.numpy)
    return Tensor(tensor.name, whole.shape, tensor.dtype, memory=whole)
