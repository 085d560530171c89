"""Compile kernels in the load on drivers that create a pipeline at once and compile it at its first dispatch.

llvmpipe is one: without this, the first run of a network would hide half a minute of compilation. A dispatch of no
work-groups makes the driver compile and runs nothing.

The driver compiles in the thread of a queue, and has one queue a logical device. So several kernels are compiled at a
time on further logical devices, one for each thread that builds. What they compile goes to the driver's cache on disk,
from where the device itself has it in a thirtieth of the time.

So two cores compile twice as much at a time: UltraFace of 320 x 240 pixels loads in 9.0 s in place of 13.6, with the
caches of Mesa and Weft empty, for 14 s of processor time either way (medians of three, llvmpipe of Mesa 22.3,
2026-11-24; with `LEAST` out of reach it compiles one at a time).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

from weft.backends.gpu.device.device import GpuBuffer, MemoryKind
from weft.backends.vulkan._vk import NULL, Arena, check, create, ffi, lib, vk
from weft.backends.vulkan.commands_now import CommandsNow
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.memory import Memory
from weft.backends.vulkan.physical import Physical
from weft.backends.vulkan.pipeline_builder import Kernel, PipelineBuilder
from weft.errors import WeftError

log = logging.getLogger("weft.vulkan")

_FAILED = "a kernel cannot be compiled before its first run"
_SPARE_BYTES = 256
"""Bytes of the buffer that is bound where a dispatch reads nothing."""
LEAST = 6
"""Kernels to be built in a load before further logical devices are opened."""
GAIN = 2
"""Further devices are used on if the device itself then compiles so many times faster."""
Build = Callable[[PipelineBuilder], Kernel]


class LateCompiler:
    """Has the driver compile pipelines. Several threads may use it."""

    def __init__(self, context: Context, memory: Memory) -> None:
        self._physical = context.physical
        self._lock = threading.Lock()
        self._own = _EmptyDispatches(context, memory)
        self._free: list[_Helper] = []
        self._held = self._asked = 0
        self._gains = True
        """False once compiling on further devices did not spare the device itself that work."""
        self._state = threading.Lock()
        self._compiled: list[Kernel] = []
        """Compiled on a further device, and not yet on the device itself."""
        self._seconds = 0.0
        """How long the further devices took for these."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Allow further logical devices to be opened, and keep them, while a block runs."""
        with self._state:
            self._held += 1
        try:
            yield
        finally:
            with self._state:
                self._held -= 1
                ended: list[_Helper] = []
                if not self._held:
                    self._asked, ended, self._free = 0, self._free, []
            _destroy_all(ended)

    def compile(self, kernel: Kernel, build: Build) -> None:
        """Return once the driver has compiled the kernel, perhaps for another logical device; `settle` does the rest.

        `build` builds the same kernel on another device.
        """
        helper = self._take()
        begun = perf_counter()
        if helper is not None and not helper.compile(build):
            self._gains = False  # the next kernel would open another device, in vain
            helper = None
        if helper is None:
            with self._lock:
                self._own.run([kernel])
            return
        with self._state:
            self._compiled.append(kernel)
            self._seconds += perf_counter() - begun
            keep = self._held > 0
            if keep:
                self._free.append(helper)
        if not keep:
            helper.destroy()

    def _take(self) -> _Helper | None:
        """Return a further device that no other thread uses; None if the device itself should compile."""
        with self._state:
            if not self._held or not self._gains:
                return None
            self._asked += 1
            if self._asked <= LEAST:
                return None
            if self._free:
                return self._free.pop()
        try:
            return _Helper(self._physical)
        except WeftError as e:
            log.info("a further logical device to compile on cannot be opened: %s", e)
            self._gains = False
            return None

    @property
    def is_unsettled(self) -> bool:
        """Tell whether there is something to `settle`, or a thread does."""
        return bool(self._compiled) or self._lock.locked()  # in this order: who takes them holds the lock

    def settle(self) -> None:
        """Compile for the device itself what was compiled for others, from the driver's cache.

        Another thread that settles meanwhile returns only when that is done.
        """
        with self._lock:
            with self._state:
                kernels, seconds = self._compiled, self._seconds
                self._compiled, self._seconds = [], 0.0
            if not kernels:
                return
            begun = perf_counter()
            self._own.run(kernels)
            took = perf_counter() - begun
        if took * GAIN > seconds:
            log.info("the driver has no cache on disk: kernels are compiled one at a time")
            self._gains = False

    def destroy(self) -> None:
        """Destroy what it holds, once nothing runs; `Memory.destroy` frees the buffer."""
        helpers, self._free, self._compiled = self._free, [], []
        try:
            _destroy_all(helpers)
        finally:
            self._own.destroy()


def _destroy_all(helpers: Sequence[_Helper]) -> None:
    """Destroy further devices; an error of one leaves none of the others."""
    with ExitStack() as stack:
        for helper in helpers:
            stack.callback(helper.destroy)


class _Helper:
    """A logical device that only compiles, for one thread at a time."""

    def __init__(self, physical: Physical) -> None:
        self._context = Context(physical)
        with ExitStack() as made:
            made.callback(self._context.destroy)
            self._memory, self._builder = Memory(self._context), PipelineBuilder(self._context)
            made.callback(self._builder.destroy)
            self._dispatches = _EmptyDispatches(self._context, self._memory)
            made.pop_all()

    def compile(self, build: Build) -> bool:
        """Have the driver compile a kernel; False if that failed, and the device is destroyed."""
        try:
            kernel = build(self._builder)
            try:
                self._dispatches.run([kernel])
            finally:
                kernel.destroy()
        except WeftError as e:
            log.info("a kernel cannot be compiled on a further logical device: %s", e)
            self.destroy()
            return False
        except BaseException:
            self.destroy()
            raise
        return True

    def destroy(self) -> None:
        """Destroy the device."""
        self._context.idle()
        self._dispatches.destroy()
        self._memory.destroy()
        self._builder.destroy()
        self._context.destroy()


class _EmptyDispatches:
    """Dispatches of no work-groups; the owner lets one thread at a time use it."""

    def __init__(self, context: Context, memory: Memory) -> None:
        self._context, self._memory = context, memory
        self._now = CommandsNow(context, _FAILED)
        self._buffer: GpuBuffer | None = None
        self._sets: dict[int, tuple[Any, Any]] = {}
        """By the number of buffers, a descriptor pool and its only set."""

    def run(self, kernels: Sequence[Kernel]) -> None:
        """Return once the driver has compiled the kernels."""

        def record(commands: Any) -> None:
            for kernel in kernels:
                self._record(commands, kernel)
                self._context.barrier(commands, launches_only=True)  # they are bound to one buffer

        self._now.run(record)

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
