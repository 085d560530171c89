"""Builds pipelines on one logical device, from SPIR-V and constants."""

from __future__ import annotations

import struct
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.built_kernels import Kept
from weft.backends.vulkan import pushed_numbers
from weft.backends.vulkan._vk import NOT_THE_KERNELS_FAULT, NULL, Arena, create, failure, ffi, lib, vk, words
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.exact_arithmetic import with_special_values
from weft.backends.vulkan.pushed_constants import FIRST_ID, with_pushed
from weft.errors import CompileError
from weft.kernels.source import LOCAL_SIZE, KernelSource

_NO_LAYOUT = "the layout of a kernel's buffers cannot be made"
_MODULES = 64
"""Shader modules kept for further pipelines; each is needed only while a pipeline is built from it."""
Positions = tuple[int, ...]
"""Which constants of a kernel are pushed."""
_BYTES = {"int": 4, "float": 4, "double": 8}


@dataclass(frozen=True, eq=False)
class Interface:
    """What all kernels with the same number of buffers and of pushed constants share."""

    count: int
    set_layout: Any
    layout: Any
    pushed: int = 0
    """Bytes of pushed constants."""


class Owned:
    """A Vulkan object; destroyed with its last reference, or by `destroy` before its device is."""

    def __init__(self, context: Context, destroy: Any, handle: Any) -> None:
        self.handle = handle
        self._end = weakref.finalize(self, _destroy, destroy, context.device, handle)
        self._end.atexit = False

    def destroy(self) -> None:
        """Destroy the object now; a second time does nothing."""
        self._end()


def _destroy(destroy: Any, device: Any, handle: Any) -> None:
    if not fork_guard.is_forked():  # a forked process has nothing to destroy
        destroy(device, handle, NULL)


class Kernel(Owned):
    """A VkPipeline, ready to be recorded. Recordings refer to it as long as they may be submitted."""

    def __init__(self, context: Context, pipeline: Any, interface: Interface, name: str) -> None:
        super().__init__(context, lib.vkDestroyPipeline, pipeline)
        self.pipeline, self.interface, self.name, self.count = pipeline, interface, name, interface.count

    pushed = b""
    """The values of pushed constants: none."""


class PipelineBuilder:
    """Builds kernels for one logical device; several threads may use it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._modules: Kept[tuple[str, Positions], Owned] = Kept(_MODULES)
        self._set_layouts: dict[int, Any] = {}
        self._interfaces: dict[tuple[int, int], Interface] = {}

    def pipeline(
        self, source: KernelSource, values: Mapping[str, int | float], constants: bytes, spirv: bytes,
        pushed: Positions, cache: Any,
    ) -> Kernel:
        """Return the kernel with these constants, of which those at the positions `pushed` are given at each dispatch.

        So are its numbers, if they are pushed. The driver may take the pipeline from its `cache`.
        """
        key, numbers = (source.digest, pushed), len(pushed_numbers.packed(source, values))
        if pushed:
            module = self._modules.get(key, lambda: self._module(source, with_pushed(spirv, pushed, numbers)))
        else:
            module = self._modules.get(key, lambda: self._module(source, spirv))
        interface = self._interface(len(source.args), numbers + 4 * len(pushed))
        arena = Arena()
        stage = arena.new(
            "VkPipelineShaderStageCreateInfo",
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module.handle,
            pName="main",
            pSpecializationInfo=_specialization(arena, source, constants),
        )
        info = arena.new("VkComputePipelineCreateInfo", stage=stage[0], layout=interface.layout)
        out = ffi.new("VkPipeline*")
        result = lib.vkCreateComputePipelines(self._context.device, cache, 1, info, NULL, out)
        if result in NOT_THE_KERNELS_FAULT:
            raise failure(result, f"kernel {source.entry} cannot be built", self._context.physical.name)
        if result != 0:
            raise CompileError(
                f"the driver refused kernel {source.entry}",
                where=f"{self._context.physical.name}, {self._context.physical.driver}",
                why=f"{words(result)}; constants: {', '.join(f'{k}={v}' for k, v in values.items())}",
                fix="set WEFT_VULKAN_VALIDATION=1 to learn more, or update the graphics driver",
            )
        return Kernel(self._context, out[0], interface, source.entry)

    def _module(self, source: KernelSource, spirv: bytes) -> Owned:
        arena = Arena()
        spirv = with_special_values(spirv, self._context.physical.preserved_widths)
        code = arena.keep(ffi.new("uint32_t[]", (len(spirv) + 3) // 4))
        ffi.memmove(code, spirv, len(spirv))
        info = arena.new("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code)
        what = f"the SPIR-V of kernel {source.entry} is refused"
        made = create(lib.vkCreateShaderModule, self._context.device, info, "VkShaderModule", what)
        return Owned(self._context, lib.vkDestroyShaderModule, made)

    def _interface(self, count: int, pushed: int) -> Interface:
        with self._lock:
            if count not in self._set_layouts:
                self._set_layouts[count] = self._create_set_layout(count)
            if (count, pushed) not in self._interfaces:
                self._interfaces[count, pushed] = self._create_interface(count, pushed)
            return self._interfaces[count, pushed]

    def _create_set_layout(self, count: int) -> Any:
        arena = Arena()
        bindings = [
            arena.new(
                "VkDescriptorSetLayoutBinding",
                binding=i,
                descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                descriptorCount=1,
                stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            )
            for i in range(count)
        ]
        info = arena.new("VkDescriptorSetLayoutCreateInfo", bindingCount=count, pBindings=bindings)
        make, kind = lib.vkCreateDescriptorSetLayout, "VkDescriptorSetLayout"
        return create(make, self._context.device, info, kind, _NO_LAYOUT)

    def _create_interface(self, count: int, pushed: int) -> Interface:
        arena, set_layout = Arena(), self._set_layouts[count]
        ranges = [
            arena.new("VkPushConstantRange", stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=pushed)
            for _ in range(min(pushed, 1))
        ]
        info = arena.new(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=[set_layout],
            pushConstantRangeCount=len(ranges),
            pPushConstantRanges=ranges,
        )
        make, kind = lib.vkCreatePipelineLayout, "VkPipelineLayout"
        layout = create(make, self._context.device, info, kind, _NO_LAYOUT)
        return Interface(count, set_layout, layout, pushed)

    def forget_module(self, source: KernelSource, pushed: Positions) -> None:
        """Make the shader module of a kernel anew the next time."""
        self._modules.drop((source.digest, pushed))

    def destroy(self) -> None:
        """Destroy everything but the pipelines, which belong to the callers."""
        device = self._context.device
        for module in self._modules.clear():
            module.destroy()
        for interface in self._interfaces.values():
            lib.vkDestroyPipelineLayout(device, interface.layout, NULL)
        for set_layout in self._set_layouts.values():
            lib.vkDestroyDescriptorSetLayout(device, set_layout, NULL)
        self._interfaces, self._set_layouts = {}, {}


def pack_constants(source: KernelSource, values: Mapping[str, int | float]) -> bytes:
    """Return 4 bytes a constant, 8 a double: ids 0 to 2 are the local size, id i + 3 is the constant at position i.

    Pushed numbers are zeros: no pipeline knows them.
    """
    missing = [name for name, _ in source.constants if name not in values]
    if missing:
        raise CompileError(
            f"kernel {source.entry} lacks the value of a constant",
            why=f"{', '.join(missing)}: not among {', '.join(values) or 'no values'}",
            fix="give every constant of the kernel a value",
        )
    pushed = pushed_numbers.positions(source)
    try:
        sizes = b"".join(pushed_numbers.pack(values.get(name, 1), "int") for name in LOCAL_SIZE)
        return sizes + b"".join(
            bytes(_BYTES[kind]) if i in pushed else pushed_numbers.pack(values[name], kind)
            for i, (name, kind) in enumerate(source.constants)
        )
    except struct.error as e:
        raise CompileError(
            f"a constant of kernel {source.entry} is not a 32-bit number",
            why=f"{e}; constants: {', '.join(f'{k}={v}' for k, v in values.items())}",
            fix="split the tensor, so that its indices fit 32 bits",
        ) from None


def place_of(source: KernelSource, position: int) -> int:
    """Return the byte at which a constant begins in what `pack_constants` returns."""
    return 4 * FIRST_ID + sum(_BYTES[kind] for _, kind in source.constants[:position])


def _specialization(arena: Arena, source: KernelSource, constants: bytes) -> Any:
    sizes = [4] * FIRST_ID + [_BYTES[kind] for _, kind in source.constants]
    entries = [
        arena.new("VkSpecializationMapEntry", constantID=i, offset=sum(sizes[:i]), size=size)
        for i, size in enumerate(sizes)
    ]
    return arena.new(
        "VkSpecializationInfo",
        mapEntryCount=len(entries),
        pMapEntries=entries,
        dataSize=len(constants),
        pData=arena.keep(ffi.new("char[]", constants)),
    )
