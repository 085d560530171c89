"""A driver that compiles a kernel at its first dispatch does so in the load; Mesa's own cache on disk tells when."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.plugins import in_new_process
from tests.helpers.vulkan_kernels import SCALE, host, launch, run, values
from weft.backends.gpu.device.device import MemoryKind
from weft.backends.vulkan.context import Context
from weft.backends.vulkan.device import VulkanDevice
from weft.backends.vulkan.pipeline_builder import PipelineBuilder
from weft.errors import ClosedError

LOAD = """
import numpy as np
import weft
from tests.helpers.nets import Net

net = Net()
net.input("x", 1, 8, 6, 6)
graph = net.finish(net.add("Softmax", net.add("MaxPool", "x", kernel_shape=(2, 2)), axis=1))
seen = []
with weft.load(graph, "vulkan", fallback="error", progress=lambda done, of: seen.append((done, of))) as session:
    assert seen and seen[-1][0] == seen[-1][1]
    RUN
"""


def test_a_load_leaves_nothing_for_the_first_run_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESA_DISK_CACHE_MULTI_FILE", "1")
    monkeypatch.setenv("MESA_SHADER_CACHE_DIR", str(tmp_path))

    def compiled() -> set[str]:
        return {file.name for file in tmp_path.rglob("*") if file.is_file()} - {"index"}

    in_new_process(LOAD.replace("RUN", "pass"))
    loaded = compiled()
    in_new_process(LOAD.replace("RUN", "session.run(np.ones((1, 8, 6, 6), np.float32))"))
    assert len(loaded) > 1 and compiled() == loaded


def factors_of(device: VulkanDevice, factors: Sequence[float], threads: int) -> list[float]:
    """Have threads compile a kernel for each factor, run them all, and return by what they multiplied."""
    with device.building(), ThreadPoolExecutor(threads) as pool:
        kernels = list(pool.map(lambda factor: device.compile(SCALE, values(64, factor)), factors))
    x, found = device.allocate(256, MemoryKind.UPLOAD), []
    host(x)[:] = 1.0
    for kernel in kernels:
        y = device.allocate(256, MemoryKind.DOWNLOAD)
        recording = device.record([launch(kernel, x, y, n=64)])
        run(device, recording)
        found.append(float(np.unique(host(y)).item()))
        device.release(recording)
        device.free(y)
    device.free(x)
    return found


def test_several_threads_compile(device: VulkanDevice) -> None:
    assert factors_of(device, [2.0, 3.0, 4.0], threads=2) == [2.0, 3.0, 4.0]


def test_a_device_that_is_closed_while_a_thread_compiles_is_destroyed_after_it(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a thread goes on after Ctrl-C; the validation layer finds what is used or left behind after the device."""
    begun, may_end, build, destroy = threading.Event(), threading.Event(), PipelineBuilder.pipeline, Context.destroy
    destroyed: list[Context] = []

    def waits(self: PipelineBuilder, *given: Any) -> Any:
        begun.set()
        assert may_end.wait(60)
        return build(self, *given)

    def notes(self: Context) -> None:
        destroyed.append(self)
        destroy(self)

    monkeypatch.setattr(PipelineBuilder, "pipeline", waits)
    monkeypatch.setattr(Context, "destroy", notes)
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(device.compile, SCALE, values(64, 3.5))
        assert begun.wait(60)
        device.close()
        with pytest.raises(ClosedError):
            device.allocate(256)
        assert not destroyed
        may_end.set()
        assert compiling.exception() is None or isinstance(compiling.exception(), ClosedError)
    assert len(destroyed) == 1
