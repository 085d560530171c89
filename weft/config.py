"""The environment variables that Weft uses, its own and others'; no other module reads the environment.

An empty variable counts as not set, but for those of GPU vendors (`cards`).
An invalid value raises ConfigError where it is used and in `check`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from weft.errors import ConfigError

MOST_PROCESSES = 64
"""The most that `WEFT_BUILD_PROCESSES` may ask for."""
CACHE_MIB, MOST_CACHE_MIB = 1024, 65_536
"""The default and the largest value of `WEFT_CACHE_MIB`."""
MEASURES = ("auto", "now", "off")
"""The values of `WEFT_MEASURE`; the first is the default."""
WAITS = ("auto", "first", "all")
"""The values of `WEFT_WAIT`; the first is the default."""
SELFTESTS = ("auto", "child", "process", "off")
"""The values of `WEFT_SELFTEST`; the first is the default."""
CARDS = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
)
"""The variables of GPU vendors that say which cards a process uses, and how they are numbered."""
_shows_everything = False
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _switch(name: str, default: bool) -> bool:
    given = os.environ.get(name, "")
    if not given:
        return default
    chosen = _WORDS.get(given.strip().lower())
    if chosen is None:
        raise ConfigError(
            f"{name}={given} is neither on nor off",
            where="the environment variables",
            fix=f"set it to 0 or 1 (false or true, no or yes, off or on), or unset {name}",
        )
    return chosen


def check() -> None:
    """Raise ConfigError for the first switch, number or choice that is not valid, whether or not it is used."""
    switches = (
        cache_enabled, tuning_enabled, glsl_compiler_disabled, vulkan_validation, check_passes, full_tracebacks,
    )
    for read in (*switches, build_processes, cache_limit, selftest, measure, wait):
        read()


def cache_dir() -> Path:
    """Return the folder of the disk caches: `WEFT_CACHE_DIR`, or the user's cache folder."""
    given = os.environ.get("WEFT_CACHE_DIR")
    if given:
        return Path(given)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("weft"))


def cache_enabled() -> bool:
    """Tell whether compiled kernels are kept on disk; `WEFT_CACHE=0` turns that off."""
    return _switch("WEFT_CACHE", True)


def tuning_enabled() -> bool:
    """Tell whether the tables of `weft tune` choose kernels; with `WEFT_TUNING=0` the defaults do."""
    return _switch("WEFT_TUNING", True)


def selftest() -> str:
    """Return how devices and kernels are tested, from `WEFT_SELFTEST`, one of `SELFTESTS`.

    auto, the default: in child processes, without the portable kernels of software devices. child and process: all
    kernels of every device, in child processes or in this one. off: not at all.
    """
    return _one_of("WEFT_SELFTEST", SELFTESTS)


def measure() -> str:
    """Return when a new device is measured for estimates of kernels' times, from `WEFT_MEASURE`, one of `MEASURES`.

    auto, the default: once, while it is idle, for later starts. now: before the first load on it. off: never, and what
    was measured before does not count.
    """
    return _one_of("WEFT_MEASURE", MEASURES)


def wait() -> str:
    """Return what `wait="auto"` of `weft.load` means, from `WEFT_WAIT`, one of `WAITS`.

    auto, the default: first on GPUs, all on software devices.
    """
    return _one_of("WEFT_WAIT", WAITS)


def _one_of(name: str, choices: tuple[str, ...]) -> str:
    given = os.environ.get(name, "")
    chosen = given.strip().lower() or choices[0]
    if chosen not in choices:
        raise ConfigError(
            f"{name}={given} is not known",
            where="the environment variables",
            fix=f"choose one of {', '.join(choices)}, or unset it",
        )
    return chosen


def opencl_build_options() -> tuple[str, ...]:
    """Return more options for compilers of OpenCL, from `PYOPENCL_BUILD_OPTIONS`, which pyopencl reads for programs."""
    return tuple(os.environ.get("PYOPENCL_BUILD_OPTIONS", "").split())


def device_profile() -> str:
    """Return the profile that devices pretend to have, from `WEFT_DEVICE_PROFILE`; empty for none."""
    return os.environ.get("WEFT_DEVICE_PROFILE", "").strip()


def cache_limit() -> int:
    """Return the most bytes that blobs may take in the cache on disk, from `WEFT_CACHE_MIB`."""
    fix = "set it to a number of MiB, WEFT_CACHE=0 to keep nothing, or unset it"
    given = _number("WEFT_CACHE_MIB", 1, MOST_CACHE_MIB, "no size of a cache", fix)
    return (CACHE_MIB if given is None else given) << 20


@cache
def cards() -> Mapping[str, str]:
    """Return those of `CARDS` that are set, empty ones too, as they were at the first call: indices must not move."""
    return {name: os.environ[name] for name in CARDS if name in os.environ}


def build_processes() -> int | None:
    """Return how many child processes compile kernels, from `WEFT_BUILD_PROCESSES`; None if it is not set."""
    fix = f"set it to 0 for none or to a number up to {MOST_PROCESSES}, or unset it"
    return _number("WEFT_BUILD_PROCESSES", 0, MOST_PROCESSES, "no number of processes", fix)


def _number(name: str, least: int, most: int, wrong: str, fix: str) -> int | None:
    given = os.environ.get(name)
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 6 and least <= int(given) <= most):
        raise ConfigError(f"{name}={given} is {wrong}", where="the environment variables", fix=fix)
    return int(given)


def environment(**changed: str) -> dict[str, str]:
    """Return the environment for a child process, with some variables changed."""
    return {**os.environ, **changed}


@contextmanager
def replaced(name: str, value: str) -> Iterator[None]:
    """Give a variable that is set another value while a block runs, for a library that reads it when it starts.

    The C library puts the new text in the old one's place, so that its table does not move under another thread.
    """
    before = os.environ[name]
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ[name] = before


def opencl_vendors() -> list[Path]:
    """Return where the user makes the OpenCL loader look for drivers: `OCL_ICD_VENDORS`, `OPENCL_VENDOR_PATH`."""
    given = (os.environ.get(name) for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"))
    return [Path(place) for place in given if place]


def glslang_library() -> str | None:
    """Return the path in `GLSLANG_LIBRARY`, a glslang shared library that compiles Vulkan kernels."""
    return os.environ.get("GLSLANG_LIBRARY") or None


def glsl_compiler_disabled() -> bool:
    """Tell whether `WEFT_NO_COMPILER=1` forbids looking for a GLSL compiler (shipped SPIR-V only)."""
    return _switch("WEFT_NO_COMPILER", False)


def vulkan_validation() -> bool:
    """Tell whether `WEFT_VULKAN_VALIDATION=1` enables the validation layer with synchronization validation."""
    return _switch("WEFT_VULKAN_VALIDATION", False)


def check_passes() -> bool:
    """Tell whether `WEFT_CHECK_PASSES=1` checks every pass against everything that it declares."""
    return _switch("WEFT_CHECK_PASSES", False)


def columns() -> int | None:
    """Return how wide tables may be, from `COLUMNS`; None if it is not set to a number."""
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isascii() and given.isdigit() and int(given) else None


def full_tracebacks() -> bool:
    """Tell whether errors keep the frames of Weft's own code: `WEFT_FULL_TRACEBACKS=1`, or the option `--debug`."""
    return _shows_everything or _switch("WEFT_FULL_TRACEBACKS", False)


@contextmanager
def showing_full_tracebacks() -> Iterator[None]:
    """Let errors keep the frames of Weft's own code in the block."""
    global _shows_everything
    before, _shows_everything = _shows_everything, True
    try:
        yield
    finally:
        _shows_everything = before


def dynamic_backend_paths() -> list[str]:
    """Return the folders in `WEFT_DYNAMIC_BACKEND_PATHS`, in order; colons separate them, on Windows semicolons."""
    given = os.environ.get("WEFT_DYNAMIC_BACKEND_PATHS", "")
    return given.split(os.pathsep) if given else []
