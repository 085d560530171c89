"""The PTX that NVIDIA's OpenCL compiler writes: instructions that it does not know, and its form for other APIs.

It compiles for sm_90, which lacks what only sm_90a has (wgmma). A kernel hides such instructions in inline
assembly behind `//@`. The compiler takes that for a comment and copies it into its PTX with the registers filled in.
`uncover` takes the marks away and changes the target; the driver then assembles the text.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile

MARK = "//@"
VERSION = "1"
"""The version of `uncover`, part of the key under which programs are cached."""
_DIRECTIVE = ".target "
_TEXTURES = "texmode_independent"
_SPECIAL = "%envreg"
_WRITTEN_OUT = {
    **dict.fromkeys("012345", "0"), "6": "%nctaid.x", "7": "%nctaid.y", "8": "%nctaid.z",
}
"""What OpenCL's special registers hold: the offsets of groups (0 to 2) and of items (3 to 5), which Weft's launches do
not have, and the number of groups (6 to 8)."""


@dataclass(frozen=True)
class Ptx:
    """A module of PTX: what it is for, and the text around that directive, which is a line of its own."""

    before: str
    target: tuple[str, ...]
    """The architecture, and options."""
    after: str

    @classmethod
    def read(cls, text: str) -> Ptx | None:
        """Return the parts of a text; None if it has no target, or several."""
        lines = text.split("\n")
        found = [n for n, line in enumerate(lines) if line.lstrip().startswith(_DIRECTIVE)]
        if len(found) != 1:
            return None
        (n,) = found
        words = lines[n].strip().removeprefix(_DIRECTIVE).split(",")
        return cls("\n".join([*lines[:n], ""]), tuple(word.strip() for word in words), "\n".join(lines[n + 1 :]))

    @property
    def text(self) -> str:
        """Return the module."""
        return f"{self.before}{_DIRECTIVE}{', '.join(self.target)}\n{self.after}"


def uncover(binary: bytes) -> bytes | None:
    """Return a program's PTX with the hidden instructions uncovered, for sm_90a; None if it is not PTX for sm_90."""
    try:
        found = Ptx.read(binary.rstrip(b"\0").decode("ascii"))
    except UnicodeDecodeError:
        return None
    if found is None or found.target[0] != "sm_90":
        return None
    return replace(found, target=("sm_90a", *found.target[1:]), after=found.after.replace(MARK, "")).text.encode()


def as_cuda(text: str) -> str:
    """Return OpenCL's PTX as CUDA's: what OpenCL's driver would put into special registers is written out.

    ValueError names a register of which it is not known. What is no PTX is returned as it is.
    """
    found = Ptx.read(text)
    if found is None:
        return text
    first, *rest = found.after.split(_SPECIAL)
    pieces = [first]
    for piece in rest:
        number = "".join(takewhile(str.isdigit, piece))
        if number not in _WRITTEN_OUT:
            raise ValueError(f"it reads {_SPECIAL}{number}")
        pieces.append(_WRITTEN_OUT[number] + piece[len(number) :])
    target = tuple(word for word in found.target if word != _TEXTURES)
    return replace(found, target=target, after="".join(pieces)).text


# -- assembled by the library of NVIDIA's driver ----------------------------------------------------------


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
