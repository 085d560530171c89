"""The SPIR-V of a kernel: shipped with the package, cached on disk, or compiled now."""

from __future__ import annotations

import logging
import threading
import zipfile
import zlib
from importlib import resources
from pathlib import Path

from weft import config
from weft.backends.vulkan import glslang
from weft.core.host.disk_cache import DiskCache, unseal
from weft.errors import CompileError
from weft.kernels.source import KernelSource

log = logging.getLogger("weft.vulkan")


def shipped_name(digest: str) -> str:
    """Return the name of a kernel's entry in the shipped set."""
    return f"{digest}.sealed"


class ShippedSet:
    """The SPIR-V in the wheel: a zip with one sealed entry per kernel; it may be absent."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._archive: zipfile.ZipFile | None = None
        self._opened = False

    def get(self, digest: str) -> bytes | None:
        """Return the SPIR-V of the kernel with this digest, or None."""
        with self._lock:
            if not self._opened:
                self._opened = True
                self._archive = self._open()
            if self._archive is None:
                return None
            try:
                sealed = self._archive.read(shipped_name(digest))
            except KeyError:
                return None
            except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as e:
                log.warning("the shipped SPIR-V of kernel %s is damaged: %s", digest, e)
                return None
        found = unseal(digest, sealed)
        if found is None:
            log.warning("the shipped SPIR-V of kernel %s is damaged or belongs to another kernel", digest)
        return found

    def count(self) -> int:
        """Return how many kernels there are; a damaged set counts as none."""
        archive = self._open()
        if archive is None:
            return 0
        with archive:
            return len(archive.namelist())

    def _open(self) -> zipfile.ZipFile | None:
        path = self._path or Path(str(resources.files("weft"))) / "spirv.zip"
        try:
            return zipfile.ZipFile(path)
        except FileNotFoundError:
            return None
        except (OSError, zipfile.BadZipFile) as e:
            log.warning("the shipped SPIR-V in %s cannot be read: %s", path, e)
            return None


shipped = ShippedSet()


def has_spirv(source: KernelSource) -> bool:
    """Tell whether the SPIR-V of a kernel is shipped or on disk."""
    path = DiskCache("spirv").path(_key_of(source))
    return (path is not None and path.exists()) or shipped.get(source.digest) is not None


def _key_of(source: KernelSource) -> str:
    return f"{source.digest} {glslang.TOOLCHAIN}"


def spirv_for(source: KernelSource, *, anew: bool = False) -> bytes:
    """Return the SPIR-V of a rendered kernel; CompileError if there is none and none can be compiled.

    The shipped set comes first: it is found by the exact text, is read-only and needs no user's file. With
    `anew`, a driver refused the existing SPIR-V: drop the cached one and compile the kernel again.
    """
    cache = DiskCache("spirv")
    key = _key_of(source)
    if anew:
        cache.discard(key)
    else:
        found = shipped.get(source.digest) or cache.get(key)
        if found:
            return found
    compiler = glslang.find_compiler()
    if compiler is None:
        looked = "the driver refused the existing one" if anew else "it is not among the shipped kernels"
        raise CompileError(
            f"kernel {source.entry} needs a GLSL compiler and there is none",
            where=f"the SPIR-V of kernel {source.entry} ({source.digest})",
            why=f"{looked}, not in the disk cache, and no compiler was found"
            + (" (WEFT_NO_COMPILER=1 forbids looking for one)" if config.glsl_compiler_disabled() else ""),
            fix=glslang.advice(),
        )
    spirv = compiler.compile(source.text, source.entry)
    cache.put(key, spirv)
    return spirv
