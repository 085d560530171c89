"""Kernels by PTX inside Vulkan's command buffers (VK_NVX_binary_import), for instructions that GLSL lacks.

On a Hopper GPU, warpgroups multiply matrices twice as fast as what GLSL offers (benchmarks/NOTES.md). Their templates
are OpenCL C, which NVIDIA's OpenCL driver compiles to PTX (`weft.backends.opencl.ptx_writer`) and Vulkan's driver
assembles. Such a kernel takes the addresses of its buffers as parameters. Everything else runs as SPIR-V.

The PTX is kept on disk, so a process that finds all of it there does not start OpenCL.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.backends.gpu.device.built_kernels import KERNELS_KEPT, Kept
from weft.backends.gpu.device.device import LaunchCommand, Size3
from weft.backends.vulkan._vk import NULL, Arena, failure, ffi, lib
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.dialect import GlslDialect
from weft.backends.vulkan.physical import Physical
from weft.backends.vulkan.pipeline_builder import Owned, pack_constants
from weft.core.host.disk_cache import DiskCache
from weft.errors import CompileError, WeftError
from weft.kernels.dialect import Dialect
from weft.kernels.source import KernelSource

if TYPE_CHECKING:
    from weft.backends.opencl.ptx_writer import PtxWriter

log = logging.getLogger("weft.vulkan")

CAPABILITY = (9, 0)
"""The compute capability that has warpgroups' instructions; no other has exactly these."""
_VERSION = "1"
"""The version of `for_vulkan`, part of the key under which its text is cached."""
_TARGET = re.compile(r"^(\s*\.target\s+\w+)\s*,\s*texmode_independent", re.MULTILINE)
_SPECIAL = re.compile(r"%envreg(\d+)\b")
_GROUPS = {"6": "%nctaid.x", "7": "%nctaid.y", "8": "%nctaid.z"}
_OFFSETS = frozenset("012345")


def for_vulkan(text: str) -> str:
    """Return OpenCL's PTX as CUDA's: what OpenCL's driver would put into special registers is written out.

    These are the offsets of groups (0 to 2) and of items (3 to 5), which Weft's launches do not have, and the number of
    groups (6 to 8). ValueError names any other.
    """
    def register(found: re.Match[str]) -> str:
        number = found[1]
        if number in _OFFSETS:
            return "0"
        if number not in _GROUPS:
            raise ValueError(f"it reads {found[0]}")
        return _GROUPS[number]

    return _SPECIAL.sub(register, _TARGET.sub(r"\1", text))


class PtxKernel:
    """A kernel ready to be recorded. Recordings refer to it as long as they may be submitted."""

    pushed = b""
    """The values of pushed constants: none."""

    def __init__(self, module: Owned, function: Owned, source: KernelSource, local: Size3) -> None:
        self._module, self._function = module, function
        self.name, self.local, self.count = source.entry, local, len(source.args)

    @property
    def handle(self) -> Any:
        """Return the VkCuFunctionNVX."""
        return self._function.handle

    def destroy(self) -> None:
        """Destroy it now; a second time does nothing."""
        self._function.destroy()
        self._module.destroy()


class PtxKernels:
    """Builds and keeps the kernels by PTX of a device. Several threads may use it."""

    def __init__(self, context: Context, writer: PtxWriter | None) -> None:
        self._context, self._writer = context, writer
        self._lock = threading.Lock()
        self._disk = DiskCache("ptx")
        self._kernels: Kept[tuple[str, bytes], PtxKernel] = Kept(KERNELS_KEPT)
        calls = ("CreateCuModule", "CreateCuFunction", "DestroyCuModule", "DestroyCuFunction", "CmdCuLaunchKernel")
        self._create_module, self._create_function, self._destroy_module, self._destroy_function, self._launch = (
            _function(context.device, f"vk{call}NVX") for call in calls
        )

    @classmethod
    def open(cls, context: Context) -> PtxKernels | None:
        """Return the kernels of a device; None if it has no warpgroups, or OpenCL cannot compile for it."""
        if not context.physical.imports_ptx:
            return None
        disk, key = DiskCache("ptx"), _device_key(context.physical)
        known = disk.get(key)
        writer = None if known else _writer(context.physical)
        if known is None:
            if writer is None:
                return None
            known = json.dumps(writer.capability).encode()
            disk.put(key, known)
        return cls(context, writer) if known == json.dumps(CAPABILITY).encode() else None

    def kernel(self, source: KernelSource, values: Mapping[str, int | float]) -> PtxKernel:
        """Return the kernel with these constants; a repeated call costs one look-up."""
        constants = pack_constants(source, values)
        return self._kernels.get((source.digest, constants), lambda: self._build(source, values, constants))

    def _build(self, source: KernelSource, values: Mapping[str, int | float], constants: bytes) -> PtxKernel:
        physical = self._context.physical
        key = "\n".join((_VERSION, physical.name, physical.driver, source.digest, source.entry, constants.hex()))
        text = self._disk.get(key)
        if text is None:
            text = self._written(source, values)
            self._disk.put(key, text)
        arena = Arena()
        data = arena.keep(ffi.new("char[]", text + b"\0"))
        info = arena.new("VkCuModuleCreateInfoNVX", dataSize=len(text) + 1, pData=data)
        module = self._made(self._create_module, info, "VkCuModuleNVX", source, self._destroy_module)
        info = arena.new("VkCuFunctionCreateInfoNVX", module=module.handle, pName=source.entry)
        function = self._made(self._create_function, info, "VkCuFunctionNVX", source, self._destroy_function)
        self._context.count(compiles=1)
        x, y, z = (int(values.get(name, 1)) for name in ("LX", "LY", "LZ"))
        return PtxKernel(module, function, source, (x, y, z))

    def _written(self, source: KernelSource, values: Mapping[str, int | float]) -> bytes:
        with self._lock:
            if self._writer is None:
                self._writer = _writer(self._context.physical)
            writer = self._writer
        if writer is None:
            raise CompileError(
                f"the kernel {source.entry} cannot be compiled to PTX",
                where=self._context.physical.name,
                why="NVIDIA's OpenCL driver, which compiles it, is not found any more",
                fix='pip install pyopencl, or empty the cache (`weft cache` says where it is)',
            )
        try:
            return for_vulkan(writer.write(source, values).decode("ascii")).encode()
        except ValueError as e:
            raise CompileError(
                f"the PTX of kernel {source.entry} is of no use to Vulkan",
                where=self._context.physical.name,
                why=str(e),
                fix="report this with the version of the driver, and use OpenCL meanwhile",
            ) from e

    def _made(self, create: Any, info: Any, kind: str, source: KernelSource, destroy: Any) -> Owned:
        out = ffi.new(f"{kind}*")
        result = create(self._context.device, info, NULL, out)
        if result != 0:
            raise failure(result, f"the driver refused the PTX of kernel {source.entry}", self._context.physical.name)
        return Owned(self._context, destroy, out[0])

    def record(self, commands: Any, command: LaunchCommand) -> None:
        """Record a launch of one of these kernels."""
        kernel: PtxKernel = command.kernel
        addresses = ffi.new("uint64_t[]", [piece.buffer.handle.address + piece.offset for piece in command.bindings])
        arena = Arena()
        (gx, gy, gz), (lx, ly, lz) = command.grid, kernel.local
        info = arena.new(
            "VkCuLaunchInfoNVX",
            function=kernel.handle,
            gridDimX=gx, gridDimY=gy, gridDimZ=gz,
            blockDimX=lx, blockDimY=ly, blockDimZ=lz,
            paramCount=len(addresses),
            pParams=arena.keep(ffi.new("void*[]", [addresses + i for i in range(len(addresses))])),
        )  # fmt: skip
        self._launch(commands, info)

    def building(self) -> AbstractContextManager[None]:
        """Let child processes compile while a block runs."""
        return self._writer.hold() if self._writer is not None else nullcontext()

    def hold(self, count: int) -> None:
        """Keep `count` kernels besides those in use."""
        self._kernels.limit(count)

    @property
    def held(self) -> int:
        """Return the number of kernels in use or kept."""
        return len(self._kernels)

    def destroy(self) -> None:
        """Destroy every kernel, and end the processes that compile."""
        for kernel in self._kernels.clear():
            kernel.destroy()
        if self._writer is not None:
            self._writer.close()


def with_ptx(dialect: Dialect) -> Dialect:
    """Return Vulkan's dialect for a device that also runs PTX."""
    from weft.backends.opencl.dialect import OpenCLDialect

    return replace(dialect, also=OpenCLDialect()) if isinstance(dialect, GlslDialect) else dialect


def _writer(physical: Physical) -> PtxWriter | None:
    """Return what compiles for a device; None if pyopencl or NVIDIA's OpenCL driver is missing."""
    try:
        from weft.backends.opencl.ptx_writer import PtxWriter

        return PtxWriter.find(physical.name)
    except (ImportError, WeftError) as e:
        log.debug("kernels for warpgroups are left out on Vulkan: %s", e)
        return None


def _device_key(physical: Physical) -> str:
    return "\n".join(("capability", physical.name, physical.driver))


def _function(device: Any, name: str) -> Any:
    return ffi.cast(f"PFN_{name}", lib.vkGetDeviceProcAddr(device, ffi.new("char[]", name.encode())))
