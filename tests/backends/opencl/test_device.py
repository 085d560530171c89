"""The OpenCL device by itself: it is there, its memory, what it counts, its end; without OpenCL this fails."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.opencl_kernels import NO_DIALECT, SOURCE, free, host, values
from weft.backends.gpu.device.device import Binding, CopyCommand, MemoryKind
from weft.backends.opencl.cl_errors import WORDS, failure, listed, words
from weft.backends.opencl.device import OpenCLDevice, open_device
from weft.backends.opencl.discovery import absent_reason, enumerate_devices
from weft.core.graph.layout import Array
from weft.errors import ClosedError, DeviceError, DeviceLost, NoDevice, OutOfMemory


def test_there_is_a_device() -> None:
    assert absent_reason() is None
    infos = enumerate_devices()
    assert infos and [i.index for i in infos] == list(range(len(infos)))
    assert all(i.id == "opencl" and i.name and i.driver for i in infos)
    assert [i.software for i in infos] == sorted(i.software for i in infos)


def test_import_does_not_load_pyopencl() -> None:
    code = "import sys, weft.backends.opencl.discovery; assert 'pyopencl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_pyopencl_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    assert "pip install pyopencl" in (absent_reason() or "")
    assert enumerate_devices() == []


def test_unknown_index() -> None:
    with pytest.raises(NoDevice, match="opencl:99"):
        open_device(99, NO_DIALECT)


def test_caps(device: OpenCLDevice) -> None:
    caps = device.caps
    assert caps.fp16_storage and caps.int8_storage
    assert caps.max_local_items >= 1 and caps.local_memory > 0 and caps.compute_units >= 1
    assert caps.max_buffer_range > 0 and caps.offset_alignment & (caps.offset_alignment - 1) == 0


def test_upload_and_download_take_any_array(device: OpenCLDevice) -> None:
    buffer = device.allocate(64)
    arrays: list[Array] = [np.array(3, np.float32), np.arange(5), np.arange(7, dtype=np.float16)[::2]]
    for array in arrays:
        array.flags.writeable = False
        device.upload(buffer, 8, array)
        out = np.empty(array.shape, array.dtype)
        device.download(buffer, 8, out)
        np.testing.assert_array_equal(out, array)
    device.upload(buffer, 64, np.empty(0, np.float32))
    with pytest.raises(DeviceError, match="outside"):
        device.upload(buffer, 60, np.zeros(2, np.float32))
    with pytest.raises(DeviceError, match="contiguous"):
        device.download(buffer, 0, np.zeros(8, np.float32)[::2])
    device.free(buffer)
    with pytest.raises(DeviceError, match="freed"):
        device.upload(buffer, 0, np.zeros(1, np.float32))


def test_out_of_memory_says_how_much(device: OpenCLDevice) -> None:
    asked = device.caps.max_allocation + 1
    with pytest.raises(OutOfMemory, match=f"{asked:,} bytes") as caught:
        device.allocate(asked)
    assert f"{device.caps.max_allocation:,}" in str(caught.value) and "smaller batch" in str(caught.value)
    with pytest.raises(OutOfMemory):
        device.allocate(asked, MemoryKind.UPLOAD)


def test_counters(device: OpenCLDevice) -> None:
    buffers = [device.allocate(5, kind) for kind in MemoryKind]
    stats = device.stats
    assert (stats.allocations, stats.live_buffers, stats.live_bytes) == (4, 4, 20)
    assert [None if b.host is None else b.host.shape for b in buffers] == [None, (5,), (5,), (5,)]
    free(device, *buffers, *buffers)
    assert (stats.allocations, stats.live_buffers, stats.live_bytes) == (4, 0, 0)
    device.compile(SOURCE, values(1))
    device.compile(SOURCE, values(1))
    device.compile(SOURCE, values(2))
    assert stats.compiles == 2


def test_views_of_freed_host_memory_stay_valid(device: OpenCLDevice) -> None:
    buffer = device.allocate(1 << 20, MemoryKind.DOWNLOAD)
    view = host(buffer)
    device.free(buffer)
    view[:] = 7
    assert view.sum() == 7 << 20


def test_close_frees_everything_and_ends_it() -> None:
    device = open_device(0, NO_DIALECT)
    x = device.allocate(16)
    recording = device.record([CopyCommand(Binding(x, 0, 4), Binding(x, 8, 4))])
    device.submit(recording)
    device.close()
    device.close()
    assert (device.stats.live_buffers, device.stats.live_recordings) == (0, 0)
    for call in (lambda: device.allocate(4), lambda: device.submit(recording), lambda: device.record([])):
        with pytest.raises(ClosedError, match="closed"):
            call()


def test_errors_have_words() -> None:
    assert all(name and meaning for name, meaning in WORDS.values())
    assert "no description" in words(-4242)
    assert isinstance(failure(-5, "x", "y", waiting=True), DeviceLost)
    assert not isinstance(failure(-5, "x", "y"), DeviceLost)
    assert isinstance(failure(-4, "x", "y"), OutOfMemory)
    assert listed([f"l{i}" for i in range(20)]).endswith("l11, and 8 more") and listed(["a", "a"]) == "a"
