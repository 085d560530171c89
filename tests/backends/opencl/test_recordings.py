"""Kernels and copies recorded for the OpenCL device: both ways to replay, their order and times, on many threads."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.helpers.opencl_kernels import SOURCE, free, host, run, values, whole
from tests.helpers.waits import ended
from weft.backends.gpu.device.device import (
    BarrierCommand,
    Binding,
    Command,
    CopyCommand,
    LaunchCommand,
    MemoryKind,
)
from weft.backends.opencl.device import OpenCLDevice
from weft.errors import ClosedError, DeviceError


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
        ("4 bytes goes to 8 bytes", CopyCommand(Binding(x, 0, 4), Binding(x, 8, 8))),
        ("outside", CopyCommand(Binding(x, 8, -4), Binding(x, 16, -4))),
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


def test_the_span_of_launches_alone(device: OpenCLDevice) -> None:
    """Copies before and behind them do not count, and no command is timed by itself."""
    n = 1 << 16
    x, y, up = device.allocate(4 * n), device.allocate(4 * n), device.allocate(4 * n, MemoryKind.UPLOAD)
    launch = LaunchCommand(device.compile(SOURCE, values(n)), (whole(x), whole(y)), (8, 1, 1))
    upload, copy = CopyCommand(whole(up), whole(x)), CopyCommand(whole(y), whole(x))
    recording = device.record([upload, launch, copy, launch, copy], profile="span")
    assert device.span(recording, 1, 3) is None
    out = np.empty(n, np.float32)
    for _ in range(2):
        device.upload(y, 0, np.zeros(n, np.float32))
        assert up.host is not None
        up.host.view(np.float32)[:n] = 1.0
        device.submit(recording)
        device.wait(recording)
        assert 0 < (device.span(recording, 1, 3) or 0) < 10
        assert device.timings(recording) == [] and device.span(recording, 0, 3) is None
        device.download(x, 0, out)
        assert (out == 4.0).all(), "all steps ran, in order"
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
        ended(*threads)
    assert not errors
    assert device.stats.submits == 2 * 4 * 50
    assert device.stats.compiles == 5
    assert device.stats.allocations == 2 * 4 * 4
    assert len(device._queues._all) <= 5, "queues of ended threads are used again"
