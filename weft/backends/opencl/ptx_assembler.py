"""Assembles PTX with the library that NVIDIA's driver brings for that: the PTX Compiler API of CUDA's documentation.

NVIDIA's Vulkan driver assembles PTX as well, but only one kernel at a time: eight large ones took it 3.6 s, and eight
threads with this library 0.7 s (benchmarks/NOTES.md). What this returns it takes in a millisecond.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache

from weft.backends.opencl.ptx import Ptx

log = logging.getLogger("weft.opencl")

LIBRARY = "libnvidia-ptxjitcompiler.so.1"


def assembled(text: bytes) -> bytes | None:
    """Return PTX as a cubin for the device that it names; None if the library is missing or refuses the text.

    Several threads may call it at once.
    """
    library, module = _library(), Ptx.read(text.decode("latin-1"))
    if library is None or module is None:
        return None
    target = module.target[0]
    handle = ctypes.c_void_p()
    if library.nvPTXCompilerCreate(ctypes.byref(handle), ctypes.c_size_t(len(text)), ctypes.c_char_p(text)):
        return None
    try:
        options = (ctypes.c_char_p * 1)(f"--gpu-name={target}".encode())
        size = ctypes.c_size_t()
        if library.nvPTXCompilerCompile(handle, ctypes.c_int(1), options):
            log.info("the driver's library does not assemble a kernel for %s", target)
            return None
        if library.nvPTXCompilerGetCompiledProgramSize(handle, ctypes.byref(size)):
            return None
        code = ctypes.create_string_buffer(size.value)
        return None if library.nvPTXCompilerGetCompiledProgram(handle, code) else code.raw
    finally:
        library.nvPTXCompilerDestroy(ctypes.byref(handle))


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return library if hasattr(library, "nvPTXCompilerCreate") else None
