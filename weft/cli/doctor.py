"""`weft doctor`: whether everything is there, and whether each device computes the right thing."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import typer

import weft
from weft import config
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.tuning import rate_store
from weft.backends.vulkan import glslang
from weft.backends.vulkan.spirv import shipped
from weft.cli.command import FOUND_WRONG
from weft.cli.console import line, plain, table, working
from weft.cli.devices import device_name
from weft.cli.json_output import JsonOption, answer
from weft.cli.options import BackendPathOption
from weft.cli.probe import told_rates
from weft.cli.trial_run import trial_run
from weft.core.contract.backend import DeviceInfo
from weft.core.host.disk_cache import advice, folders_refused
from weft.core.registry.backend_registry import registry
from weft.core.registry.entries import WEFT
from weft.core.registry.front_ends import front_ends
from weft.core.registry.probe import present
from weft.errors import Reason, UnsupportedOps, WeftError

PASS, FAIL, ABSENT = "PASS", "FAIL", "absent"
TOLERANCE = 1e-4
_SHADER = "#version 450\nlayout(local_size_x = 1) in;\nvoid main() {}\n"
_REQUIRED = ("numpy", "onnx", "mako", "platformdirs")
_OPTIONAL = {
    "pyopencl": "OpenCL: pip install pyopencl",
    "vulkan": "Vulkan: pip install vulkan cffi",
    "pillow": "pictures as inputs: pip install pillow",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: PASS, FAIL or absent (not there to be tried, which is no failure), and what to do."""

    name: str
    status: str
    found: str
    fix: str = ""


def doctor(backend_path: BackendPathOption = None, as_json: JsonOption = None) -> None:
    """Check packages, loaders, drivers, compiler and cache, and run a small network on each device.

    Every failure comes with what to do about it. The exit status is 1 if something that is installed
    does not work; what is not installed is listed and is no failure.
    """
    with working("examining"):
        checks = all_checks()
    counts = Counter(check.status for check in checks)
    answer(as_json, lambda: {"checks": [asdict(c) for c in checks], "counts": counts}, lambda: _print(checks))
    if counts[FAIL]:
        raise typer.Exit(FOUND_WRONG)


def _print(checks: Sequence[Check]) -> None:
    table(("check", "", "found"), [(c.name, c.status, c.found) for c in checks])
    for check in checks:
        if check.fix:
            line(plain(f"{check.name}: {check.fix}"))
    counts = Counter(check.status for check in checks)
    line(", ".join(f"{n} {status}" for status, n in sorted(counts.items())))


def all_checks() -> list[Check]:
    """Return every finding, in the order in which things depend on each other."""
    found = [python_check(), *_packages(), cache_check(), *_backends(), *_cards(), *_pip_driver()]
    found += [*_front_ends(), *_skipped()]
    found += [compiler_check(needed="vulkan" not in registry.absent())]
    for info in registry.devices():
        found += [_device(info), *_kernels(info), *_rates(info)]
    found += [_unusable(info, why) for info, why in registry.unusable()]
    return found


def python_check() -> Check:
    """Return whether this interpreter is one that Weft runs on."""
    here = ".".join(map(str, sys.version_info[:3]))
    fits = sys.version_info >= (3, 10)
    fix = "" if fits else "use Python 3.10 or newer"
    return Check("python", PASS if fits else FAIL, f"{here}, weft {weft.__version__}", fix)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _packages() -> Iterator[Check]:
    for name in _REQUIRED:
        found = _installed(name)
        yield Check(name, PASS if found else FAIL, found or "not installed", "" if found else f"pip install {name}")
    for name, wish in _OPTIONAL.items():
        found = _installed(name)
        yield Check(name, PASS if found else ABSENT, found or "not installed", "" if found else f"for {wish}")


def cache_check() -> Check:
    """Return whether the cache can be written, and what is refused there."""
    folder = config.cache_dir()
    if not config.cache_enabled():
        return Check("cache", ABSENT, "turned off by WEFT_CACHE=0")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refused = folders_refused()
        if refused:
            fix = "remove what is named or make it yours alone (chmod 700), or name another folder in WEFT_CACHE_DIR"
            return Check("cache", FAIL, f"not used: {'; '.join(refused)}", fix)
        with tempfile.TemporaryFile(dir=folder):
            return Check("cache", PASS, str(folder))
    except OSError as e:
        return Check("cache", FAIL, f"{folder} cannot be written: {e.strerror}", advice(e))


def _backends() -> Iterator[Check]:
    packages = {"opencl": "pyopencl", "vulkan": "vulkan"}
    for creator in registry.creators():
        devices, why = present(creator)
        if why is None:
            count = len(devices)
            origin = registry.origins()[creator.id]
            source = "" if origin == WEFT else f", from {origin}"
            yield Check(creator.id, PASS, f"{count} device{'s' if count > 1 else ''}{source}")
            continue
        package = packages.get(creator.id)
        # Where the package is installed, OpenCL or Vulkan is wanted, and a missing driver is a failure.
        wanted = package is not None and _installed(package) is not None
        reason = Reason.of(why)
        yield Check(creator.id, FAIL if wanted else ABSENT, reason.what, reason.fix)


def _cards() -> Iterator[Check]:
    """Yield what is missing of the drivers of cards that are in the machine, and that a GPU backend does not list."""
    for creator in registry.creators():
        for each in creator.unlisted() if isinstance(creator, GpuCreator) else ():
            yield Check(
                f"{each.vendor} in {creator.id}", FAIL if each.broken else ABSENT, each.reason.what, each.reason.fix
            )


def _pip_driver() -> Iterator[Check]:
    """Yield what is wrong with the OpenCL driver that pip installed, if something is."""
    if sys.modules.get("pyopencl") and (problem := import_module("weft.backends.opencl.pip_driver").problem()):
        yield Check("OpenCL from pip", FAIL, problem.what, problem.fix)


def _front_ends() -> Iterator[Check]:
    origins = front_ends.known()
    for each in front_ends.registered():
        origin = "" if origins[each.name] == WEFT else f", from {origins[each.name]}"
        yield Check(f"front end {each.name}", PASS, f"reads {front_ends.reads(each)}{origin}")


def _skipped() -> Iterator[Check]:
    for origin, why in {**registry.failures, **front_ends.failures}.items():
        yield Check(origin, FAIL, why, "mend it, or remove it from the packages or folders that are searched")


def compiler_check(needed: bool) -> Check:
    """Return whether a GLSL compiler works; where Vulkan is `needed`, none and no compiled kernels is a failure."""
    name, count = "GLSL compiler", shipped.count()
    brought = (
        f"this installation brings {count} compiled kernels"
        if count
        else "this installation brings no compiled kernels"
    )
    try:
        compiler = glslang.find_compiler()
        if compiler is not None:
            compiler.compile(_SHADER, "doctor")
            return Check(name, PASS, f"{compiler.description}; {brought}")
    except WeftError as e:
        return Check(name, FAIL, e.what, e.fix)
    if count:
        return Check(name, ABSENT, brought, f"for kernels beyond those: {glslang.advice()}")
    return Check(name, FAIL if needed else ABSENT, f"none; {brought}", f"for Vulkan: {glslang.advice()}")


def _unusable(info: DeviceInfo, why: str) -> Check:
    """Report a device that its driver lists, but that failed when its backend tried it."""
    found = f"{info.name}, {info.driver}: the driver lists it, but it does not work"
    return Check(f"{info.id}:{info.index}", FAIL, found, why)


def _kernels(info: DeviceInfo) -> Iterator[Check]:
    """Yield what the tests of a GPU's kernels found, if the GPU is open."""
    creator = registry.find(info.id)
    if not isinstance(creator, GpuCreator) or not creator.is_open(info.index):
        return
    label, runtime = f"{info.id}:{info.index} kernels", creator.runtime(info.index)
    if not runtime.verdicts.by_name:
        why = "kernels of software devices are tested only on demand" if info.software else "WEFT_SELFTEST says so"
        yield Check(label, ABSENT, f"not tested: {why}", f"`weft selftest -d {device_name(info)}` tests them")
        return
    words = [verdict.word for verdict in runtime.verdicts.by_name.values()]
    right = words.count("right")
    if right == len(words):
        later = ", the others are tested before their first use" if runtime.verdicts.untested else ""
        yield Check(label, PASS, f"{right} families of kernels are right{later}")
        return
    told = "; ".join(runtime.verdicts.notes)
    others = ", ".join(f"{words.count(word)} {word}" for word in ("wrong", "untested") if word in words)
    fix = f"results stay right without them; update the driver, then `weft selftest -d {device_name(info)}`"
    yield Check(label, FAIL, f"{right} families of kernels are right, {others}: {told}", fix)


def _rates(info: DeviceInfo) -> Iterator[Check]:
    """Yield by what the kernels of a GPU are chosen: its own rates, or those of another card."""
    if not isinstance(registry.find(info.id), GpuCreator):
        return
    label, rates = f"{info.id}:{info.index} rates", rate_store.kept(info)
    fix = f"`weft probe -d {device_name(info)}` measures it now"
    if config.measure() == "off":
        yield Check(label, ABSENT, "not used: WEFT_MEASURE says so")
    elif rates is None:
        yield Check(label, ABSENT, "not measured yet: kernels are chosen as for another card", fix)
    else:
        most = ("products", "matrix_products", "memory_bytes", "between_us")
        yield Check(label, PASS, "; ".join(f"{words}: {value}" for words, value in told_rates(rates, most)))


def _device(info: DeviceInfo) -> Check:
    """Run the small network on a device and compare with the CPU."""
    label = f"{info.id}:{info.index}"
    try:
        difference = trial_run(label)
    except UnsupportedOps as e:
        problems = "; ".join(e.problems)
        return Check(label, ABSENT, f"{info.name} does not take the small network, so it was not run: {problems}")
    except WeftError as e:
        return Check(label, FAIL, f"{info.name}: {e.what}", "; ".join(filter(None, (e.why, e.fix))))
    kind = "software" if info.software else "hardware"
    found = f"{info.name}, {info.driver} ({kind}), a small network within {difference:.1e} of the CPU"
    if not difference <= TOLERANCE:
        fix = f"use another device than {device_name(info)}, update its driver, and report this"
        return Check(label, FAIL, found, fix)
    return Check(label, PASS, found)
