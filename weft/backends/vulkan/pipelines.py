"""Kernels: SPIR-V and constants become pipelines, once per device, with the driver's cache kept on disk."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.backends.gpu.device import DeviceCaps
from weft.backends.vulkan._vk import NULL, Arena, check, create, failure, ffi, lib, vk, words
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.spirv import spirv_for
from weft.errors import CompileError
from weft.kernels.cache import DiskCache
from weft.kernels.source import KernelSource

_LOCAL_SIZE = ("LX", "LY", "LZ")


@dataclass(frozen=True, eq=False)
class Interface:
    """What all kernels with the same number of buffers share."""

    count: int
    set_layout: Any
    layout: Any


@dataclass(frozen=True, eq=False)
class Kernel:
    """A pipeline, ready to be recorded."""

    pipeline: Any
    interface: Interface
    name: str


@dataclass
class _Slot:
    """The place of one kernel; its lock lets others compile meanwhile, and none the same one twice."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    kernel: Kernel | None = None


class Pipelines:
    """Builds and holds the kernels of a device."""

    def __init__(self, context: Context, caps: DeviceCaps) -> None:
        self._context = context
        self._caps = caps
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, bytes], _Slot] = {}
        self._interfaces: dict[int, Interface] = {}
        self._modules: dict[str, Any] = {}
        self._disk = DiskCache("vulkan-pipelines")
        physical = context.physical
        self._key = f"{physical.cache_id} {physical.name} {physical.driver}"
        self._cache = self._open_cache()
        self._unsaved = False

    def kernel(self, source: KernelSource, values: Mapping[str, int | float]) -> Kernel:
        """Return the kernel with these constants; a second call with the same ones costs a look-up."""
        constants = pack_constants(source, values)
        with self._lock:
            slot = self._slots.setdefault((source.digest, constants), _Slot())
        with slot.lock:
            if slot.kernel is None:
                slot.kernel = self._build(source, values, constants)
                self._unsaved = True
                self._context.count(compiles=1)
            return slot.kernel

    def _build(self, source: KernelSource, values: Mapping[str, int | float], constants: bytes) -> Kernel:
        self._check(source, values)
        module = self._module(source)
        interface = self._interface(len(source.args))
        arena = Arena()
        stage = arena.new(
            "VkPipelineShaderStageCreateInfo",
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module,
            pName="main",
            pSpecializationInfo=_specialization(arena, constants),
        )
        info = arena.new("VkComputePipelineCreateInfo", stage=stage[0], layout=interface.layout)
        out = ffi.new("VkPipeline*")
        result = lib.vkCreateComputePipelines(self._context.device, self._cache, 1, info, NULL, out)
        if result in (-1, -2, -4):
            raise failure(result, f"kernel {source.entry} cannot be built", self._context.physical.name)
        if result != 0:
            raise CompileError(
                f"the driver refused kernel {source.entry}",
                where=f"{self._context.physical.name}, {self._context.physical.driver}",
                why=f"{words(result)}; constants: {', '.join(f'{k}={v}' for k, v in values.items())}",
                fix="set WEFT_VULKAN_VALIDATION=1 to learn more, or update the graphics driver",
            )
        return Kernel(out[0], interface, source.entry)

    def _check(self, source: KernelSource, values: Mapping[str, int | float]) -> None:
        """Refuse a local size that is out of the limits: a driver may crash on it."""
        local = [int(values.get(name, 1)) for name in _LOCAL_SIZE]
        caps = self._caps
        items = local[0] * local[1] * local[2]
        fits = all(1 <= size <= most for size, most in zip(local, caps.max_local_size, strict=True))
        if items > caps.max_local_items or not fits:
            raise CompileError(
                f"kernel {source.entry} has a local size that {self._context.physical.name} does not take",
                why=f"it is {local}, {items} in all; the limits are {caps.max_local_size}, "
                f"{caps.max_local_items} in all",
                fix="choose a smaller local size",
            )

    def _module(self, source: KernelSource) -> Any:
        with self._lock:
            held = self._modules.get(source.digest)
        if held is not None:
            return held
        spirv = spirv_for(source)
        arena = Arena()
        code = arena.keep(ffi.new("uint32_t[]", (len(spirv) + 3) // 4))
        ffi.memmove(code, spirv, len(spirv))
        info = arena.new("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code)
        what = f"the SPIR-V of kernel {source.entry} is refused"
        made = create(lib.vkCreateShaderModule, self._context.device, info, "VkShaderModule", what)
        with self._lock:
            held = self._modules.setdefault(source.digest, made)
        if held is not made:
            lib.vkDestroyShaderModule(self._context.device, made, NULL)
        return held

    def _interface(self, count: int) -> Interface:
        with self._lock:
            if count not in self._interfaces:
                self._interfaces[count] = self._create_interface(count)
            return self._interfaces[count]

    def _create_interface(self, count: int) -> Interface:
        limit = int(self._context.physical.limits.maxPerStageDescriptorStorageBuffers)
        if count > limit:
            raise CompileError(
                f"a kernel takes {count} buffers, {self._context.physical.name} binds at most {limit}",
                fix="split the fused kernel",
            )
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
        device, what = self._context.device, "the layout of a kernel's buffers cannot be made"
        set_layout = create(lib.vkCreateDescriptorSetLayout, device, info, "VkDescriptorSetLayout", what)
        info = arena.new("VkPipelineLayoutCreateInfo", setLayoutCount=1, pSetLayouts=[set_layout])
        try:
            layout = create(lib.vkCreatePipelineLayout, device, info, "VkPipelineLayout", what)
        except Exception:
            lib.vkDestroyDescriptorSetLayout(device, set_layout, NULL)
            raise
        return Interface(count, set_layout, layout)

    def _open_cache(self) -> Any:
        arena = Arena()
        blob = self._disk.get(self._key) or b""
        data = arena.keep(ffi.from_buffer(blob)) if blob else NULL
        info = arena.new("VkPipelineCacheCreateInfo", initialDataSize=len(blob), pInitialData=data)
        what = "the driver's cache of kernels cannot be made"
        return create(lib.vkCreatePipelineCache, self._context.device, info, "VkPipelineCache", what)

    def save(self) -> None:
        """Keep the driver's cache on disk if a kernel was built since the last time."""
        with self._lock:
            if not self._unsaved:
                return
            self._unsaved = False
        size = ffi.new("size_t*")
        device, what = self._context.device, "the driver's cache of kernels cannot be read"
        check(lib.vkGetPipelineCacheData(device, self._cache, size, NULL), what)
        data = ffi.new("char[]", max(1, size[0]))
        result = lib.vkGetPipelineCacheData(device, self._cache, size, data)
        if result == vk.VK_INCOMPLETE:  # it grew in between: the next save gets it
            return
        check(result, what)
        self._disk.put(self._key, bytes(ffi.buffer(data, size[0])))

    def destroy(self) -> None:
        """Save the cache and destroy every kernel."""
        device = self._context.device
        try:
            self.save()
        finally:
            for slot in self._slots.values():
                if slot.kernel is not None:
                    lib.vkDestroyPipeline(device, slot.kernel.pipeline, NULL)
            for interface in self._interfaces.values():
                lib.vkDestroyPipelineLayout(device, interface.layout, NULL)
                lib.vkDestroyDescriptorSetLayout(device, interface.set_layout, NULL)
            for module in self._modules.values():
                lib.vkDestroyShaderModule(device, module, NULL)
            lib.vkDestroyPipelineCache(device, self._cache, NULL)
            self._slots, self._interfaces, self._modules = {}, {}, {}


def pack_constants(source: KernelSource, values: Mapping[str, int | float]) -> bytes:
    """Return 4 bytes a constant: ids 0 to 2 are the local size, id i + 3 is the constant at position i."""
    kinds = [(name, "int") for name in _LOCAL_SIZE] + list(source.constants)
    missing = [name for name, _ in source.constants if name not in values]
    if missing:
        raise CompileError(
            f"kernel {source.entry} lacks the value of a constant",
            why=f"{', '.join(missing)}: not among {', '.join(values) or 'no values'}",
            fix="give every constant of the kernel a value",
        )
    try:
        return b"".join(
            struct.pack("<i" if kind == "int" else "<f", values.get(name, 1)) for name, kind in kinds
        )
    except (struct.error, OverflowError) as e:
        raise CompileError(
            f"a constant of kernel {source.entry} is not a 32-bit number",
            why=f"{e}; constants: {', '.join(f'{k}={v}' for k, v in values.items())}",
            fix="split the tensor, so that its indices fit 32 bits",
        ) from None


def _specialization(arena: Arena, constants: bytes) -> Any:
    entries = [
        arena.new("VkSpecializationMapEntry", constantID=i, offset=4 * i, size=4)
        for i in range(len(constants) // 4)
    ]
    return arena.new(
        "VkSpecializationInfo",
        mapEntryCount=len(entries),
        pMapEntries=entries,
        dataSize=len(constants),
        pData=arena.keep(ffi.new("char[]", constants)),
    )
