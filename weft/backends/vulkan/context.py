"""The logical device: its queue, its locks, and how to submit work and wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from time import perf_counter
from typing import Any

from weft.backends.gpu.device.device import DeviceStats
from weft.backends.vulkan import workgroup_matrices
from weft.backends.vulkan._vk import NULL, Arena, check, create, failure, ffi, lib, vk
from weft.backends.vulkan.physical import (
    ADDRESSES,
    EXTERNAL_HOST,
    FLOAT_CONTROLS,
    MATRIX_EXTENSIONS,
    MATRIX_FEATURES,
    PTX_EXTENSION,
    Physical,
)
from weft.errors import ClosedError, NoDevice
from weft.kernels.matrix_shapes import HALVES

SPIN_SECONDS = 0.002
"""How long before and after the expected end `wait` polls: a sleeping wait wakes up 30 us late, and later on some
hosts."""
_MOMENT = 0.1
"""Most seconds for which Ctrl-C waits for a call that waits."""
_ONE_SECOND = 1_000_000_000
_NOT_READY = 1
_TIMEOUT = 2


class Context:
    """An open logical device with one queue; the backend's other objects belong to it."""

    def __init__(self, physical: Physical) -> None:
        self.physical = physical
        self.stats = DeviceStats()
        self.stats_lock = threading.Lock()
        self._users_lock = threading.Lock()
        self._users = 0
        self._end: Callable[[], None] | None = None
        """What closes the device, once it is to be closed."""
        family = physical.family
        if family is None:
            raise NoDevice(f"{physical.name} has no queue that computes", fix="choose another device")
        self.family = family.index
        self.timestamps = family.timestamp_bits > 0
        self.device = self._open()
        queue = ffi.new("VkQueue*")
        lib.vkGetDeviceQueue(self.device, self.family, 0, queue)
        self.queue = queue[0]
        self._queue_lock = threading.Lock()
        self._arena = Arena()
        self._barriers()

    def _open(self) -> Any:
        arena, physical = Arena(), self.physical
        features = arena.new("VkPhysicalDeviceFeatures2")
        features.features.shaderFloat64 = physical.doubles()
        wanted = ("VK_KHR_portability_subset", "VK_KHR_8bit_storage", FLOAT_CONTROLS, EXTERNAL_HOST)
        extensions = [e for e in wanted if e in physical.extensions]
        supported = physical.features()
        storage = {
            "VkPhysicalDevice16BitStorageFeatures": "storageBuffer16BitAccess",
            "VkPhysicalDevice8BitStorageFeatures": "storageBuffer8BitAccess",
        }
        if HALVES in physical.matrices:  # no kernel multiplies matrices of other shapes
            extensions += sorted(MATRIX_EXTENSIONS)
            storage |= MATRIX_FEATURES
        if physical.imports_ptx:
            extensions.append(PTX_EXTENSION)
            storage[ADDRESSES] = "bufferDeviceAddress"
        if any(shape.scope == "workgroup" for shape in physical.matrices):
            extensions.append(workgroup_matrices.EXTENSION)
            storage["VkPhysicalDeviceMaintenance4Features"] = "maintenance4"
            features.pNext = workgroup_matrices.enable(arena, features.pNext)
        for name, feature in storage.items():
            if name in supported and getattr(supported[name], feature):
                features.pNext = arena.new(name, pNext=features.pNext, **{feature: 1})
        queue = arena.new(
            "VkDeviceQueueCreateInfo", queueFamilyIndex=self.family, queueCount=1, pQueuePriorities=[1.0]
        )
        info = arena.new(
            "VkDeviceCreateInfo",
            pNext=features,
            queueCreateInfoCount=1,
            pQueueCreateInfos=queue,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=extensions,
        )
        what = f"the Vulkan device {physical.name} cannot be opened"
        return create(lib.vkCreateDevice, physical.handle, info, "VkDevice", what)

    def _barriers(self) -> None:
        """Prepare the two pipeline barriers: between commands, and at the end of every command buffer."""
        writes = vk.VK_ACCESS_SHADER_WRITE_BIT | vk.VK_ACCESS_TRANSFER_WRITE_BIT
        both = writes | vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_TRANSFER_READ_BIT
        self._compute = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
        self._stages = self._compute | vk.VK_PIPELINE_STAGE_TRANSFER_BIT
        shader = vk.VK_ACCESS_SHADER_WRITE_BIT
        self._between_launches = self._arena.new(
            "VkMemoryBarrier", srcAccessMask=shader, dstAccessMask=shader | vk.VK_ACCESS_SHADER_READ_BIT
        )
        self._between = self._arena.new("VkMemoryBarrier", srcAccessMask=writes, dstAccessMask=both)
        self._last = self._arena.new(
            "VkMemoryBarrier", srcAccessMask=writes, dstAccessMask=both | vk.VK_ACCESS_HOST_READ_BIT
        )

    def barrier(self, commands: Any, *, launches_only: bool) -> None:
        """Record a pipeline barrier: everything before it is finished and visible before anything after it begins.

        `launches_only` says that no copies stand between it and the barriers before and after it: kernels by PTX then
        follow each other 3 us earlier on NVIDIA.
        """
        stages, memory = (self._compute, self._between_launches) if launches_only else (self._stages, self._between)
        lib.vkCmdPipelineBarrier(commands, stages, stages, 0, 1, memory, 0, NULL, 0, NULL)

    def last_barrier(self, commands: Any) -> None:
        """Record the end of a command buffer: the host and all later submits see its results."""
        after = self._stages | vk.VK_PIPELINE_STAGE_HOST_BIT
        lib.vkCmdPipelineBarrier(commands, self._stages, after, 0, 1, self._last, 0, NULL, 0, NULL)

    def command_pool(self, flags: int) -> Any:
        """Return a new pool for the command buffers of one owner."""
        info = Arena().new("VkCommandPoolCreateInfo", flags=flags, queueFamilyIndex=self.family)
        what = "a command pool cannot be made"
        return create(lib.vkCreateCommandPool, self.device, info, "VkCommandPool", what)

    def command_buffer(self, pool: Any) -> Any:
        """Return a new primary command buffer."""
        info = Arena().new("VkCommandBufferAllocateInfo", commandPool=pool, commandBufferCount=1)
        out = ffi.new("VkCommandBuffer*")
        check(lib.vkAllocateCommandBuffers(self.device, info, out), "a command buffer cannot be made")
        return out[0]

    def fence(self) -> Any:
        """Return a new fence."""
        info = Arena().new("VkFenceCreateInfo")
        return create(lib.vkCreateFence, self.device, info, "VkFence", "a fence cannot be made")

    def submit(self, infos: Sequence[Any], fence: Any, fences: Any, *, counted: bool = False) -> None:
        """Reset the fence and submit prebuilt work, piece by piece; the fence tells of the last one.

        It locks the queue, which only one thread may use at a time.
        """
        *first, last = infos
        result = lib.vkResetFences(self.device, 1, fences)
        if result == 0:
            with self._queue_lock:
                for info in first:
                    result = result or lib.vkQueueSubmit(self.queue, 1, info, NULL)
                result = result or lib.vkQueueSubmit(self.queue, 1, last, fence)
                self.stats.submits += counted and len(infos)
        if result != 0:
            raise failure(result, "work cannot be submitted", self.physical.name)

    def wait(self, fence: Any, fences: Any, expected: float = 0.0) -> bool:
        """Wait for a fence, and tell whether there was anything to wait for.

        `expected` is when it should signal, by `perf_counter`; 0.0: unknown. A GPU is polled about then, or from now on
        if that is over; a CPU is not, where polling takes the cores that compute.
        """
        result = lib.vkGetFenceStatus(self.device, fence)
        waited = bool(result == _NOT_READY)
        if waited and not self.physical.software:
            result = self._sleep(fences, expected - SPIN_SECONDS)
            if result == _TIMEOUT:
                result = self._poll(fence, max(perf_counter(), expected) + SPIN_SECONDS)
        if result in (_NOT_READY, _TIMEOUT):
            result = self._sleep(fences)
        if result != 0:
            raise failure(result, "the device failed while it ran", self.physical.name)
        return waited

    def _sleep(self, fences: Any, until: float = inf) -> int:
        """Wait in the driver, for a moment at a time, so that Ctrl-C works; return _TIMEOUT, 0 or an error."""
        result = _TIMEOUT
        while result == _TIMEOUT and (left := until - perf_counter()) > 0:
            result = lib.vkWaitForFences(self.device, 1, fences, 1, int(min(left, _MOMENT) * _ONE_SECOND))
        return int(result)

    def _poll(self, fence: Any, until: float) -> int:
        """Ask for the status again and again; return _NOT_READY, 0 or an error."""
        get_status = lib.vkGetFenceStatus
        result = get_status(self.device, fence)
        while result == _NOT_READY and perf_counter() < until:
            result = get_status(self.device, fence)
        return int(result)

    def finished(self, fence: Any) -> bool:
        """Tell whether a submitted fence is signalled."""
        result = lib.vkGetFenceStatus(self.device, fence)
        if result not in (0, _NOT_READY):
            raise failure(result, "the device failed while it ran", self.physical.name)
        return bool(result == 0)

    def idle(self) -> None:
        """Wait for all work; a lost device counts as idle, because nothing runs on it any more."""
        with self._queue_lock:
            result = lib.vkDeviceWaitIdle(self.device)
        if result != vk.VK_ERROR_DEVICE_LOST:
            check(result, "the device cannot be waited for", self.physical.name)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the device while a thread compiles in the block; ClosedError if it is closed.

        Ctrl-C leaves such a thread behind. If the device was to be closed meanwhile, the last one closes it.
        """
        with self._users_lock:
            if self._end is not None:
                raise ClosedError(f"the Vulkan device {self.physical.name} is closed", fix="open it again")
            self._users += 1
        try:
            yield
        finally:
            with self._users_lock:
                self._users -= 1
                end = None if self._users else self._end
            if end is not None:
                end()

    def end(self, close: Callable[[], None]) -> None:
        """Close the device now, or once no thread compiles on it."""
        with self._users_lock:
            self._end = close
            waits = self._users > 0
        if not waits:
            close()

    def count(self, **changes: int) -> None:
        """Add to the counters of `stats`."""
        with self.stats_lock:
            for name, change in changes.items():
                setattr(self.stats, name, getattr(self.stats, name) + change)

    def destroy(self) -> None:
        """Destroy the logical device; everything created from it must be destroyed already."""
        lib.vkDestroyDevice(self.device, NULL)
