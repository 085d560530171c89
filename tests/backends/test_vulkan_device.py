"""The Vulkan device on its own, under the validation layer; without a Vulkan device these tests fail."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

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
from weft.backends.vulkan import glslang, spirv
from weft.backends.vulkan.device import (
    VulkanDevice,
    absent_reason,
    enumerate_devices,
    open_device,
    validation_messages,
)
from weft.backends.vulkan.transfer import LARGEST
from weft.core.dtypes import DType
from weft.errors import (
    BackendError,
    ClosedError,
    CompileError,
    ConfigError,
    DeviceError,
    DeviceLost,
    NoDevice,
    OutOfMemory,
)
from weft.kernels.dialect import Dialect
from weft.kernels.source import Arg, ConstantKind, KernelSource

NO_DIALECT = cast(Dialect, None)
LOCAL = 64

HEAD = """#version 450
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const int LX = 1;
layout(constant_id = 4) const int LY = 1;
layout(constant_id = 5) const int LZ = 1;
layout(constant_id = 6) const int N = 1;
layout(constant_id = 7) const float A = 1.0;
"""
CONSTANTS: tuple[tuple[str, ConstantKind], ...] = (
    ("LX", "int"),
    ("LY", "int"),
    ("LZ", "int"),
    ("N", "int"),
    ("A", "float"),
)


def kernel_source(element: str, body: str, dtype: DType, entry: str = "scale") -> KernelSource:
    text = f"""{HEAD}
layout(std430, set = 0, binding = 0) readonly buffer X {{ {element} x[]; }};
layout(std430, set = 0, binding = 1) buffer Y {{ {element} y[]; }};
void main() {{
    int i = int(gl_GlobalInvocationID.x);
    if (i < N) {{ {body} }}
}}
"""
    args = (Arg("x", dtype, "linear"), Arg("y", dtype, "linear", written=True))
    return KernelSource(entry, text, args, CONSTANTS)


SCALE = kernel_source("float", "y[i] = A * x[i];", DType.FLOAT32)
ADD = kernel_source("float", "y[i] = y[i] + A * x[i];", DType.FLOAT32, "add")
HALF = kernel_source("float16_t", "y[i] = float16_t(A * float(x[i]));", DType.FLOAT16, "half")
BYTES = kernel_source("int8_t", "y[i] = int8_t(int(x[i]) * int(A));", DType.INT8, "bytes")


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_VULKAN_VALIDATION", "1")
        patch.setenv("WEFT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("WEFT_CACHE", raising=False)
        patch.delenv("WEFT_NO_COMPILER", raising=False)
        yield


@pytest.fixture(autouse=True)
def no_validation_messages(environment: None) -> Iterator[None]:
    yield
    said = list(validation_messages())
    validation_messages().clear()
    assert said == []


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    made = open_device(0, NO_DIALECT)
    yield made
    made.close()
    stats = made.stats
    assert (stats.live_buffers, stats.live_bytes, stats.live_recordings) == (0, 0, 0)


def values(n: int, a: float = 1.0, local: int = LOCAL) -> dict[str, int | float]:
    return {"LX": local, "LY": 1, "LZ": 1, "N": n, "A": a}


def whole(buffer: GpuBuffer) -> Binding:
    return Binding(buffer, 0, buffer.nbytes)


def launch(kernel: Any, *buffers: GpuBuffer, n: int, local: int = LOCAL) -> LaunchCommand:
    return LaunchCommand(kernel, tuple(map(whole, buffers)), (-(-n // local), 1, 1), kernel.name)


def run(device: VulkanDevice, recording: Any) -> None:
    device.submit(recording)
    device.wait(recording)


def host(buffer: GpuBuffer, dtype: str = "float32") -> Any:
    assert buffer.host is not None
    return buffer.host.view(dtype)


# -- finding devices -----------------------------------------------------------------------------------------


def test_devices_are_described() -> None:
    assert absent_reason() is None
    found = enumerate_devices()
    assert found, "these tests need a Vulkan device: apt install mesa-vulkan-drivers"
    for index, info in enumerate(found):
        assert (info.id, info.index) == ("vulkan", index)
        assert info.name and info.driver and str(info.details["api"]).startswith("Vulkan 1.")
        assert info.software == (info.details["type"] == "CPU") == ("llvmpipe" in info.name)
    assert [d.software for d in found] == sorted(d.software for d in found), "hardware comes first"


def test_a_wrong_index_names_what_there_is() -> None:
    with pytest.raises(NoDevice, match="there is no Vulkan device 99") as caught:
        open_device(99, NO_DIALECT)
    assert "vulkan:0" in str(caught.value)


def test_caps_are_the_limits_of_the_device(device: VulkanDevice) -> None:
    caps = device.caps
    assert caps.max_local_items >= 128 and min(caps.max_grid) >= 65535 and caps.local_memory >= 16384
    assert 1 << 27 <= caps.max_buffer_range < 1 << 32
    assert caps.max_allocation >= 1 << 30
    assert 256 % caps.offset_alignment == 0
    assert caps.fp16_storage and caps.int8_storage
    assert caps.compute_units >= 1
    assert caps.software == device.info.software


def in_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_no_vulkan() -> None:
    code = (
        "import sys, weft.backends.vulkan.presence, weft.backends.vulkan.spirv\n"
        "print('vulkan' in sys.modules)"
    )
    assert in_python(code).strip() == "False"


def test_a_missing_package_is_explained() -> None:
    code = (
        "import sys; sys.modules['vulkan'] = None\n"
        "from weft.backends.vulkan.presence import absent_reason; print(absent_reason())"
    )
    assert "pip install vulkan cffi" in in_python(code)


def test_a_missing_loader_is_explained() -> None:
    code = (
        "import ctypes, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'vulkan': raise OSError('Cannot find Vulkan SDK version')\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from weft.backends.vulkan.presence import absent_reason; print(absent_reason())"
    )
    assert "apt install libvulkan1" in in_python(code)


def test_a_missing_driver_is_explained() -> None:
    code = (
        "from weft.backends.vulkan.presence import absent_reason; print(absent_reason())\n"
        "from weft.backends.vulkan.device import enumerate_devices; print(enumerate_devices())"
    )
    nowhere = {"VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"}
    said = in_python(code, WEFT_VULKAN_VALIDATION="0", **nowhere)
    assert "mesa-vulkan-drivers" in said and said.strip().endswith("[]")


def test_a_missing_validation_layer_is_explained(tmp_path: Path) -> None:
    code = "from weft.backends.vulkan.presence import absent_reason; print(absent_reason())"
    said = in_python(code, VK_LAYER_PATH=str(tmp_path))
    assert "apt install vulkan-validationlayers" in said


# -- memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 3, 4, 1001, (1 << 20) + 1, LARGEST + 12345])
def test_upload_and_download_any_size(device: VulkanDevice, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    buffer = device.allocate(nbytes + 7)
    device.upload(buffer, 5, data)
    out = np.zeros_like(data)
    device.download(buffer, 5, out)
    assert np.array_equal(out, data)


def test_upload_takes_any_type_and_shape(device: VulkanDevice) -> None:
    for data in (np.array(3.5), np.ones((2, 3, 4), np.float16), np.array([True, False]), np.arange(5)):
        data.setflags(write=False)
        buffer = device.allocate(data.nbytes)
        device.upload(buffer, 0, data)
        out = np.empty_like(data)
        device.download(buffer, 0, out)
        assert np.array_equal(out, data)


def test_host_buffers_are_mapped_bytes(device: VulkanDevice) -> None:
    for kind in (MemoryKind.UPLOAD, MemoryKind.STREAM, MemoryKind.DOWNLOAD):
        buffer = device.allocate(13, kind)
        assert buffer.host is not None and buffer.host.shape == (13,) and buffer.host.dtype == np.uint8
        buffer.host[:] = 7
        assert int(buffer.host.sum()) == 91
    assert device.allocate(13).host is None


@pytest.mark.parametrize(
    ("types", "chosen"),
    [
        ([(0, 1), (1, 0), (6, 1), (14, 1), (7, 0)], (1, 4, 3, 3)),  # NVIDIA with the whole memory mapped
        ([(0, 1), (1, 0), (6, 1), (14, 1), (7, 2)], (1, 2, 3, 3)),  # NVIDIA with a window of 256 MiB
        ([(1, 0), (7, 0), (15, 0)], (0, 1, 1, 2)),  # one memory for both
        ([(15, 0)], (0, 0, 0, 0)),  # llvmpipe
        ([(1, 0), (0xC7, 0), (7, 0), (6, 1), (10, 1)], (0, 2, 3, 4)),  # AMD's uncached type is passed over
    ],
)
def test_memory_types_are_chosen_by_kind(
    device: VulkanDevice, types: list[tuple[int, int]], chosen: tuple[int, ...]
) -> None:
    from weft.backends.vulkan.memory import Memory

    memory = Memory(device._parts.context)
    memory._types, memory._heaps, memory._largest_local = types, [1 << 37, 1 << 34, 1 << 28], 1 << 37
    for kind, index in zip(MemoryKind, chosen, strict=True):
        assert memory._candidates(kind, 0xFFFF)[0] == index


def test_out_of_memory_says_how_much_and_what_to_do(device: VulkanDevice) -> None:
    for kind in MemoryKind:
        with pytest.raises(OutOfMemory) as caught:
            device.allocate(1 << 50, kind)
        text = str(caught.value)
        assert (
            "1073741824.0 MiB" in text and "its largest heap" in text and "next: use a smaller batch" in text
        )
    assert device.stats.live_buffers == 0
    device.free(device.allocate(16))


def test_the_count_of_allocations_is_respected(device: VulkanDevice) -> None:
    memory = device._parts.memory
    held = [device.allocate(4) for _ in range(3)]
    memory.max_count = len(held)
    with pytest.raises(OutOfMemory, match="maxMemoryAllocationCount is 3"):
        device.allocate(4)
    device.free(held.pop())
    device.allocate(4)


def test_an_exhausted_driver_is_out_of_memory(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.backends.vulkan import memory

    class FullLibrary:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: -2) if name == "vkAllocateMemory" else getattr(real, name)

    real = cast(Any, memory).lib
    monkeypatch.setattr(memory, "lib", FullLibrary())
    with pytest.raises(OutOfMemory, match="VK_ERROR_OUT_OF_DEVICE_MEMORY"):
        device.allocate(1000)
    assert device.stats.live_buffers == 0


def test_counters_follow_buffers_and_recordings(device: VulkanDevice) -> None:
    first, second = device.allocate(100), device.allocate(50, MemoryKind.UPLOAD)
    assert (device.stats.allocations, device.stats.live_buffers, device.stats.live_bytes) == (2, 2, 150)
    device.upload(first, 0, np.zeros(100, np.uint8))
    assert device.stats.live_buffers == 2, "staging is the device's own"
    recording = device.record([CopyCommand(Binding(second, 0, 50), Binding(first, 0, 50))])
    assert device.stats.live_recordings == 1
    run(device, recording)
    run(device, recording)
    assert device.stats.submits == 2
    device.release(recording)
    device.release(recording)
    device.free(first)
    device.free(second)
    assert (device.stats.live_buffers, device.stats.live_bytes, device.stats.live_recordings) == (0, 0, 0)
    with pytest.raises(BackendError, match="freed before"):
        device.free(first)


def test_copies_outside_a_buffer_are_refused(device: VulkanDevice) -> None:
    buffer = device.allocate(8)
    with pytest.raises(BackendError, match="outside its buffer"):
        device.upload(buffer, 4, np.zeros(8, np.uint8))
    with pytest.raises(BackendError, match="contiguous"):
        device.upload(buffer, 0, np.zeros((2, 4), np.uint8).T)
    with pytest.raises(BackendError, match="`host` array"):
        device.upload(device.allocate(8, MemoryKind.UPLOAD), 0, np.zeros(8, np.uint8))
    with pytest.raises(BackendError, match="lies outside"):
        device.record([CopyCommand(Binding(buffer, 4, 8), Binding(buffer, 0, 8))])


# -- kernels -------------------------------------------------------------------------------------------------


def test_a_recording_replays_with_new_inputs(device: VulkanDevice) -> None:
    n = 1003
    given, x, y, result = (
        device.allocate(4 * n, kind)
        for kind in (MemoryKind.UPLOAD, MemoryKind.DEVICE, MemoryKind.DEVICE, MemoryKind.DOWNLOAD)
    )
    recording = device.record(
        [
            CopyCommand(whole(given), whole(x)),
            BarrierCommand(),
            launch(device.compile(SCALE, values(n, 2.0)), x, y, n=n),
            BarrierCommand(),
            launch(device.compile(ADD, values(n, 0.5)), x, y, n=n),
            BarrierCommand(),
            CopyCommand(whole(y), whole(result)),
        ]
    )
    allocations, compiles = device.stats.allocations, device.stats.compiles
    for seed in range(5):
        data = np.random.default_rng(seed).standard_normal(n, np.float32)
        host(given)[:] = data
        run(device, recording)
        np.testing.assert_allclose(host(result), 2.5 * data, rtol=1e-6)
    assert (device.stats.allocations, device.stats.compiles) == (allocations, compiles)
    assert device.stats.submits == 5


def test_kernels_read_and_write_host_memory_directly(device: VulkanDevice) -> None:
    x, y = device.allocate(400, MemoryKind.UPLOAD), device.allocate(400, MemoryKind.DOWNLOAD)
    host(x)[:] = np.arange(100)
    run(device, device.record([launch(device.compile(SCALE, values(100, 3.0)), x, y, n=100)]))
    assert np.array_equal(host(y), 3 * np.arange(100, dtype=np.float32))


def test_bindings_select_pieces(device: VulkanDevice) -> None:
    align = device.caps.offset_alignment
    buffer = device.allocate(align + 64)
    device.upload(buffer, 0, np.arange((align + 64) // 4, dtype=np.float32))
    kernel = device.compile(SCALE, values(16, 10.0))
    pieces = (Binding(buffer, 0, 64), Binding(buffer, align, 64))
    if align >= 64:
        run(device, device.record([LaunchCommand(kernel, pieces, (1, 1, 1))]))
        out = np.empty(16, np.float32)
        device.download(buffer, align, out)
        assert np.array_equal(out, 10 * np.arange(16, dtype=np.float32))
    crooked = (Binding(buffer, 0, 4), Binding(buffer, 1, 4))
    with pytest.raises(BackendError, match=f"multiples of {align}"):
        device.record([LaunchCommand(kernel, crooked, (1, 1, 1))])


def test_constants_make_kernels(device: VulkanDevice) -> None:
    x, y = device.allocate(400, MemoryKind.UPLOAD), device.allocate(400, MemoryKind.DOWNLOAD)
    host(x)[:] = 1
    for local in (1, 32, 128):
        for a in (0.0, -0.0, 2.5):
            host(y)[:] = 9
            kernel = device.compile(SCALE, values(60, a, local))
            assert device.compile(SCALE, values(60, a, local)) is kernel
            run(device, device.record([launch(kernel, x, y, n=60, local=local)]))
            assert np.array_equal(host(y)[:60], np.full(60, a, np.float32))
            assert np.array_equal(host(y)[60:], np.full(40, 9, np.float32))
    assert device.stats.compiles == 9


def test_two_dimensional_local_size(device: VulkanDevice) -> None:
    text = f"""{HEAD}
layout(std430, set = 0, binding = 0) writeonly buffer Y {{ int y[]; }};
void main() {{
    uvec3 at = gl_GlobalInvocationID;
    uvec3 size = gl_NumWorkGroups * uvec3(LX, LY, LZ);
    y[(at.z * size.y + at.y) * size.x + at.x] = int(gl_WorkGroupSize.y) + LZ;
}}
"""
    source = KernelSource("grid", text, (Arg("y", DType.INT32, "linear", written=True),), CONSTANTS)
    y = device.allocate(4 * 8 * 4 * 2 * 3, MemoryKind.DOWNLOAD)
    kernel = device.compile(source, {"LX": 4, "LY": 2, "LZ": 2, "N": 0, "A": 0.0})
    run(device, device.record([LaunchCommand(kernel, (whole(y),), (2, 2, 3))]))
    assert np.array_equal(host(y, "int32"), np.full(192, 4))


@pytest.mark.parametrize(("source", "dtype"), [(HALF, "float16"), (BYTES, "int8")])
def test_narrow_storage(device: VulkanDevice, source: KernelSource, dtype: str) -> None:
    n = 33
    size = n * np.dtype(dtype).itemsize
    x, y = device.allocate(size, MemoryKind.UPLOAD), device.allocate(size, MemoryKind.DOWNLOAD)
    host(x, dtype)[:] = np.arange(n)
    run(device, device.record([launch(device.compile(source, values(n, 2.0)), x, y, n=n)]))
    assert np.array_equal(host(y, dtype), (2 * np.arange(n)).astype(dtype))


def test_wrong_launches_are_refused(device: VulkanDevice) -> None:
    buffer = device.allocate(64)
    kernel = device.compile(SCALE, values(16))
    with pytest.raises(BackendError, match="1 buffers are bound to a kernel that takes 2"):
        device.record([LaunchCommand(kernel, (whole(buffer),), (1, 1, 1))])
    grid = (device.caps.max_grid[0] + 1, 1, 1)
    with pytest.raises(BackendError, match="more work-groups"):
        device.record([LaunchCommand(kernel, (whole(buffer), whole(buffer)), grid)])
    with pytest.raises(CompileError, match="local size"):
        device.compile(SCALE, values(16, local=2 * device.caps.max_local_items))
    with pytest.raises(CompileError, match="lacks the value of a constant"):
        device.compile(SCALE, {"LX": 1})
    with pytest.raises(CompileError, match="not a 32-bit number"):
        device.compile(SCALE, values(1 << 40))


def test_timings_per_command(device: VulkanDevice) -> None:
    n = 1 << 18
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    step = launch(device.compile(SCALE, values(n)), x, y, n=n)
    commands: list[Command] = [
        step,
        BarrierCommand(),
        step,
        BarrierCommand(),
        CopyCommand(whole(y), whole(x)),
    ]
    recording = device.record(commands, profile=True)
    assert device.timings(recording) == [] and device.span(recording, 0, 4) is None
    for _ in range(2):
        run(device, recording)
        seconds = device.timings(recording)
        assert len(seconds) == len(commands) and seconds[1] == seconds[3] == 0.0
        assert all(0 < seconds[i] < 10 for i in (0, 2, 4))
        span = device.span(recording, 0, 4)
        assert span is not None and span >= sum(seconds) - 1e-9 and device.span(recording, 2, 2) == seconds[2]
    assert device.timings(device.record(commands)) == []


def test_empty_recordings_and_waits(device: VulkanDevice) -> None:
    recording = device.record([])
    device.wait(recording)
    run(device, recording)
    device.wait(recording)
    assert device.timings(recording) == []


def slow(device: VulkanDevice) -> Any:
    """Return a recording that runs for many milliseconds."""
    n = 1 << 20
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    step = launch(device.compile(ADD, values(n)), x, y, n=n)
    return device.record([step, BarrierCommand()] * 20)


def test_a_running_recording_is_not_submitted_again(device: VulkanDevice) -> None:
    recording = slow(device)
    device.submit(recording)
    with pytest.raises(BackendError, match="still runs"):
        device.submit(recording)
    device.release(recording)


def test_to_wait_for_a_submit_is_to_wait_for_those_before_it(device: VulkanDevice) -> None:
    n = 1000
    given, x, y = device.allocate(4 * n, MemoryKind.STREAM), device.allocate(4 * n), device.allocate(4 * n)
    result, kernel = device.allocate(4 * n, MemoryKind.DOWNLOAD), device.compile(SCALE, values(n, 2.0))
    pieces = [(Binding(given, at, 800), Binding(x, at, 800)) for at in range(0, 4 * n, 800)]
    chunks = [device.record([CopyCommand(*pair)]) for pair in pieces]
    end = device.record([launch(kernel, x, y, n=n), BarrierCommand(), CopyCommand(whole(y), whole(result))])
    for seed in range(10):
        data = np.random.default_rng(seed).standard_normal(n, np.float32)
        for k, chunk in enumerate(chunks):
            host(given)[200 * k : 200 * (k + 1)] = data[200 * k : 200 * (k + 1)]
            device.submit(chunk)
        run(device, end)
        np.testing.assert_array_equal(host(result), 2 * data)
    for recording in (*chunks, end):
        device.release(recording)
    assert device.stats.live_recordings == 0


def test_a_refused_submit_leaves_nothing_to_wait_for(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.backends.vulkan import context

    class FullLibrary:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: -2) if name == "vkQueueSubmit" else getattr(real, name)

    real, first = cast(Any, context).lib, device.record([])
    device.submit(first)
    run(device, device.record([]))
    with monkeypatch.context() as patch:
        patch.setattr(context, "lib", FullLibrary())
        with pytest.raises(OutOfMemory):
            device.submit(first)
    device.wait(first)
    run(device, first)


def test_threads_submit_their_own_recordings(device: VulkanDevice) -> None:
    n, problems = 5000, []

    def work(factor: float) -> None:
        try:
            x, y = device.allocate(4 * n, MemoryKind.UPLOAD), device.allocate(4 * n, MemoryKind.DOWNLOAD)
            recording = device.record([launch(device.compile(SCALE, values(n, factor)), x, y, n=n)])
            other = device.allocate(4 * n)
            for seed in range(20):
                data = np.random.default_rng(seed).standard_normal(n, np.float32)
                host(x)[:] = data
                device.submit(recording)
                device.upload(other, 0, data)
                device.wait(recording)
                np.testing.assert_array_equal(host(y), np.float32(factor) * data)
                back = np.empty_like(data)
                device.download(other, 0, back)
                np.testing.assert_array_equal(back, data)
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (2.0, 2.0, 3.0, 4.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert device.stats.compiles == 3, "the two threads with equal constants share one kernel"
    assert device.stats.submits == 80


def test_download_waits_for_work_in_flight(device: VulkanDevice) -> None:
    n = 1 << 20
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    device.upload(x, 0, np.ones(n, np.float32))
    device.upload(y, 0, np.zeros(n, np.float32))
    step = launch(device.compile(ADD, values(n)), x, y, n=n)
    recording = device.record([step, BarrierCommand()] * 20)
    device.submit(recording)
    out = np.empty(n, np.float32)
    device.download(y, 0, out)
    assert np.array_equal(out, np.full(n, 20, np.float32))
    device.wait(recording)


def test_a_lost_device_is_reported(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.backends.vulkan import context

    class LostLibrary:
        def __getattr__(self, name: str) -> Any:
            lost = name in ("vkGetFenceStatus", "vkWaitForFences")
            return (lambda *_: -4) if lost else getattr(real, name)

    real = cast(Any, context).lib
    recordings = [device.record([]) for _ in range(2)]
    for recording in recordings:
        device.submit(recording)
    device._parts.context.idle()
    with monkeypatch.context() as patch:
        patch.setattr(context, "lib", LostLibrary())
        for call in (device.submit, device.wait):
            with pytest.raises(DeviceLost, match="stopped answering"):
                call(recordings[0])
        for recording in recordings:
            device.release(recording)
    assert device.stats.live_recordings == 0


def test_polling_ends_in_a_blocking_wait(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.backends.vulkan import context

    monkeypatch.setattr(device._parts.context.physical, "software", False)
    n = 1 << 21
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    step = launch(device.compile(ADD, values(n)), x, y, n=n)
    recording = device.record([step, BarrierCommand()] * 3)
    for budget in (0.0, 10.0):
        monkeypatch.setattr(context, "SPIN_SECONDS", budget)
        run(device, recording)


def test_validation_hears_a_missing_barrier(device: VulkanDevice) -> None:
    x, y, z = (device.allocate(64) for _ in range(3))
    device.record([CopyCommand(whole(x), whole(y)), CopyCommand(whole(y), whole(z))])
    assert any("HAZARD" in message.upper() for message in validation_messages())
    validation_messages().clear()


# -- closing -------------------------------------------------------------------------------------------------


def test_close_destroys_what_is_left() -> None:
    device = open_device(0, NO_DIALECT)
    x, y = device.allocate(400), device.allocate(400, MemoryKind.DOWNLOAD)
    recording = device.record([launch(device.compile(SCALE, values(100)), x, y, n=100)], profile=True)
    device.submit(recording)
    device.close()
    device.close()
    stats = device.stats
    assert (stats.live_buffers, stats.live_bytes, stats.live_recordings) == (0, 0, 0)
    with pytest.raises(ClosedError, match="is closed"):
        device.allocate(4)
    for call in (device.submit, device.timings):
        with pytest.raises(ClosedError):
            call(recording)
    device.wait(recording)
    device.release(recording)
    device.free(x)


def test_a_forgotten_device_is_closed() -> None:
    device = open_device(0, NO_DIALECT)
    device.record([launch(device.compile(SCALE, values(4)), device.allocate(16), device.allocate(16), n=4)])
    stats = device.stats
    del device
    gc.collect()
    assert (stats.live_buffers, stats.live_recordings) == (0, 0)


def test_the_drivers_cache_is_kept_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    device = open_device(0, NO_DIALECT)
    device.compile(SCALE, values(4))
    device.record([])
    assert not (tmp_path / "vulkan-pipelines").exists(), "not for each recording: it is one file"
    device.keep()
    kept = list((tmp_path / "vulkan-pipelines").iterdir())
    assert len(kept) == 1
    device.close()
    kept[0].write_bytes(kept[0].read_bytes()[:-1])
    second = open_device(0, NO_DIALECT)
    second.compile(SCALE, values(4))
    second.close()


# -- SPIR-V --------------------------------------------------------------------------------------------------


def test_a_compile_error_shows_the_source_and_the_log(device: VulkanDevice) -> None:
    broken = kernel_source("float", "y[i] = A * nonsense[i];", DType.FLOAT32, "broken")
    with pytest.raises(CompileError) as caught:
        device.compile(broken, values(4))
    text = str(caught.value)
    line = next(i for i, t in enumerate(broken.text.splitlines(), 1) if "nonsense" in t)
    assert "kernel broken does not compile" in text and "undeclared identifier" in text
    assert f">{line:5d} |     if (i < N) {{ y[i] = A * nonsense[i]; }}" in text
    assert device.stats.compiles == 0
    device.compile(SCALE, values(4))


def test_spirv_targets_vulkan_1_1() -> None:
    compiler = glslang.find_compiler()
    assert compiler is not None and compiler.description
    made = compiler.compile(SCALE.text, "scale")
    assert made[:4] == glslang.SPIRV_MAGIC and made[4:8] == b"\x00\x03\x01\x00"
    assert compiler.compile(SCALE.text, "scale") == made


def unseen(name: str) -> KernelSource:
    return replace(SCALE, text=SCALE.text + f"// {name}\n")


def test_no_compiler_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NO_COMPILER", "1")
    assert glslang.find_compiler() is None
    with pytest.raises(CompileError, match="there is none") as caught:
        spirv.spirv_for(unseen("no compiler"))
    for hint in ("pip install slangpy", "GLSLANG_LIBRARY", "glslang-tools", "WEFT_NO_COMPILER"):
        assert hint in str(caught.value)


def test_the_disk_cache_spares_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    source = unseen("disk cache")
    first = spirv.spirv_for(source)
    monkeypatch.setenv("WEFT_NO_COMPILER", "1")
    assert spirv.spirv_for(source) == first
    monkeypatch.setenv("WEFT_CACHE", "0")
    with pytest.raises(CompileError):
        spirv.spirv_for(source)


def test_shipped_kernels_need_no_compiler(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = unseen("shipped")
    compiler = glslang.find_compiler()
    assert compiler is not None
    archive = tmp_path / "spirv.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as f:
        f.writestr(f"{source.digest}.spv", compiler.compile(source.text, "scale"))
    monkeypatch.setenv("WEFT_NO_COMPILER", "1")
    monkeypatch.setenv("WEFT_CACHE", "0")
    monkeypatch.setattr(spirv, "shipped", spirv.ShippedSet(archive))
    device.compile(source, values(4))
    with pytest.raises(CompileError):
        device.compile(unseen("not shipped"), values(4))
    archive.write_bytes(b"no zip")
    assert spirv.ShippedSet(archive).get(source.digest) is None


def test_compilers_are_looked_for_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = glslang._slangpy_library()
    assert inside is not None and "slangpy" not in sys.modules
    monkeypatch.setattr(glslang, "_slangpy_library", lambda: None)
    monkeypatch.setenv("GLSLANG_LIBRARY", inside)
    found = glslang.find_compiler()
    assert found is not None and inside in found.description
    monkeypatch.setenv("GLSLANG_LIBRARY", "/nowhere/libslang-glslang.so")
    with pytest.raises(ConfigError, match="GLSLANG_LIBRARY"):
        glslang.find_compiler()
    monkeypatch.delenv("GLSLANG_LIBRARY")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert glslang.find_compiler() is None
    for name in ("glslc", "glslangValidator"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
        found = glslang.find_compiler()
        assert found is not None and found.description == str(tmp_path / name)


def fake_program(folder: Path, script: str) -> Callable[[str], bytes]:
    """Return `compile` of a program that is a shell script; it is called with ... -o TARGET SOURCE."""
    program = folder / "glslangValidator"
    program.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
    program.chmod(stat.S_IRWXU)
    return lambda text: glslang.CommandCompiler(str(program), "-V").compile(text, "scale")


def test_a_program_on_the_path_compiles(tmp_path: Path) -> None:
    (tmp_path / "made.spv").write_bytes(glslang.SPIRV_MAGIC + bytes(16))
    good = fake_program(tmp_path, f'grep -q main "$last" && cp {tmp_path}/made.spv "$3"')
    assert good("void main() {}") == glslang.SPIRV_MAGIC + bytes(16)
    bad = fake_program(tmp_path, 'echo "ERROR: $last:2: wrong"; exit 1')
    with pytest.raises(CompileError) as caught:
        bad("first\nsecond\n")
    assert "ERROR: scale:2: wrong" in str(caught.value) and ">    2 | second" in str(caught.value)


def test_messages_have_words_for_driver_codes() -> None:
    from weft.backends.vulkan._vk import check, words

    assert words(-4) == "the device stopped answering (VK_ERROR_DEVICE_LOST)"
    with pytest.raises(DeviceError, match="VkResult -77"):
        check(-77, "a thing cannot be done")
    check(0, "nothing")
