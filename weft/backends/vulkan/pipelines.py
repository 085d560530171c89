"""Kernels as VkPipelines: built from SPIR-V and constants once per device; the driver's cache is kept on disk.

Ints are specialization constants, and numbers are pushed (`weft.backends.vulkan.pushed_numbers`). A network that
changes its shape has the ints that vary pushed, too (`weft.backends.vulkan.pushed_constants`), so that one pipeline
serves every shape.

Pipelines and their shader modules are destroyed when nothing uses them and others were used since
(`weft.backends.gpu.device.built_kernels`). Otherwise a program with ever new shapes would hold more and more of them.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterable, Mapping

from weft.backends.gpu.device.built_kernels import KERNELS_KEPT, Kept
from weft.backends.vulkan import pushed_numbers
from weft.backends.vulkan._vk import NULL, Arena, check, create, ffi, lib, vk
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.late_compiler import LateCompiler
from weft.backends.vulkan.memory import Memory
from weft.backends.vulkan.pipeline_builder import (
    Kernel,
    Owned,
    PipelineBuilder,
    Positions,
    pack_constants,
    place_of,
)
from weft.backends.vulkan.pushed_constants import pushable
from weft.backends.vulkan.pushed_numbers import MOST_BYTES
from weft.backends.vulkan.spirv import has_spirv, spirv_for
from weft.core.host.disk_cache import DiskCache
from weft.errors import DeviceError, DeviceLost, OutOfMemory
from weft.kernels.source import LOCAL_SIZE, KernelSource

log = logging.getLogger("weft.vulkan")

_LARGEST_CACHE = 64 << 20
"""Above this size the driver's cache is started again: it holds the code of pipelines that no longer exist."""
_WORTH_SAVING = 1.1
"""The driver's cache is written before exit only once it has grown by this factor."""
_HEADER = struct.Struct("<IIII16s")
"""The header of the driver's cache: size of the header, version 1, vendor, device, UUID."""


class PushedKernel:
    """A kernel that has pushed constants, with their values."""

    def __init__(self, kernel: Kernel, pushed: bytes) -> None:
        self._kernel, self.pushed = kernel, pushed
        """The pipeline must live as long as this does."""
        self.pipeline, self.interface, self.name = kernel.pipeline, kernel.interface, kernel.name
        self.count = kernel.count


def _with(kernel: Kernel, pushed: bytes) -> Kernel | PushedKernel:
    return PushedKernel(kernel, pushed) if pushed else kernel


class Pipelines:
    """Builds and keeps the kernels of a device."""

    def __init__(self, context: Context, memory: Memory) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._kernels: Kept[tuple[str, bytes, Positions], Kernel] = Kept(KERNELS_KEPT, context.used)
        self._builder = PipelineBuilder(context)
        self._pushable: dict[tuple[str, frozenset[str]], Positions] = {}
        """By a kernel and the constants that vary, the positions of those that can be pushed."""
        self._disk = DiskCache("vulkan-pipelines")
        physical = context.physical
        self._key = f"{physical.cache_id} {physical.name} {physical.driver}"
        self._kept_bytes = 0
        """Bytes of the driver's cache on disk."""
        self._cache = self._open_cache()
        self._unsaved = False
        self._late = LateCompiler(context, memory) if physical.compiles_late else None

    def kernel(self, source: KernelSource, values: Mapping[str, int | float]) -> Kernel | PushedKernel:
        """Return the kernel with these constants; a repeated call costs one look-up."""
        constants = pack_constants(source, values)
        make = lambda: self._build(source, values, constants, ())  # noqa: E731
        made = self._kernels.get((source.digest, constants, ()), make)
        return _with(made, pushed_numbers.packed(source, values))

    def kernel_for_shapes(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> Kernel | PushedKernel:
        """Return the kernel with these constants, of which those that vary are pushed if they can be.

        A kernel that was built for exactly these constants serves as well.
        """
        constants, numbers = pack_constants(source, values), pushed_numbers.packed(source, values)
        exact = self._kernels.find((source.digest, constants, ()))
        if exact is not None:
            return _with(exact, numbers)
        key = (source.digest, varying)
        positions = self._pushable.get(key)
        if positions is None:
            # Doubles take eight bytes, and stay constants.
            known = enumerate(source.constants)
            wanted = [k for k, (n, kind) in known if n in varying and n not in LOCAL_SIZE and kind != "double"]
            positions = self._pushable[key] = pushable(spirv_for(source), wanted, MOST_BYTES - len(numbers))
        if not positions:
            return self.kernel(source, values)
        places = [place_of(source, k) for k in positions]
        fixed = bytearray(constants)
        for at in places:
            fixed[at : at + 4] = bytes(4)
        make = lambda: self._build(source, values, bytes(fixed), positions)  # noqa: E731
        general = self._kernels.get((source.digest, bytes(fixed), positions), make)
        return _with(general, numbers + b"".join(constants[at : at + 4] for at in places))

    def missing(self, kernels: Iterable[tuple[KernelSource, Mapping[str, int | float]]]) -> int:
        """Return how many kernels are not built and have no SPIR-V yet."""
        found = {(source.digest, pack_constants(source, values), ()): source for source, values in kernels}
        return sum(self._kernels.find(key) is None and not has_spirv(source) for key, source in found.items())

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
        cache = self._cache  # keep it alive: another thread may replace it
        try:
            made = self._builder.pipeline(source, values, constants, spirv, pushed, cache.handle)
        except (OutOfMemory, DeviceLost):
            raise
        except DeviceError:
            # The cached SPIR-V may be damaged, or come from a faulty compiler: compile it again.
            anew = spirv_for(source, anew=True)
            if anew == spirv:
                raise
            log.warning("the driver refused the cached SPIR-V of kernel %s; it is compiled again", source.entry)
            self._builder.forget_module(source, pushed)
            made = self._builder.pipeline(source, values, constants, anew, pushed, cache.handle)
        self._unsaved = True
        self._context.count(compiles=1)
        if self._late is not None:
            self._late.compile(made)
        return made

    def _open_cache(self) -> Owned:
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

    def _new_cache(self, blob: bytes) -> Owned:
        arena = Arena()
        data = arena.keep(ffi.from_buffer(blob)) if blob else NULL
        info = arena.new("VkPipelineCacheCreateInfo", initialDataSize=len(blob), pInitialData=data)
        what = "the driver's pipeline cache cannot be created"
        made = create(lib.vkCreatePipelineCache, self._context.device, info, "VkPipelineCache", what)
        return Owned(self._context, lib.vkDestroyPipelineCache, made)

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
        try:
            self.save(at_the_end=True)
        finally:
            if self._late is not None:
                self._late.destroy()
            for owned in (*self._kernels.clear(), self._cache):
                owned.destroy()
            self._builder.destroy()
