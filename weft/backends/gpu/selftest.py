"""Which kernels are not to be used on a device? Each kind and family is tested once; its verdict is kept on disk.

A kernel that faults takes all of its process along, so a kind that is new to a device, driver and version of the
kernels is tested in a child process (`selftest_child`). What crashes there, or is wrong, is not used, and reports
say so. `WEFT_SELFTEST` chooses to test in this process, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import weft.ops.gpu
from weft import config
from weft.backends.gpu import special_check
from weft.backends.gpu.builds import thread_count
from weft.core.blame import is_error
from weft.core.registry import registry
from weft.errors import ConfigError, OutOfMemory, WeftError
from weft.kernels.cache import DiskCache
from weft.kernels.special import KernelFamily, SpecialKernel, kernel_families, special_kernels
from weft.kernels.template import writers_hash

if TYPE_CHECKING:
    from weft.backends.gpu.device import GpuDevice
    from weft.backends.gpu.runtime import GpuRuntime

log = logging.getLogger("weft.selftest")

SCHEMA = 1
MODES = ("child", "process", "off")
TIMEOUT = 120.0
"""Seconds for all tests of a child process: compilers of drivers may take long."""
KEPT = 24 * 3600.0
"""Seconds for which it counts that a test did not end: the kernel may be at fault, or a machine that was busy."""
AGAIN = "known from an earlier start, `weft cache clear` has it tested again"


@dataclass(frozen=True)
class Verdict:
    """What the test of one kind found."""

    why: str | None
    """Why it is not to be used, or None."""
    seconds: float = 0.0
    lasting: bool = True
    """Whether it says something of the kernels, and not of this start alone."""
    until: float | None = None
    """The time (seconds since 1970) from which on it is tested again, if it lasts."""


def refused(
    runtime: GpuRuntime, timeout: float | None = None, kinds: Sequence[SpecialKernel] | None = None
) -> list[tuple[SpecialKernel, str]]:
    """Return which kinds are not to be used, each with the reason: of all the device claims to have, or of some."""
    if kinds is None:
        kinds = [kind for kind in special_kernels() if kind.present(runtime.device.caps)]
    found = verdicts(runtime, kinds, timeout)
    return [(kind, why) for kind in kinds if kind.name in found and (why := found[kind.name].why) is not None]


def examine(
    runtime: GpuRuntime, *, families: bool, again: bool = False
) -> list[tuple[SpecialKernel, Verdict]]:
    """Return the verdict on each kind that the device claims to have, and on the families of portable kernels.

    What is wrong is taken from the device's capabilities. With `again`, verdicts of earlier starts do not count.
    """
    device, done = runtime.device, list[tuple[SpecialKernel, Verdict]]()

    def look_at(kinds: Sequence[SpecialKernel]) -> None:
        found = verdicts(runtime, kinds, again=again)
        for kind in kinds:
            verdict = found.get(kind.name)
            if verdict is not None and verdict.why is not None and is_refused(kind, verdict):
                device.caps = kind.disable(device.caps)
            if verdict is not None:
                done.append((kind, verdict))

    known: set[str] = set()
    while kinds := [k for k in special_kernels() if k.name not in known and k.present(device.caps)]:
        # Where a kind is wrong, another one may take its place, and is tested then.
        known.update(kind.name for kind in kinds)
        look_at(kinds)
    if families:
        look_at([family for family in kernel_families() if family.present(device.caps)])
    return done


def verdicts(
    runtime: GpuRuntime, kinds: Sequence[SpecialKernel], timeout: float | None = None, again: bool = False
) -> dict[str, Verdict]:
    """Return the verdict on each kind by name, kept from an earlier start unless `again`; none if tests are off."""
    mode, device = chosen_mode(), runtime.device
    if mode == "off" or not kinds:
        return {}
    cache, keys = DiskCache("selftest"), {kind.name: key_of(kind, device) for kind in kinds}
    found = {}
    if not again:
        found = {kind.name: v for kind in kinds if (v := _stored(cache, keys[kind.name])) is not None}
    new = [kind for kind in kinds if kind.name not in found]
    if new:
        test = tested_here if mode == "process" else _tested_in_children
        for name, verdict in test(runtime, new, TIMEOUT if timeout is None else timeout).items():
            found[name] = verdict
            log.info("self-test of %s, %.2f s: %s", name, verdict.seconds, verdict.why or "right")
            if verdict.lasting:
                cache.put(keys[name], json.dumps(asdict(verdict)).encode())
    return found


def tests_families(runtime: GpuRuntime) -> bool:
    """Tell whether families of portable kernels are tested, if `WEFT_SELFTEST` does not say so.

    Those of a device in software are not: compilers for CPUs may take a minute. Nor are those of a device that this
    program alone knows: children could not open it.
    """
    info = runtime.device.info
    return config.selftest_chosen() or (not info.software and registry.is_known_elsewhere(info.id))


def is_refused(kind: SpecialKernel, verdict: Verdict) -> bool:
    """Tell whether kernels are not to be used: portable ones are where their test could not be made."""
    return verdict.why is not None and (verdict.lasting or not isinstance(kind, KernelFamily))


def told(kind: SpecialKernel, verdict: Verdict) -> str:
    """Return the line of a report about kernels that are wrong, or whose test could not be made."""
    if not is_refused(kind, verdict):
        return f"{kind.title} are used untested: {verdict.why}"
    if not isinstance(kind, KernelFamily):
        return f"{kind.title} are not used: {verdict.why}"
    instead = f"{kind.twin} are" if kind.twin else "nodes that need them go to the next device"
    return f"{kind.title} are not used, {instead}: {verdict.why}"


def chosen_mode() -> str:
    """Return where kinds are tested; ConfigError for what `WEFT_SELFTEST` must not be."""
    mode = config.selftest()
    if mode not in MODES:
        raise ConfigError(f"WEFT_SELFTEST={mode} is not known", fix=f"choose one of {', '.join(MODES)}")
    return mode


def tested_here(runtime: GpuRuntime, kinds: Sequence[SpecialKernel], timeout: float) -> dict[str, Verdict]:
    """Return the verdicts of tests in this process; they end when they end."""
    return {kind.name: verdict(kind, runtime) for kind in kinds}


def _tested_in_children(
    runtime: GpuRuntime, kinds: Sequence[SpecialKernel], timeout: float
) -> Mapping[str, Verdict]:
    from weft.backends.gpu import selftest_child  # late: it is needed once in the life of a driver

    # Each child compiles in threads itself, and holds a context of the driver.
    beside = max(thread_count(runtime.device.caps) // 2, 1)
    return selftest_child.verdicts(runtime.device.info, kinds, timeout, beside)


def verdict(kind: SpecialKernel, runtime: GpuRuntime) -> Verdict:
    """Return the verdict of a test in this process; whatever the test raises is one."""
    begun, lasting = time.perf_counter(), True
    try:
        why = special_check.check(kind, runtime, special_kernels())
    except OutOfMemory as e:
        why, lasting = f"its test found no memory: {e.what}", False
    except WeftError as e:
        why = f"its test failed: {e.what}"
    except Exception as e:  # of a driver's binding: the kernel is at fault for all we know
        if not is_error(e):
            raise
        why = f"its test failed: {type(e).__name__}: {e}"
    return Verdict(why, time.perf_counter() - begun, lasting)


def _stored(cache: DiskCache, key: str) -> Verdict | None:
    try:
        held = Verdict(**json.loads(cache.get(key) or b"{}"))
    except (TypeError, ValueError):
        return None
    if held.until is not None and time.time() >= held.until:
        return None
    return held if held.why is None else Verdict(f"{held.why} ({AGAIN})")


def key_of(kind: SpecialKernel, device: GpuDevice) -> str:
    """Return what a verdict is kept under: all that decides which kernels run, and who compiles and runs them."""
    info = device.info
    caps = replace(device.caps, without=tuple(sorted(device.caps.without)))  # type: ignore[arg-type]  # a set has no order
    decides = (info.id, info.name, info.driver, repr(caps), writers_hash(device.dialect), _code(kind.module))
    return json.dumps((SCHEMA, kind.name, *decides))


@lru_cache(maxsize=16)
def _code(module: str) -> str:
    """Return the hash of the modules that choose launches, and of the one that registers a kind."""
    own = getattr(sys.modules.get(module), "__file__", None)
    hashed = _launchers().copy()
    if own:
        hashed.update(Path(own).read_bytes())
    return hashed.hexdigest()


@lru_cache(maxsize=1)
def _launchers() -> hashlib.blake2b:
    """Return the hash so far of the modules that choose launches: every kind's goes on from there."""
    hashed = hashlib.blake2b(digest_size=16)
    for folder in (Path(__file__).parent, Path(weft.ops.gpu.__file__).parent):
        for file in sorted(folder.glob("*.py")):
            hashed.update(file.read_bytes())
    return hashed
