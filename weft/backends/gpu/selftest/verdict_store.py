"""Verdicts on kernels: each kind and family is tested once on a device, and its verdict is kept on disk.

A kernel that crashes ends its process. So a kind that is new to a device, driver and version of the kernels is tested
in a child process (`weft.backends.gpu.selftest.child`), before a network first uses it. A kind that crashes or is wrong
is not used, and reports say so. `WEFT_SELFTEST` chooses to test in this process, or not at all.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import weft.backends.gpu
import weft.kernels
import weft.ops
from weft import config
from weft.backends.gpu.device.device import GpuDevice
from weft.backends.gpu.runtime import GpuRuntime
from weft.core.contract.error_context import is_error
from weft.core.host.disk_cache import DiskCache, hash_of
from weft.core.registry.backend_registry import registry
from weft.errors import CompileError, OutOfMemory, WeftError
from weft.kernels.special import SpecialKernel, kernel_families, special_kernels
from weft.kernels.template import writers_hash
from weft.kernels.verdict import Verdict, is_refused, told

log = logging.getLogger("weft.selftest")

SCHEMA = 2
TIMEOUT = 120.0
"""Seconds for all tests of a child process: drivers' compilers may take long."""
KEPT = 24 * 3600.0
"""Seconds for which a verdict is kept if the test did not end, or the device refused it or was lost during it.

The kernel may be at fault, or a busy machine. Verdicts of wrong numbers, crashes and compile errors do not expire.
"""
MOST_CHILDREN = 8
"""Most child processes side by side: each opens the device, which takes device memory and a second or more."""
AGAIN = "known from an earlier start, `weft cache clear` has it tested again"


def recall(runtime: GpuRuntime) -> None:
    """Apply what earlier starts found on a device's kernels; the others are tested before their first use.

    In this process all are tested now: a test changes the device's capabilities, which sessions must not see.
    """
    if not runtime.verdicts.recalled:
        runtime.verdicts.verify = verify
        templates = None if config.selftest() == "process" else ()
        while verify(runtime, templates):  # verdicts lie under the capabilities that tests found
            pass


def verify(runtime: GpuRuntime, templates: Collection[str] | None = None) -> bool:
    """Have kernels tested before these templates are launched, by default all; wrong ones are not used.

    Return whether the device can do less than it said before.
    """
    held, device = runtime.verdicts, runtime.device
    with held.finding:
        if held.known:
            return False
        begun, before, notes = time.perf_counter(), device.caps, list[str]()
        families = tests_families(runtime)
        for kind, verdict in examine(runtime, families=families, templates=templates, known=held.by_name):
            held.by_name[kind.name] = verdict
            if verdict.why is not None:
                notes.append(told(kind, verdict))
        held.notes += notes
        runtime.notes += notes
        held.seconds += time.perf_counter() - begun
        kinds = [*special_kernels(), *(kernel_families() if families else ())]
        left = [kind for kind in kinds if kind.name not in held.by_name and kind.present(device.caps)]
        held.known = templates is None or not left or config.selftest() == "off"
        held.leave(() if held.known else left)
        return device.caps != before


def examine(
    runtime: GpuRuntime, *, families: bool, again: bool = False, templates: Collection[str] | None = None,
    known: Collection[str] = (),
) -> list[tuple[SpecialKernel, Verdict]]:
    """Return the verdict on each kind that the device claims to have, and on the families of portable kernels.

    Wrong kinds are removed from the device's capabilities. With `again`, kept verdicts do not count. With `templates`,
    only kinds that concern these are tested, and the others are left out unless a verdict was kept. `known` are names
    that are left out, too.
    """
    device, done, known = runtime.device, list[tuple[SpecialKernel, Verdict]](), set(known)
    # Families are tested in the same children as special kinds: opening a device takes longer than most tests.
    portable = kernel_families() if families else []
    portable = [family for family in portable if family.name not in known and family.present(device.caps)]
    while kinds := [*(k for k in special_kernels() if k.name not in known and k.present(device.caps)), *portable]:
        # If a kind is wrong, another kind may replace it: test that in the next turn.
        known.update(kind.name for kind in kinds)
        found, portable = verdicts(runtime, kinds, again=again, templates=templates), []
        for kind in kinds:
            verdict = found.get(kind.name)
            if verdict is not None and is_refused(kind, verdict):
                device.caps = kind.disable(device.caps)
            if verdict is not None:
                done.append((kind, verdict))
    return done


def verdicts(
    runtime: GpuRuntime, kinds: Sequence[SpecialKernel], timeout: float | None = None, again: bool = False,
    templates: Collection[str] | None = None,
) -> dict[str, Verdict]:
    """Return the verdict on each kind by name, kept from an earlier start unless `again`; none if tests are off.

    With `templates`, only kinds that concern these are tested.
    """
    mode, device = config.selftest(), runtime.device
    if mode == "off" or not kinds:
        return {}
    cache, key = DiskCache("selftest"), key_of(device)

    def read() -> dict[str, Verdict]:
        kept = {} if again else _kept(cache, key)
        return {kind.name: held for kind in kinds if (held := _held(kind, kept.get(kind.name))) is not None}

    def missing() -> list[SpecialKernel]:
        return [k for k in kinds if k.name not in found and (templates is None or k.concerns(templates))]

    found = read()
    # Programs that start at once would all test, on a device that is then too busy to end a test in time. So one after
    # the other has its turn, and finds what those before it have found. If one hangs, the others do not wait for it.
    while missing():
        before = _kept(cache, key)
        with cache.turn(TIMEOUT) as alone:
            found = read()
            new = missing()
            if new and (alone or _kept(cache, key) == before):
                test = tested_here if mode == "process" else _tested_in_children
                made = test(runtime, new, TIMEOUT if timeout is None else timeout)
                _keep(cache, key, new, made)
                return {**found, **made}
    return found


def _keep(cache: DiskCache, key: str, kinds: Sequence[SpecialKernel], made: Mapping[str, Verdict]) -> None:
    """Keep new verdicts for later starts, beside those that other processes wrote meanwhile."""
    for name, verdict in made.items():
        log.info("self-test of %s, %.2f s: %s", name, verdict.seconds, verdict.why or "right")
    lasting = {
        kind.name: {"code": _code(kind.module), **asdict(made[kind.name])}
        for kind in kinds
        if kind.name in made and made[kind.name].lasting
    }
    if lasting:
        cache.put(key, json.dumps({**_kept(cache, key), **lasting}).encode())


def tests_families(runtime: GpuRuntime) -> bool:
    """Tell whether families of portable kernels are tested on a device.

    If `WEFT_SELFTEST` is auto, they are not tested on software devices, where compilers may take a minute, and on
    devices that only this program knows, because child processes could not open them. General kernels are used
    untested, until the tests of those that replace them are done.
    """
    info, mode = runtime.device.info, config.selftest()
    if mode == "off" or runtime.general:
        return False
    return mode != "auto" or (not info.software and registry.is_known_elsewhere(info.id))


def tested_here(runtime: GpuRuntime, kinds: Sequence[SpecialKernel], timeout: float) -> dict[str, Verdict]:
    """Return the verdicts of tests in this process, which have no timeout."""
    return {kind.name: verdict(kind, runtime) for kind in kinds}


def _tested_in_children(
    runtime: GpuRuntime, kinds: Sequence[SpecialKernel], timeout: float
) -> Mapping[str, Verdict]:
    from weft.backends.gpu.selftest import child  # late: it is needed once for each driver

    # Each child compiles in threads itself; a CPU's compiler has the cores to itself already.
    cores = 1 if runtime.device.caps.software else os.cpu_count() or 1
    beside = min(MOST_CHILDREN, max(cores // 2, 1))
    device = runtime.device
    return child.verdicts(device.info, kinds, timeout, beside, device.expect_building, runtime.options)


def verdict(kind: SpecialKernel, runtime: GpuRuntime) -> Verdict:
    """Return the verdict of a test in this process; an exception of the test gives a verdict, too."""
    from weft.backends.gpu.selftest import value_check  # late: most starts know all verdicts

    begun, lasting, ran, until = time.perf_counter(), True, True, None
    try:
        why = value_check.check(kind, runtime, special_kernels())
    except value_check.NotRun as e:
        why, ran = e.what, False
    except OutOfMemory as e:
        why, lasting = f"its test found no memory: {e.what}", False
    except CompileError as e:
        why = f"its test failed: {e.what}"
    except Exception as e:  # of the device or its driver's binding: maybe the kernel's fault, maybe a passing one
        if not is_error(e):
            raise
        said = e.what if isinstance(e, WeftError) else f"{type(e).__name__}: {e}"
        why, until = f"its test failed: {said}", time.time() + KEPT
    return Verdict(why, time.perf_counter() - begun, lasting, until, ran)


def _kept(cache: DiskCache, key: str) -> dict[str, Any]:
    """Return the kept verdicts of a device by name, each with the hash of its code."""
    try:
        kept = json.loads(cache.get(key) or b"{}")
    except ValueError:
        return {}
    return kept if isinstance(kept, dict) else {}


def _held(kind: SpecialKernel, entry: Any) -> Verdict | None:
    """Return the verdict of an entry, unless it is of other code or has expired."""
    try:
        code, held = entry["code"], Verdict(**{name: value for name, value in entry.items() if name != "code"})
    except (AttributeError, KeyError, TypeError):
        return None
    if code != _code(kind.module) or (held.until is not None and time.time() >= held.until):
        return None
    return held if held.why is None else replace(held, why=f"{held.why} ({AGAIN})")


def key_of(device: GpuDevice) -> str:
    """Return the key of a device's verdicts: everything that decides which kernels run, and what compiles them."""
    info = device.info
    caps = replace(device.caps, without=tuple(sorted(device.caps.without)))  # type: ignore[arg-type]  # a set has no order
    decides = (info.id, info.name, info.driver, repr(caps), writers_hash(device.dialect), _launchers())
    return json.dumps((SCHEMA, *decides))


@lru_cache(maxsize=64)
def _code(module: str) -> str:
    """Return the hash of the module that registers a kind: a user's module is not among the launchers."""
    own = getattr(sys.modules.get(module), "__file__", None)
    return hash_of([Path(own)] if own else [])


def launching_modules() -> list[Path]:
    """Return the files of all modules that choose launches or define what they compute."""
    folders = (Path(folder) for package in (weft.backends.gpu, weft.kernels, weft.ops) for folder in package.__path__)
    return [file for folder in folders for file in sorted(folder.rglob("*.py"))]


@lru_cache(maxsize=1)
def _launchers() -> str:
    """Return the hash of all `launching_modules`."""
    return hash_of(launching_modules())
