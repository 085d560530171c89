"""Ctrl-C around a submit: nobody goes on while the device still works, and the next run is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.backends.gpu.device.device import MemoryKind
from weft.backends.vulkan import submission
from weft.core.graph.graph import Graph

APIS = ["opencl", "vulkan"]


def squares() -> Graph:
    net = Net()
    x = net.input("x", 64, 64)
    return net.finish(net.add("MatMul", x, x, name="y"))


def inputs(k: int) -> np.ndarray:
    return np.eye(64, dtype=np.float32) * (k + 1)


@pytest.mark.parametrize("api", APIS)
def test_a_run_is_waited_for_though_an_interrupt_came_right_after_its_submit(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with weft.load(squares(), api, fallback="error") as session:
        session.run(inputs(0))
        device: Any = session.pipelines[0].backend.device  # type: ignore[attr-defined]
        submit = type(device).submit

        def interrupted(self: Any, handle: Any) -> None:
            submit(self, handle)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(type(device), "submit", interrupted)
            session.run(inputs(1))
        for k in range(2, 5):
            np.testing.assert_array_equal(session.run(inputs(k))[0], inputs(k) @ inputs(k))


class Interrupted:
    """Vulkan, whose submits are interrupted when the driver has the work, or before."""

    def __init__(self, lib: Any, *, reached: bool) -> None:
        self._lib, self._reached = lib, reached

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def vkQueueSubmit(self, *arguments: Any) -> None:
        """Submit, if the driver is to have the work, and raise."""
        if self._reached:
            self._lib.vkQueueSubmit(*arguments)
        raise KeyboardInterrupt


@pytest.mark.parametrize("work", ["run", "copy"])
def test_work_that_may_have_been_submitted_is_waited_for(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside of the submit itself, before or after the driver has it."""
    with weft.load(squares(), "vulkan", fallback="error") as session:
        session.run(inputs(0))
        device: Any = session.pipelines[0].backend.device  # type: ignore[attr-defined]
        buffers: list[Any] = []
        for reached in (False, True):
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(submission, "lib", Interrupted(vars(submission)["lib"], reached=reached))
                if work == "run":
                    session.run(inputs(1))
                else:
                    buffers.append(device.allocate(1 << 12, MemoryKind.DEVICE))
                    device.download(buffers[-1], 0, np.zeros(1 << 12, np.uint8))
            np.testing.assert_array_equal(session.run(inputs(2))[0], inputs(2) @ inputs(2))
        for buffer in buffers:
            data, out = np.arange(1 << 11, dtype=np.uint16), np.empty(1 << 11, np.uint16)
            device.upload(buffer, 0, data)
            device.download(buffer, 0, out)
            np.testing.assert_array_equal(out, data)
            device.free(buffer)
