"""What all tests share: a private cache, the validation layer, the devices that must be there, and what is long.

A device that is missing fails the run before any test, because a skipped test looks like one that passed.
The environment is set before weft is imported; processes that tests start inherit it. Tests marked `long` run with
`--all` only: they repeat on more sizes, devices or examples what the others already show.
"""

from __future__ import annotations

import gc
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.run_length import OP_VARIABLE, VARIABLE, covering, is_long

if TYPE_CHECKING:
    from tests.helpers.warm_python import WarmPython

ROOT = Path(__file__).parents[1]
REQUIRED = {
    "opencl": "pip install pyopencl intel-opencl-rt intel-cmplr-lib-rt; apt install pocl-opencl-icd",
    "vulkan": "apt install mesa-vulkan-drivers vulkan-validationlayers && pip install vulkan",
}
OPENCL_DRIVERS = 2 if platform.machine() == "x86_64" else 1
"""How many OpenCL drivers the tests need: two of different vendors, where PyPI has one for the CPU."""
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
QUICK_DRIVERS = {"GALLIVM_PERF": "nopt", "PYOPENCL_BUILD_OPTIONS": "-cl-opt-disable"}
"""Have llvmpipe and OpenCL compile without optimising, in half the time or less: most kernels run once."""
QUICK_NUMPY = {"OPENBLAS_NUM_THREADS": "1"}
"""Have numpy multiply matrices in one thread: another waits for work by spinning, on a core that other tests need."""

GARBAGE = 20_000
"""How many new objects the collector waits for, where Python's default of 700 has it run ten thousand times."""

_modules = count()

os.environ.pop("COLUMNS", None)  # pytest-xdist tells its workers how wide their terminal is
if not IS_WORKER:
    # Programs that tests start have the kit of this tree, whatever is installed.
    searched = (str(ROOT), str(ROOT / "packages" / "conformance"), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, searched))
    os.environ["WEFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="weft-test-cache-")
    os.environ["WEFT_VULKAN_VALIDATION"] = "1"
    os.environ["WEFT_CHECK_PASSES"] = "1"
    os.environ["WEFT_MEASURE"] = "off"
    os.environ["WEFT_WAIT"] = "all"  # many tests look at the kernels of cards that are not there
    for unwanted in ("WEFT_CACHE", "WEFT_DYNAMIC_BACKEND_PATHS", "WEFT_NO_COMPILER", "WEFT_SELFTEST"):
        os.environ.pop(unwanted, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the long run, and of the rows of one op."""
    parser.addoption("--all", action="store_true", help="run the long tests as well, and let llvmpipe optimise")
    parser.addoption("--op", default="", help="run only rows of the op table, of ops with this in their names")


def pytest_configure(config: pytest.Config) -> None:
    """Tell tests how long the run is, llvmpipe how to compile, and numpy, not yet imported, how many threads it has."""
    if IS_WORKER:
        return
    os.environ[OP_VARIABLE] = config.getoption("op")
    if config.getoption("all"):
        os.environ[VARIABLE] = "1"
        return
    os.environ.pop(VARIABLE, None)
    for name, value in {**QUICK_DRIVERS, **QUICK_NUMPY}.items():
        os.environ.setdefault(name, value)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the long run what is long or `alike` on Vulkan, and rows marked `covering` that the others cover.

    The tests of the whole package come first.
    """
    # Whole suites and long tests lie beside this file: begun last, they would run alone; on one worker they share more.
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)
    if config.getoption("op"):
        others = [item for item in items if not _has_rows(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    if config.getoption("all"):
        return
    long = {item for item in items if item.get_closest_marker("long") or _is_left_to_opencl(item)}
    products: dict[tuple[Path, str], list[pytest.Function]] = {}
    for item in items:
        if item not in long and isinstance(item, pytest.Function) and item.get_closest_marker("covering"):
            products.setdefault((item.path, item.originalname), []).append(item)
    for rows in products.values():
        mark = rows[0].get_closest_marker("covering")
        assert mark is not None
        values = [{name: repr(value) for name, value in row.callspec.params.items()} for row in rows]
        chosen = covering(values, *mark.args)
        long |= {row for place, row in enumerate(rows) if place not in chosen}
    if long:
        config.hook.pytest_deselected(items=[item for item in items if item in long])
        items[:] = [item for item in items if item not in long]


def _is_left_to_opencl(item: pytest.Item) -> bool:
    """Tell whether a row on Vulkan is of a test marked `alike`: llvmpipe takes seconds to compile its kernels."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return item.get_closest_marker("alike") is not None and "vulkan" in map(str, params.values())


def _has_rows(item: pytest.Item) -> bool:
    """Tell whether a test runs a family of rows (`tests.helpers.rows_together`) that has some left."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return isinstance(params.get("family"), str)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from what collecting tests left: going through it takes half a second each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])


def pytest_sessionstart(session: pytest.Session) -> None:
    """End the run if a device is missing, saying how to get it."""
    if IS_WORKER:
        return
    import weft

    absent = {name: why for name, why in weft.registry.absent().items() if name in REQUIRED}
    drivers = sorted({str(d.details["platform"]) for d in weft.devices() if d.id == "opencl"})
    if "opencl" not in absent and len(drivers) < OPENCL_DRIVERS:
        from weft.backends.opencl.pip_driver import problem

        unusable = [f"{d.driver} is unusable: {why}" for d, why in weft.registry.unusable()]
        alone = f"drivers of two vendors are needed, {' and '.join(drivers)} is there alone"
        absent["opencl"] = "; ".join(filter(None, (alone, problem(), *unusable)))
    if absent:
        lines = [f"{name}: {why}\n  next: {REQUIRED[name]}" for name, why in absent.items()]
        pytest.exit("the tests need these devices (scripts/test installs them):\n" + "\n".join(lines), 1)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the cache of this run."""
    if not IS_WORKER:
        shutil.rmtree(os.environ["WEFT_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def old_objects_apart() -> None:
    """Keep the collector from what earlier modules left alive: many tests collect garbage or count what is alive.

    What four modules have left as garbage is collected once, here, in 30 ms. What has become garbage after that is
    collected at every 48th module: to go through all that is alive takes a fifth of a second.
    """
    number = next(_modules)
    if number % 48 == 0:
        gc.unfreeze()
    if number % 4 == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def decide_anew() -> None:
    """Forget which kernels were chosen: tests change what that rests on."""
    chooser = sys.modules.get("weft.kernels.chooser")
    if chooser is not None:
        chooser.forget_decisions()


@pytest.fixture
def passes_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the short run, believe what each pass returns: for networks that another test has rewritten with checks."""
    if not is_long():
        monkeypatch.delenv("WEFT_CHECK_PASSES", raising=False)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Give what runs programs without the start of Python."""
    from tests.helpers.warm_python import WarmPython

    with WarmPython() as made:
        yield made


@pytest.fixture
def warm_children(warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Weft's own child processes be forks of a warm process."""
    from tests.helpers.warm_python import start_child
    from weft.core.host import child_process

    monkeypatch.setattr(child_process, "start", partial(start_child, warm_python.address))


@pytest.fixture
def sizes_are_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the short run, have Vulkan read sizes when a kernel runs, as for networks that change their shape.

    llvmpipe then compiles a kernel once, and not for each of its sizes.
    """
    if is_long():
        return
    from weft.backends.vulkan.device import VulkanDevice
    from weft.kernels.source import KernelSource

    def compile_for_all(device: VulkanDevice, source: KernelSource, values: Mapping[str, int | float]) -> object:
        return device.compile_for_shapes(source, values, frozenset(values))

    monkeypatch.setattr(VulkanDevice, "compile", compile_for_all)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give Weft's wheel, which pip builds once a run: its kernels take seconds to compile."""
    from tests.helpers.once import once

    def build(folder: Path) -> None:
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
        offline = ("--no-deps", "--no-build-isolation", "--no-index")
        done = subprocess.run([*pip, *offline, "-w", folder, ROOT], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    (made,) = once(tmp_path_factory, "wheel", build).glob("weft-*.whl")
    return made


def _said_by_validation() -> list[str]:
    """Return and forget what the validation layer said; nothing is imported for it."""
    module = sys.modules.get("weft.backends.vulkan.instance")
    if module is None:
        return []
    messages: list[str] = module.validation_messages()
    said = list(messages)
    messages.clear()
    return said


@pytest.fixture(scope="session", autouse=True)
def validation_at_the_end() -> Iterator[None]:
    """Fail the last test if devices that were closed after it broke a rule of Vulkan."""
    yield
    assert _said_by_validation() == []


@pytest.fixture(autouse=True)
def validation_after_each_test() -> Iterator[None]:
    """Fail a test in which Vulkan was used against its rules."""
    yield
    assert _said_by_validation() == []
