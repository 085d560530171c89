"""Uploads and downloads at load time: blocking, in pieces, through one staging buffer per direction."""

from __future__ import annotations

import threading
from typing import Any

from weft.backends.gpu.device.device import GpuBuffer, MemoryKind
from weft.backends.vulkan._vk import NULL, Arena, check, ffi, lib, vk
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.memory import Memory
from weft.core.contract.error_context import is_error
from weft.core.graph.layout import Array
from weft.core.host.parallel_copy import copy_into
from weft.errors import BackendError

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
        self._arena = Arena()
        self._pool = context.command_pool(vk.VK_COMMAND_POOL_CREATE_TRANSIENT_BIT)
        self._commands = context.command_buffer(self._pool)
        self._running = False
        self._fence = context.fence()
        self._fences = self._arena.array("VkFence", [self._fence])
        self._begin = self._arena.new(
            "VkCommandBufferBeginInfo", flags=vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT
        )
        self._info = self._arena.new("VkSubmitInfo", commandBufferCount=1, pCommandBuffers=[self._commands])

    def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
        """Copy the bytes of a contiguous array into a DEVICE buffer."""
        content = _bytes_of(data)
        _check(buffer, offset, content.size)
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
            raise BackendError("a download needs a writable array")
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
        self._wait()  # for the previous copy, if Ctrl-C interrupted it
        wanted = min(LARGEST, max(SMALLEST, 1 << (nbytes - 1).bit_length()))
        held = self._staging.get(kind)
        if held is None or held.nbytes < wanted:
            if held is not None:
                self._memory.free(self._staging.pop(kind))
            held = self._staging[kind] = self._memory.allocate(wanted, kind, counted=False)
        step = held.nbytes
        return [(start, min(step, nbytes - start), held) for start in range(0, nbytes, step)]

    def _copy(self, source: GpuBuffer, at: int, target: GpuBuffer, to: int, nbytes: int) -> None:
        context = self._context
        check(lib.vkResetCommandPool(context.device, self._pool, 0), _FAILED)
        check(lib.vkBeginCommandBuffer(self._commands, self._begin), _FAILED)
        region = ffi.new("VkBufferCopy*", (at, to, nbytes))
        lib.vkCmdCopyBuffer(self._commands, source.handle.buffer, target.handle.buffer, 1, region)
        context.last_barrier(self._commands)
        check(lib.vkEndCommandBuffer(self._commands), _FAILED)
        try:
            context.submit(self._info, self._fence, self._fences)
            self._running = True
        except BaseException as e:
            if not is_error(e):  # such as Ctrl-C, which leaves unknown whether it runs
                context.idle()
                self._running = False
            raise
        self._wait()

    def _wait(self) -> None:
        if self._running:
            self._context.wait(self._fence, self._fences)
            self._running = False

    def destroy(self) -> None:
        """Free the staging buffers and the command buffer."""
        for buffer in self._staging.values():
            self._memory.free(buffer)
        self._staging.clear()
        lib.vkDestroyFence(self._context.device, self._fence, NULL)
        lib.vkDestroyCommandPool(self._context.device, self._pool, NULL)


def _bytes_of(data: Array) -> Any:
    if not data.flags.c_contiguous:
        raise BackendError("a copy to or from the device needs a contiguous array")
    return data.reshape(-1).view("uint8")


def _check(buffer: GpuBuffer, offset: int, nbytes: int) -> None:
    if buffer.kind is not MemoryKind.DEVICE:
        raise BackendError(
            f"a buffer of kind {buffer.kind.value} is not copied to or from this way",
            fix="read or write its `host` array",
        )
    if offset < 0 or offset + nbytes > buffer.nbytes:
        raise BackendError(
            "a copy reaches outside its buffer",
            why=f"bytes {offset} to {offset + nbytes} of a buffer of {buffer.nbytes}",
        )
