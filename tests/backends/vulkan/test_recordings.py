"""Kernels and copies recorded for the Vulkan device, and their times; what may not be recorded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.vulkan_kernels import (
    ADD,
    BYTES,
    CONSTANTS,
    HALF,
    HEAD,
    NO_DIALECT,
    SCALE,
    host,
    launch,
    run,
    values,
    whole,
)
from weft.backends.gpu.device.device import (
    BarrierCommand,
    Binding,
    Command,
    CopyCommand,
    LaunchCommand,
    MemoryKind,
)
from weft.backends.vulkan.device import VulkanDevice, open_device, validation_messages
from weft.core.graph.dtypes import DType
from weft.errors import CompileError, DeviceError
from weft.kernels.source import Arg, KernelCode, KernelSource


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
    with pytest.raises(DeviceError, match=f"multiples of {align}"):
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
    source = KernelSource("grid", KernelCode(text), (Arg("y", DType.INT32, "linear", written=True),), CONSTANTS)
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
    with pytest.raises(DeviceError, match="1 buffers are bound to a kernel that takes 2"):
        device.record([LaunchCommand(kernel, (whole(buffer),), (1, 1, 1))])
    grid = (device.caps.max_grid[0] + 1, 1, 1)
    with pytest.raises(DeviceError, match="more work-groups"):
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


def test_the_span_of_launches_alone(device: VulkanDevice) -> None:
    """Copies before and behind them do not count, and no command is timed by itself."""
    n = 1 << 18
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    step = launch(device.compile(SCALE, values(n)), x, y, n=n)
    there, back = CopyCommand(whole(x), whole(y)), CopyCommand(whole(y), whole(x))
    commands: list[Command] = [there, BarrierCommand(), step, BarrierCommand(), step, BarrierCommand(), back]
    recording = device.record(commands, profile="span")
    assert device.span(recording, 2, 4) is None
    for _ in range(2):
        run(device, recording)
        assert 0 < (device.span(recording, 2, 4) or 0) < 10
        assert device.timings(recording) == [] and device.span(recording, 0, 4) is None
    nothing = device.record([there], profile="span")
    run(device, nothing)
    assert device.timings(nothing) == [] and device.span(nothing, 0, 0) is None


def test_empty_recordings_and_waits(device: VulkanDevice) -> None:
    recording = device.record([])
    device.wait(recording)
    run(device, recording)
    device.wait(recording)
    assert device.timings(recording) == []


def test_validation_hears_a_missing_barrier(device: VulkanDevice) -> None:
    x, y, z = (device.allocate(64) for _ in range(3))
    device.record([CopyCommand(whole(x), whole(y)), CopyCommand(whole(y), whole(z))])
    assert any("HAZARD" in message.upper() for message in validation_messages())
    validation_messages().clear()


def test_an_interrupt_while_commands_are_recorded_leaves_nothing(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation reports objects that are left when the device is closed."""
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    x, y = device.allocate(64), device.allocate(64)
    kernel = device.compile(SCALE, values(16, 2.0))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("weft.backends.vulkan.context.Context.last_barrier", interrupted)
        device.record([launch(kernel, x, y, n=16)])
    for buffer in (x, y):
        device.free(buffer)


def test_a_device_that_cannot_be_opened_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise DeviceError("no more")

    monkeypatch.setattr("weft.backends.vulkan.transfer.CommandsNow", refused)
    with pytest.raises(DeviceError, match="no more"):
        open_device(0, NO_DIALECT)
