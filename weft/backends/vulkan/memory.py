"""Buffers, each with its own memory, and the errors when memory runs out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.device import GpuBuffer, MemoryKind
from weft.backends.gpu.device.profiles import DeviceProfile
from weft.backends.vulkan._vk import NULL, WHOLE_SIZE, Arena, check, failure, ffi, lib, vk, words
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.memory_types import COHERENT, VISIBLE, MemoryType, MemoryTypes
from weft.core.graph.layout import Array
from weft.core.host.parallel_copy import copy_into
from weft.errors import LESS_MEMORY, BackendError, DeviceError, OutOfMemory

log = logging.getLogger("weft.vulkan")
_USED_BY_ADDRESS, _HAS_ADDRESSES = 0x20000, 0x2
"""Flags of a buffer's usage and of an allocation, for which the vulkan package has no values."""
_OUT_OF_MEMORY = (-1, -2)
_MIB = 1 << 20


@dataclass(frozen=True)
class Block:
    """A VkBuffer with its own VkDeviceMemory."""

    buffer: Any
    memory: Any
    coherent: bool
    visible: bool
    mapped: Any = None
    """The device's real memory, if a profile pretends that it is not coherent; the host then has a copy."""
    address: int = 0
    """Where the device has it, for kernels by PTX; 0 if it has none."""
    window: Any = None
    """The bytes of a DEVICE buffer, if its memory is such that the host may write them in place."""


class Memory:
    """Allocates and frees the buffers of a device, one allocation each: they are few and large."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._profile = DeviceProfile()
        self._lock = threading.Lock()
        self._live: dict[GpuBuffer, bool] = {}
        properties = context.physical.memory
        heaps = [int(properties.memoryHeaps[i].size) for i in range(properties.memoryHeapCount)]
        types = [properties.memoryTypes[i] for i in range(properties.memoryTypeCount)]
        self._types = MemoryTypes.of([(int(t.propertyFlags), int(t.heapIndex)) for t in types], heaps)
        self._largest_allocation = context.physical.caps().max_allocation
        self.max_count = int(context.physical.limits.maxMemoryAllocationCount)
        has_addresses = context.physical.imports_ptx
        self._addressed = _USED_BY_ADDRESS if has_addresses else 0
        """What a buffer's usage says if kernels take its address."""

    def allocate(self, nbytes: int, kind: MemoryKind, *, counted: bool = True) -> GpuBuffer:
        """Return a buffer of at least `nbytes`; staging buffers are not `counted` in the device's stats."""
        if nbytes < 0:
            what, why = "a buffer cannot have a negative size", f"{nbytes} bytes were asked for"
            raise BackendError(what, why=why, fix="ask for 0 or more")
        size = max(4, -(-nbytes // 4) * 4)
        with self._lock:
            self._check(size, kind)
            block = self._create(size, kind)
            host = None
            if kind is MemoryKind.DEVICE:
                block = self._with_window(block, size)
            else:
                try:
                    host = self._map(block, size)[:nbytes]
                    if not block.coherent and not self._profile.coherent:
                        block = replace(block, mapped=host)
                        host = host.copy()
                except BaseException:
                    self._destroy(block)
                    raise
            buffer = GpuBuffer(nbytes, kind, block, host)
            self._live[buffer] = counted
        if counted:
            self._context.count(allocations=1, live_buffers=1, live_bytes=nbytes)
        return buffer

    def adopt(self, host: Array) -> GpuBuffer | None:
        """Return a DOWNLOAD buffer over whole pages of the process's memory; None where that is impossible or slow.

        The host must read there as fast as elsewhere, and see what the device wrote without being told.
        """
        page = self._context.physical.page
        if not page or (host.nbytes | host.ctypes.data) % page or not fork_guard.keeps_pages():
            return None
        with self._lock:
            if len(self._live) >= self.max_count or host.nbytes > self._largest_allocation:
                return None
            block = self._imported(host)
            if block is None:
                return None
            buffer = GpuBuffer(host.nbytes, MemoryKind.DOWNLOAD, block, host, adopted=True)
            self._live[buffer] = True
        self._context.count(allocations=1, live_buffers=1, live_bytes=host.nbytes)
        return buffer

    def _imported(self, host: Array) -> Block | None:
        """Return a buffer bound to memory of the process, or None where the driver refuses any step."""
        device, arena, kind = self._context.device, Arena(), vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
        pointer = ffi.cast("void*", host.ctypes.data)
        usage = vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT | self._addressed
        shared = arena.new("VkExternalMemoryBufferCreateInfo", handleTypes=kind)
        info = arena.new("VkBufferCreateInfo", pNext=shared, size=host.nbytes, usage=usage)
        buffer, memory = ffi.new("VkBuffer*"), ffi.new("VkDeviceMemory*")
        if lib.vkCreateBuffer(device, info, NULL, buffer) != 0:
            return None
        needs = ffi.new("VkMemoryRequirements*")
        lib.vkGetBufferMemoryRequirements(device, buffer[0], needs)
        index = self._importing(pointer, kind, int(needs.memoryTypeBits))
        flags = self._flags(arena)
        pinned = arena.new("VkImportMemoryHostPointerInfoEXT", pNext=flags, handleType=kind, pHostPointer=pointer)
        info = arena.new(
            "VkMemoryAllocateInfo", pNext=pinned, allocationSize=host.nbytes, memoryTypeIndex=max(index, 0)
        )
        if index < 0 or needs.size > host.nbytes or lib.vkAllocateMemory(device, info, NULL, memory) != 0:
            lib.vkDestroyBuffer(device, buffer[0], NULL)
            return None
        block = Block(buffer[0], memory[0], coherent=True, visible=True)
        if lib.vkBindBufferMemory(device, buffer[0], memory[0], 0) != 0:
            self._destroy(block)
            return None
        return self._with_address(block)

    def _importing(self, pointer: Any, kind: int, bits: int) -> int:
        """Return the driver's index of a coherent, cached memory type that takes the process's memory; -1 for none."""
        device, name = self._context.device, ffi.new("char[]", b"vkGetMemoryHostPointerPropertiesEXT")
        ask = ffi.cast("PFN_vkGetMemoryHostPointerPropertiesEXT", lib.vkGetDeviceProcAddr(device, name))
        found = Arena().new("VkMemoryHostPointerPropertiesEXT")
        if ask(device, kind, pointer, found) != 0:
            return -1
        taken = self._types.importing(bits & int(found.memoryTypeBits))
        return -1 if taken is None else taken.index

    def pretend(self, profile: DeviceProfile, largest: int) -> None:
        """Apply a profile's limits to the memory types, and limit one allocation to `largest` bytes."""
        self._profile, self._largest_allocation, self._types = profile, largest, self._types.limited(profile)

    def flush(self, buffers: Sequence[GpuBuffer]) -> None:
        """Make the host's writes to non-coherent memory visible to the device."""
        for buffer in buffers:
            if buffer.handle.mapped is not None and buffer.host is not None:
                copy_into(buffer.handle.mapped, buffer.host)
        _arena, ranges = _ranges(buffers)
        result = lib.vkFlushMappedMemoryRanges(self._context.device, len(buffers), ranges)
        check(result, "what the host wrote cannot be made visible to the device", self._context.physical.name)

    def invalidate(self, buffers: Sequence[GpuBuffer]) -> None:
        """Make the device's writes to non-coherent memory visible to the host."""
        _arena, ranges = _ranges(buffers)
        result = lib.vkInvalidateMappedMemoryRanges(self._context.device, len(buffers), ranges)
        check(result, "results cannot be made visible to the host", self._context.physical.name)
        for buffer in buffers:
            if buffer.handle.mapped is not None and buffer.host is not None:
                copy_into(buffer.host, buffer.handle.mapped)

    def free(self, buffer: GpuBuffer) -> None:
        """Release a buffer."""
        with self._lock:
            counted = self._live.pop(buffer, None)
            if counted is None:
                raise BackendError(
                    "a buffer is freed that this device does not hold",
                    where=self._context.physical.name,
                    why="it was freed before, or belongs to another device",
                    fix="free each buffer once, on the device that allocated it",
                )
            self._destroy(buffer.handle)
            buffer.handle = buffer.host = None
        if counted:
            self._context.count(live_buffers=-1, live_bytes=-buffer.nbytes)

    @property
    def writes_to_device(self) -> bool:
        """Tell whether UPLOAD memory is the device's own, all of it writable by the host."""
        return self._types.writes_to_device

    @property
    def is_unified(self) -> bool:
        """Tell whether all memory that the host writes is the device's own, so that STREAM is no other than UPLOAD."""
        return self._types.is_unified

    def destroy(self) -> None:
        """Free every remaining buffer, but those in which callers still hold arrays."""
        for buffer in list(self._live):
            if not buffer.lent:
                self.free(buffer)

    @property
    def is_empty(self) -> bool:
        """Tell whether all buffers are freed."""
        return not self._live

    def _check(self, size: int, kind: MemoryKind) -> None:
        """Refuse a size that no heap can hold, before the driver gets a request beyond its limits."""
        if size > self._largest_allocation:
            raise self._refusal(size, kind, f"one allocation has at most {_size(self._largest_allocation)}")
        if not self._types.candidates(kind) or size > self._types.heaps[self._types.largest_heap(kind)]:
            raise self._refusal(size, kind, "no heap of the device is that large")
        if len(self._live) >= self.max_count:
            raise OutOfMemory(
                "the driver allows no further allocation",
                where=self._context.physical.name,
                why=f"{len(self._live)} buffers are live and maxMemoryAllocationCount is {self.max_count}",
                fix="close sessions that are not used any more",
            )

    def _create(self, size: int, kind: MemoryKind) -> Block:
        device = self._context.device
        usage = (
            vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
            | self._addressed
        )
        info = Arena().new("VkBufferCreateInfo", size=size, usage=usage)
        out = ffi.new("VkBuffer*")
        result = lib.vkCreateBuffer(device, info, NULL, out)
        if result in _OUT_OF_MEMORY:
            raise self._refusal(size, kind, words(result))
        check(result, "a buffer cannot be made", self._context.physical.name)
        try:
            memory, taken = self._memory(out[0], size, kind)
        except BaseException:
            lib.vkDestroyBuffer(device, out[0], NULL)
            raise
        block = Block(out[0], memory, bool(taken.flags & COHERENT), bool(taken.flags & VISIBLE))
        result = lib.vkBindBufferMemory(device, out[0], memory, 0)
        if result != 0:
            self._destroy(block)
            raise failure(result, "memory cannot be bound to a buffer", self._context.physical.name)
        return self._with_address(block)

    def _memory(self, buffer: Any, size: int, kind: MemoryKind) -> tuple[Any, MemoryType]:
        """Return memory for a buffer and its type; if a heap is full, the next choice is tried."""
        needs = ffi.new("VkMemoryRequirements*")
        lib.vkGetBufferMemoryRequirements(self._context.device, buffer, needs)
        out = ffi.new("VkDeviceMemory*")
        result = vk.VK_ERROR_OUT_OF_DEVICE_MEMORY
        for each in self._types.candidates(kind, int(needs.memoryTypeBits)):
            if needs.size > self._types.heaps[each.heap]:
                continue
            arena = Arena()
            sizes = {"allocationSize": needs.size, "memoryTypeIndex": each.index}
            info = arena.new("VkMemoryAllocateInfo", pNext=self._flags(arena), **sizes)
            result = lib.vkAllocateMemory(self._context.device, info, NULL, out)
            if result == 0:
                return out[0], each
        if result in _OUT_OF_MEMORY:
            raise self._refusal(size, kind, words(result))
        raise failure(result, "device memory cannot be allocated", self._context.physical.name)

    def _flags(self, arena: Arena) -> Any:
        """Return what an allocation says if kernels take addresses in it, else NULL."""
        if not self._addressed:
            return NULL
        return arena.new("VkMemoryAllocateFlagsInfo", flags=_HAS_ADDRESSES)

    def _with_address(self, block: Block) -> Block:
        """Return the block with its address, if kernels take addresses."""
        if not self._addressed:
            return block
        info = Arena().new("VkBufferDeviceAddressInfo", buffer=block.buffer)
        return replace(block, address=int(self._address_of(self._context.device, info)))

    @cached_property
    def _address_of(self) -> Any:
        name = ffi.new("char[]", b"vkGetBufferDeviceAddress")
        return ffi.cast("PFN_vkGetBufferDeviceAddress", lib.vkGetDeviceProcAddr(self._context.device, name))

    def _with_window(self, block: Block, size: int) -> Block:
        """Return the block of a DEVICE buffer, with a window if its memory is such that the host may write it.

        A process may lack the addresses for all of a device's memory. Uploads then go through a staging buffer.
        """
        if not (block.visible and block.coherent):
            return block
        try:
            return replace(block, window=self._map(block, size))
        except DeviceError as e:
            log.debug("constants are uploaded through a staging buffer: %s", e)
            return block

    def _map(self, block: Block, size: int) -> Any:
        out = ffi.new("void**")
        result = lib.vkMapMemory(self._context.device, block.memory, 0, WHOLE_SIZE, 0, out)
        check(result, "memory cannot be mapped for the host", self._context.physical.name)
        return np.frombuffer(ffi.buffer(out[0], size), np.uint8)

    def _destroy(self, block: Block) -> None:
        lib.vkDestroyBuffer(self._context.device, block.buffer, NULL)
        lib.vkFreeMemory(self._context.device, block.memory, NULL)

    def _refusal(self, size: int, kind: MemoryKind, reason: str) -> OutOfMemory:
        physical = self._context.physical
        heap = self._types.largest_heap(kind)
        free = physical.available(heap)
        held = sum(b.nbytes for b in self._live)
        largest = f"its largest heap for it has {_size(self._types.heaps[heap])}"
        largest += f", {_size(free)} of it free" if free is not None else ""
        return OutOfMemory(
            f"{physical.name} has no room for a {kind.value} buffer of {_size(size)}",
            where=f"Vulkan device {physical.name}",
            why=f"{reason}; {largest}; this device holds {_size(held)} in {len(self._live)} buffers",
            fix=f"{LESS_MEMORY}, or close other sessions and programs",
        )


def _ranges(buffers: Sequence[GpuBuffer]) -> tuple[Arena, Any]:
    """Return the memory ranges of buffers for the driver, preceded by the arena that keeps them alive."""
    arena = Arena()
    ranges = [arena.new("VkMappedMemoryRange", memory=b.handle.memory, size=WHOLE_SIZE) for b in buffers]
    return arena, arena.array("VkMappedMemoryRange", ranges)


def _size(nbytes: int) -> str:
    return f"{nbytes / _MIB:.1f} MiB" if nbytes >= _MIB else f"{nbytes} bytes"
