"""The environment variables of Weft; no other module reads the environment."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder of the disk caches: `WEFT_CACHE_DIR`, or the user's cache folder."""
    given = os.environ.get("WEFT_CACHE_DIR")
    if given:
        return Path(given)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("weft"))


def cache_enabled() -> bool:
    """Tell whether compiled kernels are kept on disk; `WEFT_CACHE=0` turns that off."""
    return os.environ.get("WEFT_CACHE", "1") != "0"


def tuning_enabled() -> bool:
    """Tell whether kernels are chosen by the tables of `weft tune`; `WEFT_TUNING=0` leaves the defaults."""
    return os.environ.get("WEFT_TUNING", "1") != "0"


def selftest() -> str:
    """Return where kernels for special hardware are tested, from `WEFT_SELFTEST`: child, process or off."""
    return os.environ.get("WEFT_SELFTEST") or "child"


def build_processes() -> str | None:
    """Return how many processes compile kernels beside the program, from `WEFT_BUILD_PROCESSES`; None to choose."""
    return os.environ.get("WEFT_BUILD_PROCESSES") or None


def environment(**changed: str) -> dict[str, str]:
    """Return the environment for a child process, with some variables changed."""
    return {**os.environ, **changed}


def glslang_library() -> str | None:
    """Return the path in `GLSLANG_LIBRARY`: a glslang shared library to compile Vulkan kernels with."""
    return os.environ.get("GLSLANG_LIBRARY") or None


def glsl_compiler_disabled() -> bool:
    """Tell whether `WEFT_NO_COMPILER=1` forbids to look for a GLSL compiler (shipped SPIR-V only)."""
    return os.environ.get("WEFT_NO_COMPILER", "0") == "1"


def vulkan_validation() -> bool:
    """Tell whether `WEFT_VULKAN_VALIDATION=1` asks for the validation layer with synchronization validation."""
    return os.environ.get("WEFT_VULKAN_VALIDATION", "0") == "1"


def dynamic_backend_paths() -> list[str]:
    """Return the folders in `WEFT_DYNAMIC_BACKEND_PATHS`, which colons separate, in their order."""
    given = os.environ.get("WEFT_DYNAMIC_BACKEND_PATHS", "")
    return given.split(":") if given else []
