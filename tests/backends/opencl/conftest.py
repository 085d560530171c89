"""Fixtures of the tests of the OpenCL device: one that must leak nothing, each way to replay, a cache for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.opencl_kernels import NO_DIALECT
from weft.backends.opencl.device import OpenCLDevice, open_device


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", "1")
    return tmp_path


@pytest.fixture
def device() -> Iterator[OpenCLDevice]:
    opened = open_device(0, NO_DIALECT)
    yield opened
    stats = opened.stats
    assert (stats.live_buffers, stats.live_bytes, stats.live_recordings) == (0, 0, 0), "the test leaks"
    opened.close()


@pytest.fixture(params=["native", "pyopencl"])
def either(request: pytest.FixtureRequest, device: OpenCLDevice) -> OpenCLDevice:
    """Return the device with each of the two ways to replay."""
    if request.param == "pyopencl":
        device._native = None
    assert (device._native is not None) == (request.param == "native")
    return device
