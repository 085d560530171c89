"""Inputs and outputs that are large enough to be copied by threads and, on OpenCL, sent in chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import weft
from tests.core.nets import Net
from tests.core.null_gpu import NullDevice, null_gpu
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.device import GpuDevice
from weft.backends.gpu.streams import CHUNK, Stream
from weft.core import hostcopy
from weft.core.graph import Graph
from weft.core.layout import Array
from weft.core.registry import registry
from weft.errors import DeviceError, DeviceLost, ExecutionError

DEVICES = ("cpu", "opencl", "vulkan")
SHAPE = (5, 3, 300, 301)
"""5.4 MB: above what is sent in chunks, which are not all of one size."""
CHUNKS = -(-4 * int(np.prod(SHAPE)) // CHUNK)


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    """Copy by several threads whatever cores there are."""
    before = hostcopy._copier.threads
    hostcopy.set_threads(4)
    yield
    hostcopy.set_threads(before)


def network(inputs: int = 1) -> Graph:
    net = Net()
    names = [net.input(f"x{i}", *SHAPE) for i in range(inputs)]
    total = names[0] if inputs == 1 else net.add("Add", *names)
    return net.finish(net.add("Relu", total, name="y"))


def random(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def relu(*arrays: Array) -> Array:
    result: Array = np.maximum(sum(arrays), 0)
    return result


def opened(device: str) -> GpuDevice:
    creator = registry.find(device)
    assert isinstance(creator, GpuCreator)
    return creator.runtime(0).device


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "every second": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], SHAPE),
    "doubles": lambda x: x.astype(np.float64),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_large_input_arrives(device: str, layout: str) -> None:
    with weft.load(network(), device=device, fallback="error") as session:
        for seed in range(3):
            x = LAYOUTS[layout](random(seed))
            (y,) = session.run(x)
            np.testing.assert_array_equal(y, relu(x.astype(np.float32)))


@pytest.mark.parametrize("device", DEVICES)
def test_large_outputs_go_into_the_callers_arrays(device: str) -> None:
    wide = np.full((*SHAPE[:-1], 2 * SHAPE[-1]), -1, np.float32)
    with weft.load(network(), device=device, fallback="error") as session:
        for out in (np.empty(SHAPE, np.float32), wide[..., ::2]):
            (y,) = session.run(random(1), outputs=[out])
            assert y is out
            np.testing.assert_array_equal(out, relu(random(1)))
    assert (wide[..., 1::2] == -1).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_submit_after_a_submit_brings_the_later_inputs(device: str) -> None:
    with weft.load(network(2), device=device, fallback="error") as session:
        for seed in range(4):
            session.submit(random(seed), random(seed + 10))
        np.testing.assert_array_equal(session.wait()[0], relu(random(3), random(13)))


@pytest.mark.parametrize("device", DEVICES)
def test_sessions_in_threads_get_their_own_large_inputs(device: str) -> None:
    def work(sessions: tuple[weft.Session, ...], seed: int) -> bool:
        x = random(seed)
        return all(np.array_equal(s.run(x)[0], relu(x)) for s in sessions for _ in range(2))

    with (
        weft.load(network(), device=device) as one,
        weft.load(network(), device=device) as two,
        ThreadPoolExecutor(4) as pool,
    ):
        assert all(pool.map(lambda seed: work(((one, two), (two, one), (one, one))[seed % 3], seed), range(9)))


@pytest.mark.parametrize("memory", ["normal", "limit"])
def test_a_resize_between_large_and_small_leaves_nothing(memory: str) -> None:
    def held() -> tuple[int, int]:
        return opened("opencl").stats.live_buffers, opened("opencl").stats.live_recordings

    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "N", *SHAPE[1:]), name="y"))
    weft.load(graph, device="opencl", shapes={"x": SHAPE}).close()
    before = held()
    with weft.load(graph, device="opencl", memory=memory) as session:
        for n in (5, 1, 5, 6, 1):
            x = np.full((n, *SHAPE[1:]), n, np.float32)
            np.testing.assert_array_equal(session.run(x)[0], x)
    assert held() == before


def test_opencl_sends_chunks_before_the_run() -> None:
    with weft.load(network(), device="opencl", fallback="error") as session:
        before = opened("opencl").stats.submits
        session.run(random(0))
        assert opened("opencl").stats.submits == before + CHUNKS + 1


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_what_is_written_into_the_mapped_array_is_sent_with_the_run(device: str) -> None:
    with weft.load(network(), device=device, fallback="error") as session:
        session.run(random(0))
        (pipeline,) = session.pipelines
        for seed in (1, 2):
            pipeline.mapped["x0"][...] = random(seed)
            pipeline.execute()
            pipeline.wait()
            np.testing.assert_array_equal(pipeline.mapped["y"], relu(random(seed)))


def test_a_profiled_run_uploads_as_one_of_its_commands() -> None:
    with weft.load(network(), device="opencl", profile=True, fallback="error") as session:
        np.testing.assert_array_equal(session.run(random(0))[0], relu(random(0)))
        assert [e.name for e in session.profile.events if e.name.startswith("upload")] == ["upload x0"]


# -- failures ------------------------------------------------------------------------------------------------


def test_a_run_after_one_that_failed_between_its_inputs_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks of the first input are in one thread's queue when another thread begins anew."""
    fill, calls = Stream.fill, []

    def second_fails(self: Stream, source: Array) -> None:
        calls.append(self)
        if len(calls) == 2:
            raise OSError("no more")
        fill(self, source)

    with weft.load(network(2), device="opencl", fallback="error") as session:
        monkeypatch.setattr(Stream, "fill", second_fails)
        with pytest.raises(ExecutionError, match="no more") as caught:
            session.run(random(0), random(1))
        assert str(caught.value.where).endswith("onFillInput")
        found: list[Array] = []
        thread = threading.Thread(target=lambda: found.extend(session.run(random(2), random(3))))
        thread.start()
        thread.join()
        np.testing.assert_array_equal(found[0], relu(random(2), random(3)))


class Ordered(NullDevice):
    """Sends ahead, notes what is submitted and waited for, and fails where it is told to."""

    sends_ahead = True

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, int]] = []
        self.refuse = -1

    def submit(self, recording: Any) -> None:
        if len(self.log) == self.refuse:
            raise DeviceError("no submit any more", where="null:0")
        self.log.append(("submit", id(recording)))
        super().submit(recording)

    def wait(self, recording: Any) -> None:
        self.log.append(("wait", id(recording)))
        super().wait(recording)


@pytest.fixture
def device() -> Iterator[Ordered]:
    with null_gpu():
        creator: Any = registry.find("null")
        made = creator.device = Ordered()
        yield made


def test_chunks_are_submitted_before_the_run_which_is_what_is_waited_for(device: Ordered) -> None:
    with weft.load(network(), device="null", fallback="error") as session:
        for _ in range(2):
            device.log.clear()
            session.run(random(0))
            assert [what for what, _ in device.log] == ["submit"] * (CHUNKS + 1) + ["wait"]
            assert device.log[-1][1] == device.log[-2][1] and len(set(device.log)) == CHUNKS + 2


def test_after_a_failed_submit_the_next_run_waits_for_what_was_sent(device: Ordered) -> None:
    with weft.load(network(), device="null", fallback="error") as session:
        device.log.clear()
        device.refuse = 2
        with pytest.raises(DeviceError, match="no submit any more"):
            session.run(random(0))
        last, device.refuse = device.log[1][1], -1
        session.run(random(0))
        assert device.log[2] == ("wait", last)
        assert [what for what, _ in device.log[3:]] == ["submit"] * (CHUNKS + 1) + ["wait"]


def test_a_lost_device_is_reported_and_the_session_closes(device: Ordered) -> None:
    with weft.load(network(), device="null", fallback="error") as session:
        device.lost = DeviceLost("gone", where="null:0")
        with pytest.raises(DeviceLost, match="gone"):
            session.run(random(0))
    assert device.stats.live_buffers == device.stats.live_recordings == 0


def test_chunks_that_no_run_followed_are_waited_for_at_the_close(device: Ordered) -> None:
    with weft.load(network(), device="null", fallback="error") as session:
        device.log.clear()
        device.refuse = CHUNKS
        with pytest.raises(DeviceError, match="no submit any more"):
            session.run(random(0))
    assert device.log[-1] == ("wait", device.log[CHUNKS - 1][1])
    assert device.stats.live_buffers == device.stats.live_recordings == 0
