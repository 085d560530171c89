"""Kernels compiled by NVIDIA's OpenCL driver for another API that runs PTX.

Of NVIDIA's drivers that Weft finds without an SDK, only OpenCL's has a compiler from C to PTX. The PTX lies in the
cache of OpenCL's own kernels, so a kernel that both APIs use is compiled once. It is assembled here, where the driver
has the library for that; else the other API's driver does it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyopencl as cl

from weft.backends.opencl import forked
from weft.backends.opencl.capabilities import capability, caps_of
from weft.backends.opencl.compilers import Compilers, process_count
from weft.backends.opencl.discovery import describe, raw_devices
from weft.backends.opencl.programs import Programs
from weft.backends.opencl.ptx import as_cuda, assembled
from weft.backends.opencl.ptx_cache import CACHE, key_of
from weft.core.host.disk_cache import DiskCache
from weft.errors import CompileError
from weft.kernels.source import KernelSource


def write_for(
    device: tuple[str, str], programs: Programs, source: KernelSource, values: Mapping[str, int | float],
    varying: frozenset[str] = frozenset(),
) -> bytes:
    """Return what `PtxWriter.write` does, compiled in this process, and keep it on disk."""
    text = programs.ptx(source, values, varying).rstrip(b"\0")
    try:
        # Each byte is a character: a binary that is no text goes to the other driver as it is, which then says so.
        cuda = as_cuda(text.decode("latin-1")).encode("latin-1")
    except ValueError as e:
        raise CompileError(
            f"the PTX of kernel {source.entry} is of no use to other APIs than OpenCL",
            where=", ".join(device),
            why=str(e),
            fix="load with the option vulkan.ptx=no, and report this with the version of the driver",
        ) from e
    code = assembled(cuda) or cuda
    DiskCache(CACHE).put(key_of(device, source, values, varying), code)
    return code


class PtxWriter:
    """Compiles for one of NVIDIA's devices. Several threads may use it."""

    def __init__(self, device: Any, index: int, known_as: tuple[str, str]) -> None:
        """Prepare for OpenCL's device, which the other API knows by this name and driver."""
        info = describe(device, index)
        forked.guard()
        self._device, self._known_as = device, known_as
        self.capability = capability(device)
        self.caps = caps_of(device)
        """What kernels in OpenCL C may rely on."""
        self._disk = DiskCache(CACHE)
        self._lock = threading.Lock()
        self._programs: Programs | None = None
        facts = {"index": index, "name": info.name, "driver": info.driver, "known_as": known_as}
        self._compilers = Compilers(facts, process_count())

    @classmethod
    def find(cls, name: str, driver: str) -> PtxWriter | None:
        """Return the writer for NVIDIA's device of this name; None if OpenCL does not list it.

        `driver` is the other API's, for which it writes.
        """
        for index, device in enumerate(raw_devices()):
            if device.name.strip() == name and capability(device) > (0, 0):
                return cls(device, index, (name, driver))
        return None

    def write(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str] = frozenset()
    ) -> bytes:
        """Return a kernel with these constants, of which those that vary may be parameters: a cubin, or PTX as text.

        CompileError if the driver refuses it.
        """
        with self._compilers.compiled(source, values, varying) as done:
            code = self._disk.get(key_of(self._known_as, source, values, varying)) if done else None
            return code or write_for(self._known_as, self._programs_here(), source, values, varying)

    def _programs_here(self) -> Programs:
        """Return kernels of a context in this process, which takes half a second and device memory: for a few."""
        with self._lock:
            if self._programs is None:
                self._programs = Programs(cl.Context([self._device]), self._device)
            return self._programs

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let child processes compile, and keep them and what this process opened, while a block runs."""
        try:
            with self._compilers.hold():
                yield
        finally:
            self._forget_programs()

    def expect(self) -> None:
        """Start the processes that compile, which takes a second or two."""
        self._compilers.expect()

    def close(self) -> None:
        """End the child processes, and forget the context."""
        self._compilers.close()
        self._forget_programs()

    def _forget_programs(self) -> None:
        with self._lock:
            self._programs = None
