"""Which kernels are not to be used on a device? Each kind and family is tested once; its verdict is kept on disk.

A kernel that faults takes all of its process along, so a kind that is new to a device, driver and version of the
kernels is tested in a child process (`selftest_child`). What crashes there, or is wrong, is not used, and reports
say so. `WEFT_SELFTEST` chooses to test in this process, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weft.backends.gpu
import weft.kernels
import weft.ops
from weft import config
from weft.backends.gpu.selftest import value_check
from weft.core.contract.error_context import is_error
from weft.core.registry.backend_registry import registry
from weft.errors import CompileError, OutOfMemory, WeftError
from weft.kernels.cache import DiskCache
from weft.kernels.special import KernelFamily, SpecialKernel, kernel_families, special_kernels
from weft.kernels.template import writers_hash

if TYPE_CHECKING:
    from weft.backends.gpu.device.device import GpuDevice
    from weft.backends.gpu.runtime import GpuRuntime

log = logging.getLogger("weft.selftest")

SCHEMA = 2
TIMEOUT = 120.0
"""Seconds for all tests of a child process: compilers of drivers may take long."""
KEPT = 24 * 3600.0
"""Seconds for which it counts that a test did not end, or that the device refused or was lost meanwhile.

The kernel may be at fault, or a machine that was busy. Wrong numbers, crashes and what does not compile count for good.
"""
MOST_CHILDREN = 6
"""Processes that test side by side: each opens the device, which takes memory of it and a second or more."""
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
    ran: bool = True
    """Whether the kernels were tried: else `why` tells what stood in the way, and nothing is known of them."""

    @property
    def word(self) -> str:
        """Return "right", "wrong", or "untested" where something else than the kernels stood in the way."""
        if self.why is None:
            return "right"
        return "wrong" if self.lasting and self.ran else "untested"

    @property
    def is_fault(self) -> bool:
        """Tell whether the test failed; not so one whose cases did not run."""
        return self.why is not None and self.ran


def examine(
    runtime: GpuRuntime, *, families: bool, again: bool = False
) -> list[tuple[SpecialKernel, Verdict]]:
    """Return the verdict on each kind that the device claims to have, and on the families of portable kernels.

    What is wrong is taken from the device's capabilities. With `again`, verdicts of earlier starts do not count.
    """
    device, done, known = runtime.device, list[tuple[SpecialKernel, Verdict]](), set[str]()
    # Portable kernels are tested without the special ones, and so together with them: opening a device takes longer
    # than most tests.
    portable = [family for family in kernel_families() if family.present(device.caps)] if families else []
    while kinds := [*(k for k in special_kernels() if k.name not in known and k.present(device.caps)), *portable]:
        # Where a kind is wrong, another one may take its place, and is tested then.
        known.update(kind.name for kind in kinds)
        found, portable = verdicts(runtime, kinds, again=again), []
        for kind in kinds:
            verdict = found.get(kind.name)
            if verdict is not None and is_refused(kind, verdict):
                device.caps = kind.disable(device.caps)
            if verdict is not None:
                done.append((kind, verdict))
    return done


def verdicts(
    runtime: GpuRuntime, kinds: Sequence[SpecialKernel], timeout: float | None = None, again: bool = False
) -> dict[str, Verdict]:
    """Return the verdict on each kind by name, kept from an earlier start unless `again`; none if tests are off."""
    mode, device = config.selftest(), runtime.device
    if mode == "off" or not kinds:
        return {}
    cache, key = DiskCache("selftest"), key_of(device)
    kept = {} if again else _kept(cache, key)
    found = {kind.name: v for kind in kinds if (v := _held(kind, kept.get(kind.name))) is not None}
    new = [kind for kind in kinds if kind.name not in found]
    if new:
        test = tested_here if mode == "process" else _tested_in_children
        made = test(runtime, new, TIMEOUT if timeout is None else timeout)
        for name, verdict in made.items():
            log.info("self-test of %s, %.2f s: %s", name, verdict.seconds, verdict.why or "right")
        lasting = {
            kind.name: {"code": _code(kind.module), **asdict(made[kind.name])}
            for kind in new
            if kind.name in made and made[kind.name].lasting
        }
        if lasting:
            # What others kept meanwhile stays. Of two processes that write at once one has to test again.
            cache.put(key, json.dumps({**_kept(cache, key), **lasting}).encode())
        found.update(made)
    return found


def tests_families(runtime: GpuRuntime) -> bool:
    """Tell whether families of portable kernels are tested: where `WEFT_SELFTEST` is auto, on some devices alone.

    Those of a device in software are not: compilers for CPUs may take a minute. Nor are those of a device that this
    program alone knows: children could not open it.
    """
    info, mode = runtime.device.info, config.selftest()
    return mode != "off" and (mode != "auto" or (not info.software and registry.is_known_elsewhere(info.id)))


def is_refused(kind: SpecialKernel, verdict: Verdict) -> bool:
    """Tell whether kernels are not to be used: portable ones are where their test could not be made."""
    return verdict.word == "wrong" or (verdict.word == "untested" and not isinstance(kind, KernelFamily))


def told(kind: SpecialKernel, verdict: Verdict) -> str:
    """Return the line of a report about kernels that are wrong, or whose test could not be made."""
    if not is_refused(kind, verdict):
        return f"{kind.title} are used untested: {verdict.why}"
    if not isinstance(kind, KernelFamily):
        return f"{kind.title} are not used: {verdict.why}"
    instead = f"{kind.fallback} are" if kind.fallback else "nodes that need them go to the next device"
    return f"{kind.title} are not used, {instead}: {verdict.why}"


def tested_here(runtime: GpuRuntime, kinds: Sequence[SpecialKernel], timeout: float) -> dict[str, Verdict]:
    """Return the verdicts of tests in this process; they end when they end."""
    return {kind.name: verdict(kind, runtime) for kind in kinds}


def _tested_in_children(
    runtime: GpuRuntime, kinds: Sequence[SpecialKernel], timeout: float
) -> Mapping[str, Verdict]:
    from weft.backends.gpu.selftest import child  # late: it is needed once in the life of a driver

    # Each child compiles in threads itself; a CPU's compiler has the cores to itself already.
    cores = 1 if runtime.device.caps.software else os.cpu_count() or 1
    return child.verdicts(runtime.device.info, kinds, timeout, min(MOST_CHILDREN, max(cores // 2, 1)))


def verdict(kind: SpecialKernel, runtime: GpuRuntime) -> Verdict:
    """Return the verdict of a test in this process; whatever the test raises is one."""
    begun, lasting, ran, until = time.perf_counter(), True, True, None
    try:
        why = value_check.check(kind, runtime, special_kernels())
    except value_check.NotRun as e:
        why, ran = e.what, False
    except OutOfMemory as e:
        why, lasting = f"its test found no memory: {e.what}", False
    except CompileError as e:
        why = f"its test failed: {e.what}"
    except Exception as e:  # of the device or its driver's binding: the kernel is at fault, or a moment was
        if not is_error(e):
            raise
        said = e.what if isinstance(e, WeftError) else f"{type(e).__name__}: {e}"
        why, until = f"its test failed: {said}", time.time() + KEPT
    return Verdict(why, time.perf_counter() - begun, lasting, until, ran)


def _kept(cache: DiskCache, key: str) -> dict[str, Any]:
    """Return what is kept of a device: a verdict by name, with the code that it is of. One file is soon read."""
    try:
        kept = json.loads(cache.get(key) or b"{}")
    except ValueError:
        return {}
    return kept if isinstance(kept, dict) else {}


def _held(kind: SpecialKernel, entry: Any) -> Verdict | None:
    """Return the verdict of an entry, unless it is of other code or its time is over."""
    try:
        code, held = entry["code"], Verdict(**{name: value for name, value in entry.items() if name != "code"})
    except (AttributeError, KeyError, TypeError):
        return None
    if code != _code(kind.module) or (held.until is not None and time.time() >= held.until):
        return None
    return held if held.why is None else replace(held, why=f"{held.why} ({AGAIN})")


def key_of(device: GpuDevice) -> str:
    """Return what verdicts are kept under: all that decides which kernels run, and who compiles and runs them."""
    info = device.info
    caps = replace(device.caps, without=tuple(sorted(device.caps.without)))  # type: ignore[arg-type]  # a set has no order
    decides = (info.id, info.name, info.driver, repr(caps), writers_hash(device.dialect), _launchers())
    return json.dumps((SCHEMA, *decides))


@lru_cache(maxsize=64)
def _code(module: str) -> str:
    """Return the hash of the module that registers a kind: one of a program's own is not among the launchers."""
    own = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.blake2b(Path(own).read_bytes() if own else b"", digest_size=16).hexdigest()


@lru_cache(maxsize=1)
def _launchers() -> str:
    """Return the hash of the modules that choose launches, or say what they compute, wherever they are in a package."""
    hashed = hashlib.blake2b(digest_size=16)
    for package in (weft.backends.gpu, weft.kernels, weft.ops):
        for folder in package.__path__:
            for file in sorted(Path(folder).rglob("*.py")):
                hashed.update(file.read_bytes())
    return hashed.hexdigest()
