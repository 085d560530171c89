"""How many built kernels a device holds: those in use, and of the others those that were used last."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers import opencl_kernels, vulkan_kernels
from tests.helpers.waits import LIMIT, ended
from weft.backends.gpu.device.built_kernels import Kept
from weft.backends.gpu.device.device import GpuDevice


class Made:
    """An object that counts itself."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture(params=["opencl", "vulkan"])
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[GpuDevice, Any]]:
    """Return a device that holds two kernels, and the module with kernels for it."""
    if request.param == "opencl":
        from weft.backends.opencl.device import open_device

        device: GpuDevice = open_device(0, opencl_kernels.NO_DIALECT)
        module: Any = opencl_kernels
    else:
        from weft.backends.vulkan.device import open_device as open_vulkan

        device, module = open_vulkan(0, vulkan_kernels.NO_DIALECT), vulkan_kernels
    device.hold_kernels(2)
    yield device, module
    device.close()


def source_of(module: Any) -> Any:
    return module.SOURCE if module is opencl_kernels else module.SCALE


def test_the_last_used_are_held_and_those_in_use_found() -> None:
    made: list[str] = []

    def make(name: str) -> Made:
        made.append(name)
        return Made(name)

    kept: Kept[str, Made] = Kept(2)
    in_use = kept.get("a", lambda: make("a"))
    for name in "bcb":
        kept.get(name, lambda name=name: make(name))  # type: ignore[misc]
    assert made == ["a", "b", "c"] and len(kept) == 3
    assert kept.get("a", lambda: make("a")) is in_use, "in use, and so not made anew"
    assert kept.get("b", lambda: make("b")).name == "b" and made == ["a", "b", "c"]
    kept.get("c", lambda: make("c"))
    assert made == ["a", "b", "c", "c"], "it was not used for the longest time"
    del in_use
    kept.get("b", lambda: make("b"))
    gc.collect()
    assert len(kept) == 2
    kept.limit(0)
    assert len(kept) == 0


def test_threads_that_ask_for_the_same_get_one_object() -> None:
    kept: Kept[int, Made] = Kept(1)
    made, found, inside = [], [], threading.Barrier(4, timeout=LIMIT)

    def make() -> Made:
        made.append(Made(""))
        return made[-1]

    def ask() -> None:
        inside.wait()
        found.append(kept.get(7, make))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert len(made) == 1 and all(each is made[0] for each in found)


def test_one_that_fails_is_made_by_the_next(opened: tuple[GpuDevice, Any]) -> None:
    kept: Kept[int, Made] = Kept(1)
    with pytest.raises(ZeroDivisionError):
        kept.get(7, lambda: Made(str(1 // 0)))
    assert kept.get(7, lambda: Made("x")).name == "x"


def test_a_device_drops_kernels_that_nobody_uses(opened: tuple[GpuDevice, Any]) -> None:
    device, module = opened
    source = source_of(module)
    for n in range(1, 8):
        device.compile(source, module.values(n))
    gc.collect()
    device.compile(source, module.values(7))
    assert device.stats.compiles == 7 and device.stats.live_kernels == 2
    device.compile(source, module.values(1))
    assert device.stats.compiles == 8, "it was built again"


def test_a_recording_holds_its_kernels(opened: tuple[GpuDevice, Any]) -> None:
    from weft.backends.gpu.device.device import Binding, LaunchCommand

    device, module = opened
    source = source_of(module)
    buffer, out = device.allocate(16), np.empty(4, np.float32)
    whole = Binding(buffer, 0, 16)
    recording = device.record([LaunchCommand(device.compile(source, module.values(4, 3.0)), (whole, whole), (1, 1, 1))])
    for n in range(5, 9):
        device.compile(source, module.values(n))
    gc.collect()
    built = device.stats.compiles
    device.compile(source, module.values(4, 3.0))
    assert device.stats.compiles == built, "what is in use is found"
    device.upload(buffer, 0, np.ones(4, np.float32))
    device.submit(recording)
    device.wait(recording)
    device.download(buffer, 0, out)
    assert out.tolist() == [3.0] * 4
    device.release(recording)
    device.free(buffer)


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_the_option_reaches_the_device(device: str) -> None:
    net = weft.Network("shapes")
    net.add_output("y", net.add_layer("Relu", net.add_input("x", ("n",))))
    options = {device: {"kernels_kept": 1}}
    with weft.load(net, device, fallback="error", backend_options=options) as session:
        for n in range(1, 9):
            x = np.linspace(-1, 1, n, dtype=np.float32)
            np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0))
        stats = session.pipelines[0].backend.device.stats  # type: ignore[attr-defined]
        assert stats.live_kernels <= 3
