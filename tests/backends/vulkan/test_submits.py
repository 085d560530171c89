"""Recordings that run on the Vulkan device: in order, waited for, on many threads, refused, lost; how it is closed."""

from __future__ import annotations

import gc
import threading
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.helpers.vulkan_kernels import ADD, NO_DIALECT, SCALE, host, launch, run, values, whole
from tests.helpers.waits import ended
from weft.backends.gpu.device.device import BarrierCommand, Binding, CopyCommand, MemoryKind
from weft.backends.vulkan.device import VulkanDevice, open_device
from weft.errors import BackendError, ClosedError, DeviceLost, OutOfMemory


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
    from weft.backends.vulkan import submission

    class FullLibrary:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: -2) if name == "vkQueueSubmit" else getattr(real, name)

    real, first = cast(Any, submission).lib, device.record([])
    device.submit(first)
    run(device, device.record([]))
    with monkeypatch.context() as patch:
        patch.setattr(submission, "lib", FullLibrary())
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
    ended(*threads)
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
    from weft.backends.vulkan import submission

    class LostLibrary:
        def __getattr__(self, name: str) -> Any:
            lost = name in ("vkGetFenceStatus", "vkWaitForFences")
            return (lambda *_: -4) if lost else getattr(real, name)

    real = cast(Any, submission).lib
    recordings = [device.record([]) for _ in range(2)]
    for recording in recordings:
        device.submit(recording)
    device.parts.context.idle()
    with monkeypatch.context() as patch:
        patch.setattr(submission, "lib", LostLibrary())
        for call in (device.submit, device.wait):
            with pytest.raises(DeviceLost, match="stopped answering"):
                call(recordings[0])
        for recording in recordings:
            device.release(recording)
    assert device.stats.live_recordings == 0


def test_polling_ends_in_a_blocking_wait(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.backends.vulkan import submission

    monkeypatch.setattr(device.parts.context.physical, "software", False)
    n = 1 << 21
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    step = launch(device.compile(ADD, values(n)), x, y, n=n)
    recording = device.record([step, BarrierCommand()] * 3)
    blocked, real = list[bool](), cast(Any, submission).lib

    class Watched:
        def __getattr__(self, name: str) -> Any:
            if name == "vkWaitForFences":
                blocked.append(True)
            return getattr(real, name)

    monkeypatch.setattr(submission, "lib", Watched())
    for budget in (0.0, 10.0):
        blocked.clear()
        monkeypatch.setattr(submission, "SPIN_SECONDS", budget)
        run(device, recording)
        assert bool(blocked) == (budget == 0.0)


def test_a_later_run_is_polled_for_when_the_one_before_took_so_long(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.backends.vulkan import recording as recordings
    from weft.backends.vulkan import submission

    monkeypatch.setattr(device.parts.context.physical, "software", False)
    recording, called, real = device.record([]), list[str](), cast(Any, submission).lib
    now, ends, takes = 0.0, 0.0, 0.03

    class Slow:
        """A device whose runs seem to end some time after their submit, by a clock that each look at it moves on."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def vkQueueSubmit(self, *args: Any) -> Any:
            nonlocal ends
            ends, result = now + takes, real.vkQueueSubmit(*args)
            real.vkDeviceWaitIdle(device.parts.context.device)
            return result

        def vkGetFenceStatus(self, *_: Any) -> int:
            called.append("poll")
            return 0 if now >= ends else 1

        def vkWaitForFences(self, device: Any, count: int, fences: Any, every: int, timeout: int) -> int:
            nonlocal now
            called.append(f"sleep {timeout * 1e-6:.0f}")
            now = min(now + timeout * 1e-9, ends)
            return 0 if now >= ends else 2

    def clock() -> float:
        nonlocal now
        now += 1e-4
        return now

    monkeypatch.setattr(submission, "lib", Slow())
    for module in (submission, recordings):
        monkeypatch.setattr(module, "perf_counter", clock)


    def told() -> list[str]:
        """Return what a run calls, polls in a row as one."""
        called.clear()
        run(device, recording)
        return [each for each, _ in groupby(called)]

    assert told() == ["poll", "sleep 100"]
    assert told() == ["poll", "sleep 28", "poll"]
    takes = 0.01
    assert told() == ["poll", "sleep 28"], "it ended while the host slept"
    assert told() == ["poll", "sleep 8", "poll"]
    takes = 2.5
    assert told() == ["poll", "sleep 8", "poll", "sleep 100"]
    assert told() == ["poll", "sleep 100", "sleep 96", "poll"], "Ctrl-C works each tenth of a second"
    takes = 0.001
    told()
    device.submit(recording)
    now += 0.05
    device.wait(recording)
    assert told() == ["poll"], "the host was late, not the device"


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
