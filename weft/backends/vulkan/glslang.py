"""GLSL to SPIR-V: finds a compiler on this machine and runs it.

Three are known, in this order: the shared library that `GLSLANG_LIBRARY` names, the one in an installed
`slangpy` (found without importing it), and `glslangValidator` or `glslc` on the PATH. All compile to
SPIR-V 1.3, which every Vulkan 1.1 driver accepts, except kernels with extensions that require a later version.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from weft import config
from weft.backends.vulkan.exact_arithmetic import with_exact_arithmetic
from weft.core.host.background import aside
from weft.errors import ConfigError
from weft.kernels.compile_error import kernel_refused

TOOLCHAIN = "vulkan1.1-spirv1.3-2"
"""Names what is requested of every compiler, and done to its output; part of the key of that in the disk cache."""

SPIRV_MAGIC = b"\x03\x02\x23\x07"
INSTALL_HINT = (
    "install one of: `pip install slangpy` (it brings glslang); set GLSLANG_LIBRARY to a "
    "libslang-glslang shared library; `apt install glslang-tools` (or glslc), so that it is on the PATH"
)
LEAST_VERSION = 310
"""The first version of GLSL, that for OpenGL ES, that knows compute shaders."""
_BEFORE = re.compile(r"\A(?:\s|//[^\n]*(?:\n|$)|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)*")
"""What may stand before the line that names the version: white space and comments."""
_VERSION = re.compile(r"#[ \t]*version[ \t]+(\d{3,9})\b")
_COMPUTE_STAGE = 6
_COMPILING = threading.Lock()
"""Held while the library compiles. It keeps global state, and several threads may open it at once."""
_NEWER = "#extension GL_NV_cooperative_matrix2"
"""The extension that requires SPIR-V 1.6, that is Vulkan 1.3; drivers with the extension support it."""
_Output = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t, ctypes.c_void_p)


class Compiler(ABC):
    """Compiles the text of a compute shader into SPIR-V."""

    description: str

    @abstractmethod
    def translate(self, text: str, name: str) -> tuple[bytes, str]:
        """Return the SPIR-V (empty on failure) and the compiler's log."""

    def compile(self, text: str, name: str) -> bytes:
        """Return the SPIR-V of `text`, made exact; CompileError shows the log and names a file with the source."""
        spirv, log = self.translate(text, name)
        if not spirv.startswith(SPIRV_MAGIC):
            raise kernel_refused(name, text, log, where=self.description, suffix=".comp")
        return with_exact_arithmetic(spirv)


class _Request(ctypes.Structure):
    """The request of the C entry point `glslang_compile_1_2`."""

    _fields_ = [
        ("size_in_bytes", ctypes.c_size_t),
        ("source_path", ctypes.c_char_p),
        ("input_begin", ctypes.c_void_p),
        ("input_end", ctypes.c_void_p),
        ("diagnostic", _Output),
        ("diagnostic_user", ctypes.c_void_p),
        ("output", _Output),
        ("output_user", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("action", ctypes.c_uint),
        ("optimization", ctypes.c_uint),
        ("debug_info", ctypes.c_uint),
        ("target", ctypes.c_char_p),
        ("spirv_version", ctypes.c_int * 3),
        ("entry_point", ctypes.c_char_p),
    ]


class _Received:
    """Collects what the library passes to its callback, and any exception there, since ctypes drops it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.error: BaseException | None = None
        self.callback = _Output(self._take)

    def _take(self, data: Any, size: int, user: Any) -> None:
        try:
            self.data.extend(ctypes.string_at(data, size))
        except BaseException as e:  # the caller raises it
            self.error = self.error or e


class LibraryCompiler(Compiler):
    """A glslang shared library in this process; a small kernel takes 1-2 ms."""

    def __init__(self, path: str) -> None:
        self.description = f"glslang library {path}"
        try:
            self._function = ctypes.CDLL(path).glslang_compile_1_2
        except (OSError, AttributeError) as e:
            raise ConfigError(
                "the glslang library cannot be used",
                where=path,
                why=str(e),
                fix="point GLSLANG_LIBRARY to a libslang-glslang shared library, or unset it",
            ) from None
        self._function.restype = ctypes.c_int
        self._function.argtypes = [ctypes.POINTER(_Request)]

    def translate(self, text: str, name: str) -> tuple[bytes, str]:
        """Compile in this process, one call at a time, because glslang keeps global state.

        It never runs in the main thread: an exception of a signal handler would be raised in a callback, and lost. The
        library does not see a text without a version: it would print all of its built-in functions to stdout.
        """
        start = _BEFORE.sub("", text, count=1)
        version = _VERSION.match(start)
        if version is None or int(version[1]) < LEAST_VERSION:
            first = start.partition("\n")[0]
            return b"", f"error: #version of {LEAST_VERSION} or later has to come first, not {first!r}"
        return aside(partial(self._translate, text, name))

    def _translate(self, text: str, name: str) -> tuple[bytes, str]:
        spirv, log = _Received(), _Received()
        source = ctypes.create_string_buffer(text.encode())
        request = _Request(
            size_in_bytes=ctypes.sizeof(_Request),
            source_path=name.encode(),
            input_begin=ctypes.addressof(source),
            input_end=ctypes.addressof(source) + len(source) - 1,
            diagnostic=log.callback,
            output=spirv.callback,
            stage=_COMPUTE_STAGE,
            optimization=0,
            spirv_version=(1, 6, 0) if _NEWER in text else (1, 3, 0),
            entry_point=b"main",
        )
        with _COMPILING:
            status = self._function(ctypes.byref(request))
        for each in (spirv, log):
            if each.error is not None:
                raise each.error
        return (bytes(spirv.data) if status == 0 else b""), log.data.decode(errors="replace")


class CommandCompiler(Compiler):
    """A program on the PATH, run once for each kernel."""

    def __init__(self, program: str, *options: str) -> None:
        self.description = program
        self._command = (program, *options)

    def translate(self, text: str, name: str) -> tuple[bytes, str]:
        """Run the program on a temporary file."""
        version = "vulkan1.3" if _NEWER in text else "vulkan1.1"
        command = [part.replace("vulkan1.1", version) for part in self._command]
        with tempfile.TemporaryDirectory(prefix="weft-") as folder:
            source = Path(folder) / "kernel.comp"
            target = Path(folder) / "kernel.spv"
            source.write_text(text, encoding="utf-8")
            try:
                done = subprocess.run(
                    [*command, "-o", str(target), str(source)],
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as e:
                return b"", str(e)
            log = (done.stdout + done.stderr).replace(str(source), name)
            return (target.read_bytes() if done.returncode == 0 and target.exists() else b""), log


def _slangpy_library() -> str | None:
    """Return the glslang library of an installed slangpy; importing slangpy would cost 0.4 s and load a GPU stack."""
    try:
        spec = importlib.util.find_spec("slangpy")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in ("libslang-glslang*.so*", "slang-glslang*.dll", "libslang-glslang*.dylib"):
            for path in sorted(Path(folder).glob(pattern)):
                return str(path)
    return None


@lru_cache(maxsize=8)
def _library(path: str) -> LibraryCompiler:
    return LibraryCompiler(path)


def advice() -> str:
    """Return what to do if `find_compiler` finds none."""
    if config.glsl_compiler_disabled():
        return f"unset WEFT_NO_COMPILER; if there is still no compiler, {INSTALL_HINT}"
    return INSTALL_HINT


def find_compiler() -> Compiler | None:
    """Return the best compiler on this machine, or None if there is none or `WEFT_NO_COMPILER=1`."""
    if config.glsl_compiler_disabled():
        return None
    named = config.glslang_library()
    if named:
        return _library(named)
    inside = _slangpy_library()
    if inside:
        try:
            return _library(inside)
        except ConfigError:
            pass  # this slangpy lacks the entry point: try the programs
    validator = shutil.which("glslangValidator")
    if validator:
        return CommandCompiler(validator, "-V", "--target-env", "vulkan1.1", "-S", "comp")
    glslc = shutil.which("glslc")
    if glslc:
        return CommandCompiler(glslc, "--target-env=vulkan1.1", "-fshader-stage=compute")
    return None
