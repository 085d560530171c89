"""Kernels as VkPipelines: built from SPIR-V and constants once per device; the driver's cache is kept on disk.

Constants are specialization constants. A network that changes its shape has those that vary pushed instead
(`weft.backends.vulkan.pushed_constants`), so that one pipeline serves every shape.

Pipelines and their shader modules are destroyed when nothing uses them and others were used since
(`weft.backends.gpu.device.built_kernels`). Otherwise a program with ever new shapes would hold more and more of them.
"""

from __future__ import annotations

import logging
import struct
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.backends.gpu.device import fork_guard
from weft.backends.gpu.device.built_kernels import KERNELS_KEPT, Kept
from weft.backends.vulkan._vk import NULL, Arena, check, create, failure, ffi, lib, vk, words
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.late_compiler import LateCompiler
from weft.backends.vulkan.memory import Memory
from weft.backends.vulkan.pushed_constants import FIRST_ID, pushable, with_pushed
from weft.backends.vulkan.spirv import spirv_for
from weft.errors import CompileError, DeviceError, DeviceLost, OutOfMemory
from weft.kernels.cache import DiskCache
from weft.kernels.source import LOCAL_SIZE, KernelSource

log = logging.getLogger("weft.vulkan")

_NO_LAYOUT = "the layout of a kernel's buffers cannot be made"
_MODULES = 64
"""Shader modules kept for further pipelines; each is needed only while a pipeline is built from it."""
_LARGEST_CACHE = 64 << 20
"""Above this size the driver's cache is started again: it holds the code of pipelines that no longer exist."""
_WORTH_SAVING = 1.1
"""The driver's cache is written before exit only once it has grown by this factor."""
_HEADER = struct.Struct("<IIII16s")
"""The header of the driver's cache: size of the header, version 1, vendor, device, UUID."""


@dataclass(frozen=True, eq=False)
class Interface:
    """What all kernels with the same number of buffers and of pushed constants share."""

    count: int
    set_layout: Any
    layout: Any
    pushed: int = 0
    """Bytes of pushed constants."""


class _Owned:
    """A Vulkan object; destroyed with its last reference, or by `destroy` before its device is."""

    def __init__(self, context: Context, destroy: Any, handle: Any) -> None:
        self.handle = handle
        self._end = weakref.finalize(self, _destroy, destroy, context.device, handle)
        self._end.atexit = False

    def destroy(self) -> None:
        """Destroy the object now; a second time does nothing."""
        self._end()


def _destroy(destroy: Any, device: Any, handle: Any) -> None:
    if not fork_guard.why_not():  # a forked process has nothing to destroy
        destroy(device, handle, NULL)


class Kernel(_Owned):
    """A VkPipeline, ready to be recorded. Recordings refer to it as long as they may be submitted."""

    def __init__(self, context: Context, pipeline: Any, interface: Interface, name: str) -> None:
        super().__init__(context, lib.vkDestroyPipeline, pipeline)
        self.pipeline, self.interface, self.name = pipeline, interface, name

    pushed = b""
    """The values of pushed constants: none."""


class PushedKernel:
    """A kernel some of whose constants are pushed, with their values."""

    def __init__(self, kernel: Kernel, pushed: bytes) -> None:
        self._kernel, self.pushed = kernel, pushed
        """The pipeline must live as long as this does."""
        self.pipeline, self.interface, self.name = kernel.pipeline, kernel.interface, kernel.name


Positions = tuple[int, ...]


class Pipelines:
    """Builds and keeps the kernels of a device."""

    def __init__(self, context: Context, memory: Memory) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._kernels: Kept[tuple[str, bytes, Positions], Kernel] = Kept(KERNELS_KEPT)
        self._modules: Kept[tuple[str, Positions], _Owned] = Kept(_MODULES)
        self._pushable: dict[tuple[str, frozenset[str]], Positions] = {}
        """By a kernel and the constants that vary, the positions of those that can be pushed."""
        self._set_layouts: dict[int, Any] = {}
        self._interfaces: dict[tuple[int, int], Interface] = {}
        self._disk = DiskCache("vulkan-pipelines")
        physical = context.physical
        self._key = f"{physical.cache_id} {physical.name} {physical.driver}"
        self._kept_bytes = 0
        """Bytes of the driver's cache on disk."""
        self._cache = self._open_cache()
        self._unsaved = False
        self._late = LateCompiler(context, memory) if physical.compiles_late else None

    def kernel(self, source: KernelSource, values: Mapping[str, int | float]) -> Kernel:
        """Return the kernel with these constants; a repeated call costs one look-up."""
        constants = pack_constants(source, values)
        make = lambda: self._build(source, values, constants, ())  # noqa: E731
        return self._kernels.get((source.digest, constants, ()), make)

    def kernel_for_shapes(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> Kernel | PushedKernel:
        """Return the kernel with these constants, of which those that vary are pushed if they can be.

        A kernel that was built for exactly these constants serves as well.
        """
        constants = pack_constants(source, values)
        exact = self._kernels.find((source.digest, constants, ()))
        if exact is not None:
            return exact
        key = (source.digest, varying)
        positions = self._pushable.get(key)
        if positions is None:
            wanted = [k for k, (name, _) in enumerate(source.constants) if name in varying and name not in LOCAL_SIZE]
            positions = self._pushable[key] = pushable(spirv_for(source), wanted)
        if not positions:
            return self.kernel(source, values)
        places = [4 * (k + FIRST_ID) for k in positions]
        fixed = bytearray(constants)
        for at in places:
            fixed[at : at + 4] = bytes(4)
        make = lambda: self._build(source, values, bytes(fixed), positions)  # noqa: E731
        general = self._kernels.get((source.digest, bytes(fixed), positions), make)
        return PushedKernel(general, b"".join(constants[at : at + 4] for at in places))

    def hold(self, count: int) -> None:
        """Keep `count` pipelines besides those in use."""
        self._kernels.limit(count)

    @property
    def held(self) -> int:
        """Return the number of pipelines in use or kept."""
        return len(self._kernels)

    def _build(
        self, source: KernelSource, values: Mapping[str, int | float], constants: bytes, pushed: Positions
    ) -> Kernel:
        spirv = spirv_for(source)
        try:
            made = self._pipeline(source, values, constants, spirv, pushed)
        except (OutOfMemory, DeviceLost):
            raise
        except DeviceError:
            # The cached SPIR-V may be damaged, or come from a faulty compiler: compile it again.
            anew = spirv_for(source, anew=True)
            if anew == spirv:
                raise
            log.warning("the driver refused the cached SPIR-V of kernel %s; it is compiled again", source.entry)
            self._modules.drop((source.digest, pushed))
            made = self._pipeline(source, values, constants, anew, pushed)
        self._unsaved = True
        self._context.count(compiles=1)
        if self._late is not None:
            self._late.compile(made)
        return made

    def _pipeline(
        self,
        source: KernelSource,
        values: Mapping[str, int | float],
        constants: bytes,
        spirv: bytes,
        pushed: Positions,
    ) -> Kernel:
        key = (source.digest, pushed)
        module = self._modules.get(key, lambda: self._module(source, with_pushed(spirv, pushed) if pushed else spirv))
        interface = self._interface(len(source.args), 4 * len(pushed))
        arena = Arena()
        stage = arena.new(
            "VkPipelineShaderStageCreateInfo",
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module.handle,
            pName="main",
            pSpecializationInfo=_specialization(arena, constants),
        )
        info = arena.new("VkComputePipelineCreateInfo", stage=stage[0], layout=interface.layout)
        out = ffi.new("VkPipeline*")
        cache = self._cache  # keep it alive: another thread may replace it
        result = lib.vkCreateComputePipelines(self._context.device, cache.handle, 1, info, NULL, out)
        if result in (-1, -2, -4):
            raise failure(result, f"kernel {source.entry} cannot be built", self._context.physical.name)
        if result != 0:
            raise CompileError(
                f"the driver refused kernel {source.entry}",
                where=f"{self._context.physical.name}, {self._context.physical.driver}",
                why=f"{words(result)}; constants: {', '.join(f'{k}={v}' for k, v in values.items())}",
                fix="set WEFT_VULKAN_VALIDATION=1 to learn more, or update the graphics driver",
            )
        return Kernel(self._context, out[0], interface, source.entry)

    def _module(self, source: KernelSource, spirv: bytes) -> _Owned:
        arena = Arena()
        code = arena.keep(ffi.new("uint32_t[]", (len(spirv) + 3) // 4))
        ffi.memmove(code, spirv, len(spirv))
        info = arena.new("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code)
        what = f"the SPIR-V of kernel {source.entry} is refused"
        made = create(lib.vkCreateShaderModule, self._context.device, info, "VkShaderModule", what)
        return _Owned(self._context, lib.vkDestroyShaderModule, made)

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

    def _open_cache(self) -> _Owned:
        """Return the driver's cache with the content on disk; without it if the driver refuses it."""
        blob = self._disk.get(self._key)
        if blob is not None and self._is_for_this_device(blob):
            try:
                made = self._new_cache(blob)
                self._kept_bytes = len(blob)
                return made
            except OutOfMemory:
                raise
            except DeviceError as e:
                log.warning("the driver refused its own pipeline cache, which is rebuilt: %s", e.why)
        if blob is not None:
            self._disk.discard(self._key)
        return self._new_cache(b"")

    def _is_for_this_device(self, blob: bytes) -> bool:
        """Tell whether cache data say that this device made them; drivers need not check that themselves."""
        if len(blob) < _HEADER.size:
            return False
        size, version, vendor, device, uuid = _HEADER.unpack_from(blob)
        made_by, physical = (vendor, device, uuid.hex()), self._context.physical
        return size >= _HEADER.size and version == 1 and made_by == (*physical.pci_ids, physical.cache_id)

    def _new_cache(self, blob: bytes) -> _Owned:
        arena = Arena()
        data = arena.keep(ffi.from_buffer(blob)) if blob else NULL
        info = arena.new("VkPipelineCacheCreateInfo", initialDataSize=len(blob), pInitialData=data)
        what = "the driver's pipeline cache cannot be created"
        made = create(lib.vkCreatePipelineCache, self._context.device, info, "VkPipelineCache", what)
        return _Owned(self._context, lib.vkDestroyPipelineCache, made)

    def save(self, *, at_the_end: bool = False) -> None:
        """Write the driver's cache to disk if kernels were built since the last write and it has grown by a tenth.

        It is written as a whole, which would cost more with each new shape. `at_the_end` any new kernel is enough.
        """
        with self._lock:
            if not self._unsaved:
                return
            self._unsaved, cache = False, self._cache
        size = ffi.new("size_t*")
        device, what = self._context.device, "the driver's pipeline cache cannot be read"
        check(lib.vkGetPipelineCacheData(device, cache.handle, size, NULL), what)
        if not at_the_end and size[0] < self._kept_bytes * _WORTH_SAVING:
            self._unsaved = True
            return
        if size[0] > _LARGEST_CACHE:
            with self._lock:
                if self._cache is cache:  # the old cache is destroyed when the last thread has built from it
                    self._cache, self._kept_bytes = self._new_cache(b""), 0
            return
        data = ffi.new("char[]", max(1, size[0]))
        result = lib.vkGetPipelineCacheData(device, cache.handle, size, data)
        if result == vk.VK_INCOMPLETE:  # it grew in between: the next save writes it
            return
        check(result, what)
        self._disk.put(self._key, bytes(ffi.buffer(data, size[0])))
        self._kept_bytes = int(size[0])

    def destroy(self) -> None:
        """Save the cache and destroy every kernel."""
        device = self._context.device
        try:
            self.save(at_the_end=True)
        finally:
            if self._late is not None:
                self._late.destroy()
            for owned in (*self._kernels.clear(), *self._modules.clear(), self._cache):
                owned.destroy()
            for interface in self._interfaces.values():
                lib.vkDestroyPipelineLayout(device, interface.layout, NULL)
            for set_layout in self._set_layouts.values():
                lib.vkDestroyDescriptorSetLayout(device, set_layout, NULL)
            self._interfaces, self._set_layouts = {}, {}


def pack_constants(source: KernelSource, values: Mapping[str, int | float]) -> bytes:
    """Return 4 bytes a constant: ids 0 to 2 are the local size, id i + 3 is the constant at position i."""
    kinds = [(name, "int") for name in LOCAL_SIZE] + list(source.constants)
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
