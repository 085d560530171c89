"""Uploads and downloads at load time: blocking, in pieces, through one staging buffer per direction."""

from __future__ import annotations

import threading
from typing import Any

from weft.backends.gpu.device.device import GpuBuffer, MemoryKind
from weft.backends.vulkan._vk import ffi, lib
from weft.backends.vulkan.commands_now import CommandsNow
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.memory import Memory
from weft.core.graph.layout import Array
from weft.core.host.parallel_copy import copy_into
from weft.errors import BackendError, DeviceError

SMALLEST = 1 << 20
LARGEST = 32 << 20
"""A staging buffer grows up to this many bytes; larger data is copied in pieces."""
_FAILED = "data cannot be copied to or from the device"


class Transfer:
    """Copies between numpy and DEVICE buffers, one copy at a time."""

    def __init__(self, context: Context, memory: Memory) -> None:
        self._context = context
        self._memory = memory
        self._lock = threading.Lock()
        self._staging: dict[MemoryKind, GpuBuffer] = {}
        self._now = CommandsNow(context, _FAILED)

    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Copy the bytes of a contiguous array into a DEVICE buffer.

        Where the host shares the device's memory it writes them in place, at once: whoever uploads sees to it that no
        earlier work still reads what was there.
        """
        content = _bytes_of(data)
        _check(buffer, offset, content.size)
        if buffer.handle.window is not None:
            copy_into(buffer.handle.window[offset : offset + content.size], content)
            return
        with self._lock:
            for start, count, staging in self._pieces(content.size, MemoryKind.UPLOAD):
                assert staging.host is not None
                copy_into(staging.host[:count], content[start : start + count])
                if not staging.handle.coherent:
                    self._memory.flush([staging])
                self._copy(staging, 0, buffer, offset + start, count)

    def download(self, buffer: GpuBuffer, offset: int, out: Array) -> None:
        """Copy bytes of a DEVICE buffer into a contiguous array, after all earlier work."""
        content = _bytes_of(out)
        if not content.flags.writeable:
            raise BackendError("a download needs a writable array", fix="copy it by numpy first")
        _check(buffer, offset, content.size)
        with self._lock:
            for start, count, staging in self._pieces(content.size, MemoryKind.DOWNLOAD):
                assert staging.host is not None
                self._copy(buffer, offset + start, staging, 0, count)
                if not staging.handle.coherent:
                    self._memory.invalidate([staging])
                copy_into(content[start : start + count], staging.host[:count])

    def _pieces(self, nbytes: int, kind: MemoryKind) -> list[tuple[int, int, GpuBuffer]]:
        """Return (start, size, staging buffer) of the pieces of a copy; grows the staging buffer."""
        if nbytes == 0:
            return []
        self._now.wait()  # for the previous copy, if Ctrl-C interrupted it
        wanted = min(LARGEST, max(SMALLEST, 1 << (nbytes - 1).bit_length()))
        held = self._staging.get(kind)
        if held is None or held.nbytes < wanted:
            if held is not None:
                self._memory.free(self._staging.pop(kind))
            held = self._staging[kind] = self._memory.allocate(wanted, kind, counted=False)
        step = held.nbytes
        return [(start, min(step, nbytes - start), held) for start in range(0, nbytes, step)]

    def _copy(self, source: GpuBuffer, at: int, target: GpuBuffer, to: int, nbytes: int) -> None:
        region = ffi.new("VkBufferCopy*", (at, to, nbytes))

        def record(commands: Any) -> None:
            lib.vkCmdCopyBuffer(commands, source.handle.buffer, target.handle.buffer, 1, region)
            self._context.last_barrier(commands)

        self._now.run(record)

    def destroy(self) -> None:
        """Free the staging buffers and the command buffer."""
        for buffer in self._staging.values():
            self._memory.free(buffer)
        self._staging.clear()
        self._now.destroy()


def _bytes_of(data: Array) -> Any:
    if not data.flags.c_contiguous:
        raise BackendError("a copy to or from the device needs a contiguous array", fix="copy it by numpy first")
    return data.reshape(-1).view("uint8")


def _check(buffer: GpuBuffer, offset: int, nbytes: int) -> None:
    if buffer.handle is None:
        raise DeviceError("a buffer is used that was freed", fix="free it after its last use")
    if buffer.kind is not MemoryKind.DEVICE:
        raise BackendError(
            f"a buffer of kind {buffer.kind.value} is not copied to or from this way",
            fix="read or write its `host` array",
        )
    if offset < 0 or offset + nbytes > buffer.nbytes:
        raise BackendError(
            "a copy reaches outside its buffer",
            why=f"bytes {offset} to {offset + nbytes} of a buffer of {buffer.nbytes}",
            fix="copy to and from bytes inside it",
        )
