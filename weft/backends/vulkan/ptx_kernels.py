"""Kernels by PTX inside Vulkan's command buffers (VK_NVX_binary_import), for what GLSL lacks.

On a Hopper GPU, warpgroups multiply matrices twice as fast as what GLSL offers, and launches by PTX may share one
(benchmarks/NOTES.md). There a Vulkan device takes OpenCL's kernels: NVIDIA's OpenCL driver compiles them to PTX
(`weft.backends.opencl.ptx_writer`), and a kernel takes the addresses of its buffers as parameters. Where OpenCL is
missing, kernels are GLSL as on every other device.

What was compiled is kept on disk, so a process that finds all of it there does not start OpenCL.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.backends import opencl
from weft.backends.gpu.device.built_kernels import KERNELS_KEPT, Kept
from weft.backends.gpu.device.device import DeviceCaps, LaunchCommand, Size3
from weft.backends.opencl.constants import as_arguments, header, late_constants
from weft.backends.opencl.dialect import OpenCLDialect
from weft.backends.opencl.known_drivers import TABLE, granted, matrices_of
from weft.backends.opencl.ptx_cache import CACHE, key_of
from weft.backends.vulkan._vk import NOT_THE_KERNELS_FAULT, NULL, Arena, failure, ffi, lib, words
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.physical import Physical
from weft.backends.vulkan.pipeline_builder import Owned
from weft.core.host.disk_cache import DiskCache, hash_of
from weft.errors import CompileError, DeviceError, WeftError
from weft.kernels import device_caps
from weft.kernels.chain import CHAIN
from weft.kernels.source import LOCAL_SIZE, KernelSource

if TYPE_CHECKING:
    from weft.backends.opencl.ptx_writer import PtxWriter

log = logging.getLogger("weft.vulkan")

SHARED_ALONE = 48 << 10
"""Bytes of work-group memory from which on Vulkan's driver gives each group a whole multiprocessor, where OpenCL's lets
as many share it as fit (driver 580, benchmarks/NOTES.md)."""
DIALECT = OpenCLDialect()
"""What these kernels are written in."""
FOUND_ANEW = frozenset({"without", "matrices", "rates"})
"""What is not kept of a device's capabilities: it follows from the compute capability, or is found at each start."""
_NONE: frozenset[str] = frozenset()


class Calls(NamedTuple):
    """The functions of the extension."""

    CreateCuModule: Any
    CreateCuFunction: Any
    DestroyCuModule: Any
    DestroyCuFunction: Any
    CmdCuLaunchKernel: Any


class Assembled(Owned):
    """A VkCuFunctionNVX and the module that it is from, which must outlive it."""

    def __init__(self, context: Context, calls: Calls, module: Any, function: Any) -> None:
        def destroy(device: Any, both: tuple[Any, Any], allocator: Any) -> None:
            calls.DestroyCuFunction(device, both[1], allocator)
            calls.DestroyCuModule(device, both[0], allocator)

        super().__init__(context, destroy, (module, function))

    @property
    def function(self) -> Any:
        """Return the VkCuFunctionNVX."""
        return self.handle[1]


@dataclass(frozen=True, eq=False)
class PtxKernel:
    """A kernel ready to be recorded. Recordings refer to it as long as they may be submitted."""

    assembled: Assembled
    name: str
    local: Size3
    count: int
    """How many buffers it takes."""
    parameters: tuple[Any, ...]
    """The values of the constants that are parameters after the buffers, as numpy's numbers."""

    @property
    def meets_groups(self) -> bool:
        """Tell whether its work-groups wait for each other, so that no other such kernel may run beside it."""
        return self.name == CHAIN


class PtxKernels:
    """Builds and keeps the kernels by PTX of a device. Several threads may use it."""

    def __init__(self, context: Context, caps: DeviceCaps, writer: PtxWriter | None) -> None:
        self._context, self._writer = context, writer
        self.caps = caps
        """What these kernels may rely on."""
        self._lock = threading.Lock()
        self._disk = DiskCache(CACHE)
        self._assembled: Kept[tuple[str, str], Assembled] = Kept(KERNELS_KEPT, context.used)
        self._calls = Calls(*(_function(context.device, f"vk{name}NVX") for name in Calls._fields))
        self._building, self._hold = 0, ExitStack()
        """How many blocks build, and what they hold of the writer."""

    @classmethod
    def open(cls, context: Context) -> PtxKernels | None:
        """Return the kernels of a device; None if another capability or a missing compiler speaks against it."""
        physical = context.physical
        if not physical.imports_ptx:
            return None
        if importlib.util.find_spec("pyopencl") is None:
            return None
        disk, key = DiskCache(CACHE), "\n".join(("device", _code_of_caps(), physical.name, physical.driver))
        facts, writer = _facts(disk.get(key)), None
        if facts is None:
            writer = _writer(physical)
            if writer is None:
                return None
            facts = writer.capability, writer.caps
            kept = {name: v for name, v in asdict(writer.caps).items() if name not in FOUND_ANEW}
            disk.put(key, json.dumps([writer.capability, kept]).encode())
        found, caps = facts
        return cls(context, _both(caps, physical.caps()), writer) if "faster_as_ptx" in granted(found) else None

    def kernel(self, source: KernelSource, values: Mapping[str, int | float]) -> PtxKernel:
        """Return the kernel with these constants; a repeated call costs one look-up."""
        return self.kernel_for_shapes(source, values, _NONE)

    def kernel_for_shapes(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> PtxKernel:
        """Return the kernel with these constants, of which those that vary between shapes are parameters if possible.

        A kernel that was built for exactly these constants serves as well.
        """
        late = late_constants(source, varying)
        exact = self._assembled.find((source.digest, header(source, values, ()))) if late else None
        if exact is None:
            known, chosen = header(source, values, late), varying if late else _NONE
            make = partial(self._assemble, source, values, chosen)
            assembled, parameters = self._assembled.get((source.digest, known), make), as_arguments(late, values)
        else:
            assembled, parameters = exact, ()
        x, y, z = (int(values.get(name, 1)) for name in LOCAL_SIZE)
        return PtxKernel(assembled, source.entry, (x, y, z), len(source.args), parameters)

    def missing(self, kernels: Iterable[tuple[KernelSource, Mapping[str, int | float]]]) -> int:
        """Return how many different kernels are neither assembled nor on disk."""
        found = {(source.digest, header(source, values, ())): (source, values) for source, values in kernels}
        left = [asked for key, asked in found.items() if self._assembled.find(key) is None]
        paths = (self._disk.path(key_of(_named(self._context.physical), *asked, _NONE)) for asked in left)
        return sum(path is None or not path.exists() for path in paths)

    def _assemble(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]
    ) -> Assembled:
        key = key_of(_named(self._context.physical), source, values, varying)
        code = self._disk.get(key) or self._written(source, values, varying)
        try:
            assembled = self._assembled_from(code, source)
        except CompileError:
            self._disk.discard(key)
            raise
        self._context.count(compiles=1)
        return assembled

    def _assembled_from(self, code: bytes, source: KernelSource) -> Assembled:
        arena, device = Arena(), self._context.device
        data = arena.keep(ffi.new("char[]", code + b"\0"))  # text ends with a zero
        info = arena.new("VkCuModuleCreateInfoNVX", dataSize=len(code) + 1, pData=data)
        module = self._made(self._calls.CreateCuModule, info, "VkCuModuleNVX", source)
        try:
            info = arena.new("VkCuFunctionCreateInfoNVX", module=module, pName=source.entry)
            function = self._made(self._calls.CreateCuFunction, info, "VkCuFunctionNVX", source)
        except WeftError:
            self._calls.DestroyCuModule(device, module, NULL)
            raise
        return Assembled(self._context, self._calls, module, function)

    def _find_writer(self) -> PtxWriter | None:
        """Return what compiles; start it the first time, and let it start processes if a block builds."""
        with self._lock:
            if self._writer is None:
                self._writer = _writer(self._context.physical)
                if self._writer is not None and self._building:
                    self._hold.enter_context(self._writer.hold())
            return self._writer

    def _written(self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str]) -> bytes:
        writer = self._find_writer()
        if writer is None:
            # No CompileError: this says nothing of the kernel, and must not be kept as a verdict on it.
            raise DeviceError(
                f"the kernel {source.entry} cannot be compiled to PTX",
                where=self._context.physical.name,
                why="NVIDIA's OpenCL driver, which compiles it, is not found any more",
                fix="name it to the OpenCL loader, or load with the option vulkan.ptx=no",
            )
        return writer.write(source, values, varying)

    def _made(self, create: Any, info: Any, kind: str, source: KernelSource) -> Any:
        out, physical = ffi.new(f"{kind}*"), self._context.physical
        result = create(self._context.device, info, NULL, out)
        if result in NOT_THE_KERNELS_FAULT:
            raise failure(result, f"kernel {source.entry} cannot be built", physical.name)
        if result != 0:
            raise CompileError(
                f"the driver refused the PTX of kernel {source.entry}",
                where=f"{physical.name}, {physical.driver}",
                why=words(result),
                fix="load with the option vulkan.ptx=no, or update the graphics driver",
            )
        return out[0]

    def record(self, commands: Any, command: LaunchCommand) -> None:
        """Record a launch of one of these kernels."""
        kernel: PtxKernel = command.kernel
        arena = Arena()
        given = [
            *(ffi.new("uint64_t*", piece.buffer.handle.address + piece.offset) for piece in command.bindings),
            *(arena.keep(ffi.from_buffer(value.tobytes())) for value in kernel.parameters),
        ]
        (gx, gy, gz), (lx, ly, lz) = command.grid, kernel.local
        info = arena.new(
            "VkCuLaunchInfoNVX",
            function=kernel.assembled.function,
            gridDimX=gx, gridDimY=gy, gridDimZ=gz,
            blockDimX=lx, blockDimY=ly, blockDimZ=lz,
            paramCount=len(given),
            pParams=arena.keep(ffi.new("void*[]", [ffi.cast("void*", each) for each in given])),
        )
        self._calls.CmdCuLaunchKernel(commands, info)

    @contextmanager
    def building(self) -> Iterator[None]:
        """Let child processes compile while a block runs, once the first kernel is not found on disk."""
        with self._lock:
            if self._writer is not None and not self._building:
                self._hold.enter_context(self._writer.hold())
            self._building += 1
        try:
            yield
        finally:
            with self._lock:
                self._building -= 1
                ended, self._hold = (ExitStack(), self._hold) if self._building else (self._hold, ExitStack())
            ended.close()

    def expect_building(self) -> None:
        """Start the processes that compile."""
        writer = self._find_writer()
        if writer is not None:
            writer.expect()

    def hold(self, count: int) -> None:
        """Keep `count` kernels besides those in use."""
        self._assembled.limit(count)

    @property
    def held(self) -> int:
        """Return the number of kernels in use or kept."""
        return len(self._assembled)

    def destroy(self) -> None:
        """Destroy every kernel, and end the processes that compile."""
        for assembled in self._assembled.clear():
            assembled.destroy()
        if self._writer is not None:
            self._writer.close()


def _writer(physical: Physical) -> PtxWriter | None:
    """Return what compiles for a device; None if pyopencl or NVIDIA's OpenCL driver is missing."""
    try:
        from weft.backends.opencl.ptx_writer import PtxWriter

        return PtxWriter.find(*_named(physical))
    except (ImportError, WeftError) as e:
        log.debug("kernels are GLSL, because OpenCL cannot compile them: %s", e)
        return None


def _named(physical: Physical) -> tuple[str, str]:
    return physical.name, physical.driver


def _facts(blob: bytes | None) -> tuple[tuple[int, int], DeviceCaps] | None:
    """Return the capability and what OpenCL says of the device, as `open` keeps them; None if that is not there."""
    try:
        (major, minor), caps = json.loads(blob or b"")
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in caps.items()}
        return (major, minor), DeviceCaps(**values, matrices=matrices_of((major, minor)))
    except (ValueError, TypeError, AttributeError):
        return None


def _both(caps: DeviceCaps, vulkan: DeviceCaps) -> DeviceCaps:
    """Return what kernels of OpenCL may rely on in Vulkan's memory."""
    return replace(
        caps,
        max_buffer_range=min(caps.max_buffer_range, vulkan.max_allocation),
        max_allocation=min(caps.max_allocation, vulkan.max_allocation),
        offset_alignment=max(caps.offset_alignment, vulkan.offset_alignment),
        shared_alone=SHARED_ALONE,
    )


def _code_of_caps() -> str:
    """Return a hash of what decides the capabilities that `open` keeps."""
    return hash_of([Path(opencl.__path__[0], "capabilities.py"), TABLE, Path(device_caps.__file__)])


def _function(device: Any, name: str) -> Any:
    return ffi.cast(f"PFN_{name}", lib.vkGetDeviceProcAddr(device, ffi.new("char[]", name.encode())))
