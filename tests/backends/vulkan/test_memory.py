"""Memory of the Vulkan device: uploads and downloads, kinds of memory, running out of it, what is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.vulkan_kernels import SCALE, run, values
from weft.backends.gpu.device.device import Binding, CopyCommand, MemoryKind
from weft.backends.gpu.device.profiles import DeviceProfile
from weft.backends.vulkan import memory as vulkan_memory
from weft.backends.vulkan._vk import lib
from weft.backends.vulkan.device import VulkanDevice
from weft.backends.vulkan.memory_types import MemoryTypes
from weft.backends.vulkan.transfer import LARGEST
from weft.errors import BackendError, DeviceError, OutOfMemory


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
def test_memory_types_are_chosen_by_kind(types: list[tuple[int, int]], chosen: tuple[int, ...]) -> None:
    known = MemoryTypes.of(types, [1 << 37, 1 << 34, 1 << 28])
    assert tuple(known.candidates(kind)[0].index for kind in MemoryKind) == chosen


def test_a_profile_without_a_window_leaves_memory_of_the_device_or_of_the_host() -> None:
    whole = MemoryTypes.of([(15, 0)], [1 << 30])
    assert whole.writes_to_device and whole.is_unified
    apart = whole.limited(replace(DeviceProfile(), window=False))
    assert [(t.flags, t.index) for t in apart.types] == [(1, 0), (14, 0)] and not apart.writes_to_device
    assert [apart.candidates(kind)[0].flags for kind in (MemoryKind.DEVICE, MemoryKind.UPLOAD)] == [1, 14]
    assert not any(t.flags & 4 for t in whole.limited(replace(DeviceProfile(), coherent=False)).types)


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
    memory = device.parts.memory
    held = [device.allocate(4) for _ in range(3)]
    memory.max_count = len(held)
    with pytest.raises(OutOfMemory, match="maxMemoryAllocationCount is 3"):
        device.allocate(4)
    device.free(held.pop())
    device.allocate(4)


def test_a_kernel_without_memory_leaves_nothing_behind(device: VulkanDevice) -> None:
    """llvmpipe compiles a kernel in a dispatch, which needs a buffer; the validation layer finds what stays."""
    memory = device.parts.memory
    usual, memory.max_count = memory.max_count, 0
    with pytest.raises(OutOfMemory, match="maxMemoryAllocationCount is 0"):
        device.compile(SCALE, values(100))
    memory.max_count = usual
    device.compile(SCALE, values(100))


class FailingLibrary:
    """Vulkan, but one of its functions returns an error."""

    def __init__(self, function: str, result: int) -> None:
        self.function, self.result = function, result

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: self.result) if name == self.function else getattr(lib, name)


def test_memory_that_the_host_cannot_map_is_uploaded_to(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(vulkan_memory, "lib", FailingLibrary("vkMapMemory", -5))
        buffer = device.allocate(100)
        with pytest.raises(DeviceError, match="VK_ERROR_MEMORY_MAP_FAILED"):
            device.allocate(100, MemoryKind.UPLOAD)
    data, out = np.arange(90, dtype=np.uint8), np.zeros(90, np.uint8)
    device.upload(buffer, 10, data)
    device.download(buffer, 10, out)
    assert np.array_equal(out, data)


def test_an_exhausted_driver_is_out_of_memory(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan_memory, "lib", FailingLibrary("vkAllocateMemory", -2))
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
    gone = device.allocate(8)
    device.free(gone)
    with pytest.raises(DeviceError, match="freed"):
        device.upload(gone, 0, np.zeros(8, np.uint8))
    for piece in (Binding(buffer, 4, 8), Binding(buffer, 4, -4)):
        with pytest.raises(DeviceError, match="lies outside"):
            device.record([CopyCommand(piece, Binding(buffer, 0, piece.nbytes))])
