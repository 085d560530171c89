"""The OpenCL device by itself, with hand-written kernels; a machine without OpenCL fails these tests."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from weft.backends.gpu.device import (
    BarrierCommand,
    Binding,
    Command,
    CopyCommand,
    GpuBuffer,
    LaunchCommand,
    MemoryKind,
)
from weft.backends.opencl.device import OpenCLDevice, open_device
from weft.backends.opencl.discovery import absent_reason, enumerate_devices
from weft.backends.opencl.programs import BUILD_OPTIONS, build_options, defines, literal
from weft.backends.opencl.words import WORDS, failure, listed, words
from weft.core.dtypes import DType
from weft.core.layout import Array
from weft.errors import ClosedError, CompileError, DeviceError, DeviceLost, NoDevice, OutOfMemory
from weft.kernels.cache import DiskCache
from weft.kernels.dialect import Dialect
from weft.kernels.source import Arg, ConstantKind, KernelSource

LOCAL: tuple[tuple[str, ConstantKind], ...] = (("LX", "int"), ("LY", "int"), ("LZ", "int"))
SCALE = """
__kernel __attribute__((reqd_work_group_size(LX, LY, LZ)))
void scale(__global const float* x, __global float* y) {
  for (int i = (int)get_global_id(0); i < N; i += (int)get_global_size(0)) y[i] = A * x[i];
}
"""
HALF = """
__kernel __attribute__((reqd_work_group_size(LX, LY, LZ)))
void half_scale(__global const half* x, __global half* y) {
  int i = (int)get_global_id(0);
  if (i < N) vstore_half_rte(A * vload_half(i, x), i, y);
}
"""
X, Y = Arg("x", DType.FLOAT32, "linear"), Arg("y", DType.FLOAT32, "linear", written=True)
SOURCE = KernelSource("scale", SCALE, (X, Y), (*LOCAL, ("N", "int"), ("A", "float")))


NO_DIALECT = cast(Dialect, None)  # never asked: these kernels are written by hand


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


def whole(buffer: GpuBuffer) -> Binding:
    return Binding(buffer, 0, buffer.nbytes)


def values(n: int, a: float = 2.0, lx: int = 32) -> dict[str, int | float]:
    return {"LX": lx, "LY": 1, "LZ": 1, "N": n, "A": a}


def host(buffer: GpuBuffer) -> Array:
    assert buffer.host is not None
    return buffer.host


def run(device: OpenCLDevice, *commands: Command) -> None:
    recording = device.record(commands)
    device.submit(recording)
    device.wait(recording)
    device.release(recording)


def free(device: OpenCLDevice, *buffers: GpuBuffer) -> None:
    for buffer in buffers:
        device.free(buffer)


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


@pytest.mark.parametrize("n", [1, 3, 31, 32, 33, 1003])
def test_replay(either: OpenCLDevice, n: int) -> None:
    device = either
    up, down = device.allocate(4 * n, MemoryKind.UPLOAD), device.allocate(4 * n, MemoryKind.DOWNLOAD)
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    kernel = device.compile(SOURCE, values(n, -1.5))
    launch = LaunchCommand(kernel, (whole(x), whole(y)), (-(-n // 32), 1, 1), "scale")
    back = LaunchCommand(kernel, (whole(y), whole(x)), (1, 1, 1), "back")
    commands: list[Command] = [CopyCommand(whole(up), whole(x)), BarrierCommand(), launch, BarrierCommand()]
    commands += [back, launch, back, launch, CopyCommand(whole(y), whole(down))]
    recording = device.record(commands)
    before = (device.stats.allocations, device.stats.compiles)
    for seed in range(5):
        data = np.random.default_rng(seed).standard_normal(n, dtype=np.float32)
        host(up)[:] = data.view(np.uint8)
        device.submit(recording)
        device.wait(recording)
        np.testing.assert_allclose(host(down).view(np.float32), data * np.float32(-1.5) ** 5, rtol=1e-6)
    assert (device.stats.allocations, device.stats.compiles) == before
    assert device.stats.submits == 5
    assert device.timings(recording) == []
    device.release(recording)
    device.release(recording)
    with pytest.raises(ClosedError):
        device.submit(recording)
    free(device, up, down, x, y)


@pytest.mark.parametrize("n", [1, 5, 1023])
def test_copies_between_all_kinds(either: OpenCLDevice, n: int) -> None:
    device, pad = either, 7
    data = np.random.default_rng(n).integers(0, 255, n, dtype=np.uint8)
    for source_kind in MemoryKind:
        for target_kind in MemoryKind:
            source, target = device.allocate(n + pad, source_kind), device.allocate(n + pad, target_kind)
            if source.host is None:
                device.upload(source, 3, data)
            else:
                source.host[3 : 3 + n] = data
            run(device, CopyCommand(Binding(source, 3, n), Binding(target, 5, n)))
            got = np.empty(n, np.uint8)
            if target.host is None:
                device.download(target, 5, got)
            else:
                got[:] = target.host[5 : 5 + n]
            np.testing.assert_array_equal(got, data, err_msg=f"{source_kind} to {target_kind}")
            free(device, source, target)


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


def test_pieces_of_a_buffer(either: OpenCLDevice) -> None:
    device, n = either, 13
    step = max(device.caps.offset_alignment, 256)
    arena = device.allocate(4 * step + 4 * n)
    pieces = [Binding(arena, i * step, 4 * n) for i in range(5)]
    data = np.arange(n, dtype=np.float32)
    device.upload(arena, 0, data)
    kernel = device.compile(SOURCE, values(n))
    run(device, *(LaunchCommand(kernel, (a, b), (1, 1, 1)) for a, b in pairwise(pieces)))
    for power, piece in enumerate(pieces):
        out = np.empty(n, np.float32)
        device.download(arena, piece.offset, out)
        np.testing.assert_array_equal(out, data * 2**power)
    device.free(arena)


def test_wrong_bindings_are_found_when_recording(device: OpenCLDevice) -> None:
    x, up = device.allocate(4096), device.allocate(4096, MemoryKind.UPLOAD)
    kernel = device.compile(SOURCE, values(4))
    grid = (1, 1, 1)
    wrong: list[tuple[str, Command]] = [
        ("outside", LaunchCommand(kernel, (whole(x), Binding(x, 4000, 100)), grid)),
        ("multiple", LaunchCommand(kernel, (whole(x), Binding(x, 4, 16)), grid)),
        ("UPLOAD", LaunchCommand(kernel, (whole(x), whole(up)), grid)),
        ("takes 2", LaunchCommand(kernel, (whole(x),), grid)),
        ("bytes cannot", CopyCommand(Binding(x, 0, 4), Binding(x, 8, 8))),
    ]
    for words_in_it, command in wrong:
        with pytest.raises(DeviceError, match=words_in_it):
            device.record([command])
    free(device, x, up)
    with pytest.raises(DeviceError, match="freed"):
        device.record([CopyCommand(Binding(x, 0, 4), Binding(up, 0, 4))])


def test_nothing_to_do_is_fine(either: OpenCLDevice) -> None:
    device = either
    x = device.allocate(0)
    kernel = device.compile(SOURCE, values(4))
    run(device)
    run(device, LaunchCommand(kernel, (whole(x), whole(x)), (0, 1, 1)), CopyCommand(whole(x), whole(x)))
    device.free(x)


def test_a_refused_command_is_named(either: OpenCLDevice) -> None:
    device = either
    x = device.allocate(16)
    overlap = CopyCommand(Binding(x, 0, 8), Binding(x, 4, 8), "overlapping")
    recording = device.record([overlap])
    with pytest.raises(DeviceError, match="'overlapping'") as caught:
        device.submit(recording)
    assert "overlap (CL_MEM_COPY_OVERLAP)" in str(caught.value)
    device.release(recording)
    device.free(x)


def test_timings(device: OpenCLDevice) -> None:
    n = 1 << 16
    x, y, up = device.allocate(4 * n), device.allocate(4 * n), device.allocate(4 * n, MemoryKind.UPLOAD)
    kernel = device.compile(SOURCE, values(n))
    launch = LaunchCommand(kernel, (whole(x), whole(y)), (8, 1, 1))
    recording = device.record([CopyCommand(whole(up), whole(x)), BarrierCommand(), launch], profile=True)
    assert device.timings(recording) == [] and device.span(recording, 0, 2) is None
    for _ in range(2):
        device.submit(recording)
        device.wait(recording)
        copy, barrier, scale = device.timings(recording)
        assert copy > 0 and barrier == 0.0 and 0 < scale < 10
        span = device.span(recording, 0, 2)
        assert span is not None and span >= copy + scale and device.span(recording, 2, 2) == scale
    device.release(recording)
    free(device, x, y, up)


def test_work_that_waits_in_the_queue_is_timed_as_a_whole(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU; on a CPU it runs like the rest, and events say what it takes."""
    kernel = device.compile(SOURCE, values(1 << 16))
    x, y = device.allocate(4 << 16), device.allocate(4 << 16)
    launch = LaunchCommand(kernel, (whole(x), whole(y)), (2048, 1, 1))
    assert device.queued_seconds([launch]) is None
    monkeypatch.setattr(device, "caps", replace(device.caps, software=False))
    live = device.stats.live_recordings
    one, many = (min(device.queued_seconds([launch] * k) or -1.0 for _ in range(3)) for k in (1, 100))
    assert 0 < one < many and device.stats.live_recordings == live
    free(device, x, y)


def test_order_of_recordings_and_copies_in_a_thread(either: OpenCLDevice) -> None:
    """Later work sees earlier work without a wait in between, with timestamps or not."""
    device, n = either, 4096
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    kernel = device.compile(SOURCE, values(n))
    there = device.record([LaunchCommand(kernel, (whole(x), whole(y)), (1, 1, 1))])
    back = device.record([LaunchCommand(kernel, (whole(y), whole(x)), (1, 1, 1))], profile=True)
    device.upload(x, 0, np.ones(n, np.float32))
    for _ in range(3):
        device.submit(there)
        device.submit(back)
    out = np.empty(n, np.float32)
    device.download(x, 0, out)
    assert (out == 2.0**6).all()
    device.submit(there)
    device.upload(x, 0, np.zeros(n, np.float32))
    device.download(y, 0, out)
    assert (out == 2.0**7).all()
    device.release(there)
    device.release(back)
    free(device, x, y)


def _work(device: OpenCLDevice, number: int, errors: list[BaseException]) -> None:
    try:
        n = 501 + number
        up, down = device.allocate(4 * n, MemoryKind.UPLOAD), device.allocate(4 * n, MemoryKind.DOWNLOAD)
        x, y = device.allocate(4 * n), device.allocate(4 * n)
        own, shared = device.compile(SOURCE, values(n, number + 2)), device.compile(SOURCE, values(100, 1.0))
        commands: list[Command] = [CopyCommand(whole(up), whole(x))]
        commands += [LaunchCommand(own, (whole(x), whole(y)), (4, 1, 1))]
        commands += [LaunchCommand(shared, (whole(x), whole(x)), (1, 1, 1))] * 6
        recording = device.record([*commands, CopyCommand(whole(y), whole(down))])
        for i in range(50):
            host(up).view(np.float32)[:] = i
            device.submit(recording)
            device.wait(recording)
            assert (host(down).view(np.float32) == i * (number + 2)).all()
        device.release(recording)
        free(device, up, down, x, y)
    except BaseException as e:
        errors.append(e)


def test_threads(either: OpenCLDevice) -> None:
    device = either
    errors: list[BaseException] = []
    for _ in range(2):
        threads = [threading.Thread(target=_work, args=(device, i, errors)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert device.stats.submits == 2 * 4 * 50
    assert device.stats.compiles == 5
    assert device.stats.allocations == 2 * 4 * 4
    assert len(device._queues._all) <= 5, "queues of ended threads are used again"


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


def test_compile_error_shows_source_and_log(device: OpenCLDevice) -> None:
    broken = KernelSource(
        "scale", SCALE.replace("A *", "A * undeclared_thing *"), SOURCE.args, SOURCE.constants
    )
    with pytest.raises(CompileError) as caught:
        device.compile(broken, values(4))
    message = str(caught.value)
    assert "undeclared_thing" in message.split("source:")[0], "the compiler's log"
    assert "    4 |   for (int i" in message, "the numbered source"
    assert "#define N 4" in message
    assert ":4:" in message.split("source:")[0], "the log counts the lines of the source as it is shown"
    with pytest.raises(CompileError, match="no kernel of that name"):
        device.compile(KernelSource("other", SCALE, SOURCE.args, SOURCE.constants), values(4))


def test_constants_are_exact() -> None:
    assert [literal(v, "int") for v in (0, 7, -1)] == ["0", "7", "(-1)"]
    assert literal(-(1 << 31), "int") == "(-2147483647 - 1)"
    assert literal(-1.5, "float") == "(-1.50000000e+00f)" and literal(3, "float") == "3.00000000e+00f"
    assert literal(float("-inf"), "float") == "(-INFINITY)" and literal(float("nan"), "float") == "NAN"
    for bits in np.random.default_rng(0).integers(0, 0x7F800000, 500, dtype=np.uint32):
        value = bits.view(np.float32)
        assert np.float32(literal(float(value), "float").rstrip("f")) == value
    with pytest.raises(CompileError, match="32-bit"):
        literal(1 << 31, "int")
    with pytest.raises(CompileError, match="no value was given for N, A"):
        defines(SOURCE, {"LX": 1, "LY": 1, "LZ": 1})


def _result(device: OpenCLDevice) -> float:
    buffer, out = device.allocate(4), np.empty(1, np.float32)
    device.upload(buffer, 0, np.ones(1, np.float32))
    kernel = device.compile(SOURCE, values(1, 3.0))
    run(device, LaunchCommand(kernel, (whole(buffer), whole(buffer)), (1, 1, 1)))
    device.download(buffer, 0, out)
    device.free(buffer)
    return float(out[0])


def _fresh() -> tuple[float, int, int]:
    device = open_device(0, NO_DIALECT)
    result = _result(device)
    device.close()
    return result, device.programs.built_from_source, device.programs.loaded_from_disk


def test_binary_cache(cache: Path) -> None:
    assert _fresh() == (3.0, 1, 0)
    (entry,) = (cache / "opencl").iterdir()
    assert _fresh() == (3.0, 0, 1)
    entry.write_bytes(entry.read_bytes()[:-100])
    assert _fresh() == (3.0, 1, 0), "a truncated file counts as absent"
    assert _fresh() == (3.0, 0, 1), "and was replaced"


def test_unloadable_binary_is_rebuilt(device: OpenCLDevice) -> None:
    key = device.programs.disk_key(SOURCE, defines(SOURCE, values(1, 3.0)))
    DiskCache("opencl").put(key, b"\x00not a program\xff" * 50)
    assert _result(device) == 3.0
    assert device.programs.built_from_source == 1
    assert _fresh() == (3.0, 0, 1)


def test_cache_can_be_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")
    assert _fresh() == _fresh() == (3.0, 1, 0)
    assert not list(cache.iterdir())


def test_half_storage(device: OpenCLDevice) -> None:
    n = 77
    args = (Arg("x", DType.FLOAT16, "linear"), Arg("y", DType.FLOAT16, "linear", written=True))
    source = KernelSource("half_scale", HALF, args, SOURCE.constants)
    data = np.random.default_rng(1).standard_normal(n).astype(np.float16)
    x, y = device.allocate(2 * n), device.allocate(2 * n)
    device.upload(x, 0, data)
    kernel = device.compile(source, values(n, 0.3))
    run(device, LaunchCommand(kernel, (whole(x), whole(y)), (-(-n // 32), 1, 1)))
    out = np.empty(n, np.float16)
    device.download(y, 0, out)
    np.testing.assert_array_equal(out, (data.astype(np.float32) * np.float32(0.3)).astype(np.float16))
    free(device, x, y)


def test_errors_have_words() -> None:
    assert all(name and meaning for name, meaning in WORDS.values())
    assert "no description" in words(-4242)
    assert isinstance(failure(-5, "x", "y", waiting=True), DeviceLost)
    assert not isinstance(failure(-5, "x", "y"), DeviceLost)
    assert isinstance(failure(-4, "x", "y"), OutOfMemory)
    assert listed([f"l{i}" for i in range(20)]).endswith("l11 and 8 more") and listed(["a", "a"]) == "a"

def test_nvidia_is_told_how_many_registers_an_item_may_have() -> None:
    assert build_options("Portable Computing Language", (32, 4, 4)) == BUILD_OPTIONS
    assert build_options("NVIDIA CUDA", (32, 4, 2)) == BUILD_OPTIONS
    assert build_options("NVIDIA CUDA", (32, 4, 4))[-1] == "-cl-nv-maxrregcount=128"
