"""Kernels as PTX, compiled by NVIDIA's OpenCL driver for another API that runs PTX.

Of NVIDIA's drivers that Weft finds without an SDK, only OpenCL's has a compiler from C to PTX. What it writes lies in
the cache of OpenCL's own kernels, so a kernel that both APIs use is compiled once.
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
from weft.backends.opencl.constants import header, late_constants
from weft.backends.opencl.discovery import describe, raw_devices
from weft.backends.opencl.programs import CACHE, Programs, disk_key
from weft.core.host.disk_cache import DiskCache
from weft.kernels.source import KernelSource


class PtxWriter:
    """Compiles for one of NVIDIA's devices. Several threads may use it."""

    def __init__(self, device: Any, index: int) -> None:
        info = describe(device, index)
        forked.guard()
        self._device = device
        self.capability = capability(device)
        self.caps = caps_of(device)
        """What kernels in OpenCL C may rely on."""
        self._disk = DiskCache(CACHE)
        self._lock = threading.Lock()
        self._programs: Programs | None = None
        facts = {"index": index, "name": info.name, "driver": info.driver, "ptx": True}
        self._compilers = Compilers(facts, process_count())

    @classmethod
    def find(cls, name: str) -> PtxWriter | None:
        """Return the writer for NVIDIA's device of this name; None if OpenCL does not list it."""
        for index, device in enumerate(raw_devices()):
            if device.name.strip() == name and capability(device) > (0, 0):
                return cls(device, index)
        return None

    def write(
        self, source: KernelSource, values: Mapping[str, int | float], varying: frozenset[str] = frozenset()
    ) -> bytes:
        """Return the PTX of a kernel with these constants, of which those that vary may be parameters.

        CompileError if the driver refuses it.
        """
        key = disk_key(self._device, source, header(source, values, late_constants(source, varying)))
        found = self._disk.get(key)
        if found is None:
            with self._compilers.compiled(source, values, varying) as done:
                found = (self._disk.get(key) if done else None) or self._programs_here().ptx(source, values, varying)
        return found.rstrip(b"\0")

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
