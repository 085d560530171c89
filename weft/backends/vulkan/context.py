"""The logical device: its queue, and its locks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from weft.backends.gpu.device.device import DeviceStats
from weft.backends.vulkan import workgroup_matrices
from weft.backends.vulkan._vk import NULL, Arena, check, create, ffi, lib, vk
from weft.backends.vulkan.physical import (
    ADDRESSES,
    DOT_FEATURES,
    EXTERNAL_HOST,
    FLOAT_CONTROLS,
    MATRIX_EXTENSIONS,
    MATRIX_FEATURES,
    PTX_EXTENSION,
    Physical,
)
from weft.errors import ClosedError, NoDevice
from weft.kernels.matrix_shapes import HALVES


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
        self.queue_lock = threading.Lock()
        """Held to use the queue: one thread at a time may."""
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
            DOT_FEATURES: "shaderIntegerDotProduct",
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

    def idle(self) -> None:
        """Wait for all work; a lost device counts as idle, because nothing runs on it any more."""
        with self.queue_lock:
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
