"""What all tests share: a private cache, the validation layer, the devices that must be there, and what is long.

A device that is missing fails the run before any test, because a skipped test looks like one that passed.
The environment is set before weft is imported; processes that tests start inherit it. Tests marked `long` run with
`--all` only: they repeat on more sizes, devices or examples what the others already show.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.helpers.run_length import VARIABLE

REQUIRED = {
    "opencl": "pip install pyopencl intel-opencl-rt intel-cmplr-lib-rt; apt install pocl-opencl-icd",
    "vulkan": "apt install mesa-vulkan-drivers vulkan-validationlayers && pip install vulkan",
}
OPENCL_DRIVERS = 2 if platform.machine() == "x86_64" else 1
"""How many OpenCL drivers the tests need: two of different vendors, where PyPI has one for the CPU."""
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
QUICK_DRIVERS = {"GALLIVM_PERF": "nopt"}
"""Have llvmpipe compile without optimising, in half the time: most kernels run once.

Intel's runtime has a like setting, not to vectorise, with which it computes NaN for some kernels.
"""

if not IS_WORKER:
    os.environ["WEFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="weft-test-cache-")
    os.environ["WEFT_VULKAN_VALIDATION"] = "1"
    os.environ["WEFT_CHECK_PASSES"] = "1"
    for unwanted in ("WEFT_CACHE", "WEFT_DYNAMIC_BACKEND_PATHS", "WEFT_NO_COMPILER", "WEFT_SELFTEST"):
        os.environ.pop(unwanted, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the long run."""
    parser.addoption("--all", action="store_true", help="run the long tests as well, and let llvmpipe optimise")


def pytest_configure(config: pytest.Config) -> None:
    """Tell tests how long the run is, and llvmpipe how to compile."""
    if IS_WORKER:
        return
    if config.getoption("all"):
        os.environ[VARIABLE] = "1"
        return
    os.environ.pop(VARIABLE, None)
    for name, value in QUICK_DRIVERS.items():
        os.environ.setdefault(name, value)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests to the long run."""
    if config.getoption("all"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


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


@pytest.fixture(autouse=True)
def decide_anew() -> None:
    """Forget which kernels were chosen: tests change what that rests on."""
    algorithms = sys.modules.get("weft.kernels.algorithms")
    if algorithms is not None:
        algorithms.forget_decisions()


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
