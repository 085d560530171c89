"""What all tests share: a private cache, the validation layer, and the devices that must be there.

A device that is missing fails the run before any test, because a skipped test looks like one that passed.
The environment is set before weft is imported; processes that tests start inherit it.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator

import pytest

REQUIRED = {
    "opencl": "pip install pyopencl intel-opencl-rt intel-cmplr-lib-rt; apt install pocl-opencl-icd",
    "vulkan": "apt install mesa-vulkan-drivers vulkan-validationlayers && pip install vulkan",
}
OPENCL_DRIVERS = 2 if platform.machine() == "x86_64" else 1
"""How many OpenCL drivers the tests need: two of different vendors, where PyPI has one for the CPU."""
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ

if not IS_WORKER:
    os.environ["WEFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="weft-test-cache-")
    os.environ["WEFT_VULKAN_VALIDATION"] = "1"
    os.environ["WEFT_CHECK_PASSES"] = "1"
    for unwanted in ("WEFT_CACHE", "WEFT_DYNAMIC_BACKEND_PATHS", "WEFT_NO_COMPILER", "WEFT_SELFTEST"):
        os.environ.pop(unwanted, None)


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
