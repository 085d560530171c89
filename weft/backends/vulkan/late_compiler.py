"""Compile kernels in the load on drivers that create a pipeline at once and compile it at its first dispatch.

llvmpipe is one: without this, the first run of a network would hide half a minute of compilation. A dispatch of no
work-groups makes the driver compile and runs nothing. The driver compiles in the thread of a queue, and has one queue a
logical device: so it compiles one kernel at a time.
"""

from __future__ import annotations

import threading
from typing import Any

from weft.backends.gpu.device.device import GpuBuffer, MemoryKind
from weft.backends.vulkan._vk import NULL, Arena, check, create, ffi, lib, vk
from weft.backends.vulkan.commands_now import CommandsNow
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.memory import Memory
from weft.backends.vulkan.pipeline_builder import Kernel

_FAILED = "a kernel cannot be compiled before its first run"
_SPARE_BYTES = 256
"""Bytes of the buffer that is bound where a dispatch reads nothing."""


class LateCompiler:
    """Has the driver compile pipelines, by dispatches of no work-groups. Several threads may use it."""

    def __init__(self, context: Context, memory: Memory) -> None:
        self._context, self._memory = context, memory
        self._lock = threading.Lock()
        self._now = CommandsNow(context, _FAILED)
        self._buffer: GpuBuffer | None = None
        self._sets: dict[int, tuple[Any, Any]] = {}
        """By the number of buffers, a descriptor pool and its only set."""

    def compile(self, kernel: Kernel) -> None:
        """Return once the driver has compiled a kernel."""
        with self._lock:
            self._now.run(lambda commands: self._record(commands, kernel))

    def _record(self, commands: Any, kernel: Kernel) -> None:
        compute, interface = vk.VK_PIPELINE_BIND_POINT_COMPUTE, kernel.interface
        lib.vkCmdBindPipeline(commands, compute, kernel.pipeline)
        if interface.count:
            sets = self._bound(interface.count, interface.set_layout)
            lib.vkCmdBindDescriptorSets(commands, compute, interface.layout, 0, 1, sets, 0, NULL)
        if interface.pushed:
            values = ffi.new("char[]", interface.pushed)
            lib.vkCmdPushConstants(
                commands, interface.layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, interface.pushed, values
            )
        lib.vkCmdDispatch(commands, 0, 0, 0)

    def _bound(self, count: int, layout: Any) -> Any:
        """Return a descriptor set that binds a small buffer `count` times."""
        if count not in self._sets:
            arena, device, kind = Arena(), self._context.device, vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
            size = arena.new("VkDescriptorPoolSize", type=kind, descriptorCount=count)
            info = arena.new("VkDescriptorPoolCreateInfo", maxSets=1, poolSizeCount=1, pPoolSizes=size)
            pool = create(lib.vkCreateDescriptorPool, device, info, "VkDescriptorPool", _FAILED)
            try:
                self._sets[count] = pool, self._filled(count, layout, pool)
            except BaseException:
                lib.vkDestroyDescriptorPool(device, pool, NULL)
                raise
        return self._sets[count][1]

    def _filled(self, count: int, layout: Any, pool: Any) -> Any:
        arena, device = Arena(), self._context.device
        if self._buffer is None:
            self._buffer = self._memory.allocate(_SPARE_BYTES, MemoryKind.DEVICE, counted=False)
        sets = ffi.new("VkDescriptorSet[]", 1)
        info = arena.new(
            "VkDescriptorSetAllocateInfo", descriptorPool=pool, descriptorSetCount=1, pSetLayouts=[layout]
        )
        check(lib.vkAllocateDescriptorSets(device, info, sets), _FAILED)
        pieces = arena.keep(ffi.new("VkDescriptorBufferInfo[]", count))
        for k in range(count):
            pieces[k].buffer, pieces[k].range = self._buffer.handle.buffer, _SPARE_BYTES
        write = arena.new(
            "VkWriteDescriptorSet",
            dstSet=sets[0],
            descriptorCount=count,
            descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            pBufferInfo=pieces,
        )
        lib.vkUpdateDescriptorSets(device, 1, write, 0, NULL)
        return sets

    def destroy(self) -> None:
        """Destroy what it holds, once nothing runs; `Memory.destroy` frees the buffer."""
        for pool, _ in self._sets.values():
            lib.vkDestroyDescriptorPool(self._context.device, pool, NULL)
        self._sets.clear()
        self._now.destroy()
