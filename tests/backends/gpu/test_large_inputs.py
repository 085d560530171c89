"""Inputs and outputs that are large enough to be copied by threads and, to a GPU, sent in chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from tests.helpers.null_gpu import NullDevice, null_gpu
from tests.helpers.opened import STARTS, opened
from tests.helpers.waits import ended
from weft.backends.gpu.device.device import Command, GpuBuffer
from weft.backends.gpu.recording import chunked_upload
from weft.backends.gpu.recording.chunked_upload import Stream
from weft.backends.vulkan import submission
from weft.backends.vulkan.device import VulkanDevice
from weft.core.contract.profile import Profiled
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.host import parallel_copy
from weft.core.registry.backend_registry import registry
from weft.errors import DeviceError, DeviceLost, ExecutionError

DEVICES = ("cpu", "opencl", "vulkan")
AHEAD = DEVICES[1:]
"""The devices that send ahead here."""
SHAPE = (5, 3, 300, 301)
"""5.4 MB: above what is sent in chunks, which are not all of one size."""
CHUNKS = -(-4 * int(np.prod(SHAPE)) // chunked_upload.CHUNK)


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    """Copy by several threads whatever cores there are."""
    before = parallel_copy._copier.threads
    parallel_copy.set_threads(4)
    yield
    parallel_copy.set_threads(before)


@pytest.fixture(autouse=True)
def devices_send_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do on the CPU what only pays on a GPU."""
    for device in AHEAD:
        monkeypatch.setattr(opened(device), "sends_ahead", True)
        monkeypatch.setattr(opened(device), "uploads_directly", False)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send many chunks, the last of which is smaller; those of several are copied by one thread at a time."""
    monkeypatch.setattr(chunked_upload, "LEAST", 1 << 16)
    monkeypatch.setattr(chunked_upload, "CHUNK", 50_000)


def network(inputs: int = 1) -> Graph:
    net = Net()
    names = [net.input(f"x{i}", *SHAPE) for i in range(inputs)]
    total = names[0] if inputs == 1 else net.add("Add", *names)
    return net.finish(net.add("Relu", total, name="y"))


def random(seed: int) -> Array:
    return _drawn(seed).copy()  # to draw takes ten times as long as to copy


@lru_cache(16)
def _drawn(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(SHAPE, np.float32)


def relu(*arrays: Array) -> Array:
    result: Array = np.maximum(sum(arrays), 0)
    return result


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "every second": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], SHAPE),
    "doubles": lambda x: x.astype(np.float64),
}


@pytest.mark.covering
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_large_input_arrives(device: str, layout: str) -> None:
    with weft.load(network(), device=device, fallback="error") as session:
        for seed in range(3):
            x = LAYOUTS[layout](random(seed))
            (y,) = session.run(x)
            np.testing.assert_array_equal(y, relu(x.astype(np.float32)))


@pytest.mark.parametrize("device", AHEAD)
def test_a_large_input_is_taken_from_the_callers_array(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an array whose bytes are not the tensor's goes through the staging memory."""
    monkeypatch.setattr(opened(device), "uploads_directly", True)
    monkeypatch.setattr(opened(device), "computes_on_uploads", False)
    with weft.load(network(2), device=device, fallback="error") as session:
        (pipeline,) = session.pipelines
        for name, seed in zip(LAYOUTS, range(len(LAYOUTS)), strict=True):
            for staging in pipeline.mapped.values():
                staging[...] = np.nan
            x, other = LAYOUTS[name](random(seed)), random(seed + 10)
            (y,) = session.run(x, other)
            np.testing.assert_array_equal(y, relu(x.astype(np.float32), other))
            assert np.isnan(pipeline.mapped["x1"]).all(), "the contiguous one was not copied by the host"
            assert np.isnan(pipeline.mapped["x0"]).all() == (name in ("contiguous", "doubles"))
            session.submit(x, other)
            session.submit(other, other)
            np.testing.assert_array_equal(session.wait()[0], relu(other, other))


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


@pytest.mark.parametrize("device", AHEAD)
def test_threads_send_many_chunks_on_one_device(device: str, small_chunks: None) -> None:
    def work(seed: int) -> None:
        with weft.load(network(2), device=device, fallback="error") as session:
            for k in range(3):
                x, y = random(seed + k), random(seed + k + 5)
                np.testing.assert_array_equal(session.run(x, y)[0], relu(x, y))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, (0, 20, 40)))


@pytest.mark.parametrize("device", AHEAD)
@pytest.mark.parametrize("memory", ["normal", "limit"])
def test_a_resize_between_large_and_small_leaves_nothing(memory: str, device: str) -> None:
    def held() -> tuple[int, int]:
        return opened(device).stats.live_buffers, opened(device).stats.live_recordings

    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "N", *SHAPE[1:]), name="y"))
    weft.load(graph, device=device, shapes={"x": SHAPE}).close()
    before = held()
    with weft.load(graph, device=device, memory=memory) as session:
        for n in (5, 1, 5, 6, 1):
            x = np.full((n, *SHAPE[1:]), n, np.float32)
            np.testing.assert_array_equal(session.run(x)[0], x)
    assert held() == before


@pytest.mark.parametrize("device", AHEAD)
def test_chunks_are_sent_before_the_run(device: str) -> None:
    with weft.load(network(), device=device, fallback="error") as session:
        for seed in range(3):
            before = opened(device).stats.submits
            np.testing.assert_array_equal(session.run(random(seed))[0], relu(random(seed)))
            assert opened(device).stats.submits == before + CHUNKS + 1


@pytest.mark.parametrize("device", AHEAD)
def test_a_device_that_does_not_send_ahead_uploads_with_the_run(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened(device), "sends_ahead", False)
    with weft.load(network(), device=device, fallback="error") as session:
        for seed in range(2):
            before = opened(device).stats.submits
            np.testing.assert_array_equal(session.run(random(seed))[0], relu(random(seed)))
            assert opened(device).stats.submits == before + 1


@pytest.mark.parametrize("device", AHEAD)
def test_what_is_written_into_the_mapped_array_is_sent_with_the_run(device: str) -> None:
    with weft.load(network(), device=device, fallback="error") as session:
        session.run(random(0))
        (pipeline,) = session.pipelines
        for seed in (1, 2):
            pipeline.mapped["x0"][...] = random(seed)
            pipeline.execute()
            pipeline.wait()
            np.testing.assert_array_equal(pipeline.mapped["y"], relu(random(seed)))


@pytest.mark.parametrize("device", AHEAD)
def test_a_profiled_run_uploads_as_one_of_its_commands(device: str) -> None:
    with weft.load(network(), device=device, profile=True, fallback="error") as session:
        np.testing.assert_array_equal(session.run(random(0))[0], relu(random(0)))
        assert [e.name for e in session.profile.events if e.name.startswith("upload")] == ["upload x0"]


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", AHEAD)
def test_a_run_after_one_that_failed_between_its_inputs_is_right(
    device: str, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    """The chunks of the first input are in one thread's queue when another thread begins anew."""
    fill, calls = Stream.fill, []

    def second_fails(self: Stream, source: Array) -> None:
        calls.append(self)
        if len(calls) == 2:
            raise OSError("no more")
        fill(self, source)

    with weft.load(network(2), device=device, fallback="error") as session:
        monkeypatch.setattr(Stream, "fill", second_fails)
        with pytest.raises(ExecutionError, match="no more") as caught:
            session.run(random(0), random(1))
        assert caught.value.what == "'x1' could not be copied between the host and the device"
        found: list[Array] = []
        thread = threading.Thread(target=lambda: found.extend(session.run(random(2), random(3))))
        thread.start()
        ended(thread)
        np.testing.assert_array_equal(found[0], relu(random(2), random(3)))


@pytest.mark.parametrize("device", AHEAD)
@pytest.mark.parametrize("refused", [1, CHUNKS - 1, CHUNKS])
def test_a_run_after_a_submit_that_was_refused_is_right(
    device: str, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are on their way when the next one, or the run, is refused; then the session is used, or closed."""
    calls: list[Any] = []

    def refusing(start: Callable[[Any], None]) -> Callable[[Any], None]:
        def refuse(recording: Any) -> None:
            calls.append(recording)
            if len(calls) == refused + 1:
                raise DeviceError("no submit any more", where=device)
            start(recording)

        return refuse

    stats = opened(device).stats
    weft.load(network(), device=device).close()
    before = stats.live_buffers, stats.live_recordings
    for runs in (2, 0):
        calls.clear()
        with weft.load(network(), device=device, fallback="error") as session:
            session.run(random(0))
            with monkeypatch.context() as patch:
                for name in STARTS[device]:
                    patch.setattr(opened(device), name, refusing(getattr(opened(device), name)))
                with pytest.raises(DeviceError, match="no submit any more"):
                    session.run(random(1))
            for seed in range(2, 2 + runs):
                np.testing.assert_array_equal(session.run(random(seed))[0], relu(random(seed)))
        assert (stats.live_buffers, stats.live_recordings) == before


def test_a_session_closes_whose_chunks_were_under_way_when_vulkan_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class LostLibrary:
        def __getattr__(self, name: str) -> Any:
            lost = name in ("vkGetFenceStatus", "vkWaitForFences")
            return (lambda *_: -4) if lost else getattr(real, name)

    real, device = cast(Any, submission).lib, cast(VulkanDevice, opened("vulkan"))
    monkeypatch.setattr(device, "gone", False)  # as it is again afterwards: nothing was lost
    weft.load(network(), device="vulkan").close()
    before = device.stats.live_buffers, device.stats.live_recordings
    session = weft.load(network(), device="vulkan", fallback="error")
    session.submit(random(0))
    device.parts.context.idle()
    with monkeypatch.context() as patch:
        patch.setattr(submission, "lib", LostLibrary())
        with pytest.raises(DeviceLost, match="stopped answering"):
            session.wait()
        assert device.gone
        session.close()
    assert (device.stats.live_buffers, device.stats.live_recordings) == before


class Ordered(NullDevice):
    """Sends ahead, notes what is submitted and waited for, and fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.sends_ahead = True
        self.log: list[tuple[str, int]] = []
        self.refuse, self.refusal = -1, DeviceError("no submit any more", where="null:0")

    def submit(self, recording: Any) -> None:
        if len(self.log) == self.refuse:
            raise self.refusal
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


def test_chunks_of_which_one_cannot_be_recorded_leave_no_recordings(device: Ordered) -> None:
    record, made = device.record, list[Any]()

    def refusing(commands: Sequence[Command], profile: Profiled = False) -> Any:
        if len(made) == CHUNKS - 1:
            raise DeviceError("no recording any more", where="null:0")
        made.append(record(commands, profile))
        return made[-1]

    device.record = refusing  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="no recording any more"):
        weft.load(network(), device="null", fallback="error")
    assert len(made) == CHUNKS - 1 > 1 and device.stats.live_recordings == 0


def test_after_a_failed_submit_the_next_run_waits_for_what_was_sent(device: Ordered) -> None:
    with weft.load(network(), device="null", fallback="error") as session:
        device.log.clear()
        device.refuse = 2
        with pytest.raises(DeviceError, match="no submit any more"):
            session.run(random(0))
        sent, device.refuse = [handle for _, handle in device.log], -1
        session.run(random(0))
        assert device.log[2:4] == [("wait", handle) for handle in sent]
        assert [what for what, _ in device.log[4:]] == ["submit"] * (CHUNKS + 1) + ["wait"]


@pytest.mark.parametrize("sent", [1, CHUNKS])
def test_after_a_failed_submit_all_that_another_device_wrote_is_sent(device: Ordered, sent: int) -> None:
    with weft.load(network(), device="null", fallback="error") as session:
        device.log.clear()
        device.refuse = sent
        (pipeline,) = session.pipelines
        with pytest.raises(DeviceError, match="no submit any more"):
            pipeline.execute()
        device.refuse = -1
        device.log.clear()
        pipeline.execute()  # the memory was written by a copy between devices, not by `fill`
        pipeline.wait()
        assert [what for what, _ in device.log] == ["wait"] * sent + ["submit"] * (CHUNKS + 1) + ["wait"]


@pytest.mark.parametrize("sent", [0, 1, CHUNKS])
def test_a_device_that_is_lost_at_a_submit_is_gone(device: Ordered, sent: int) -> None:
    with weft.load(network(), device="null", fallback="error") as session:
        device.log.clear()
        device.refuse, device.refusal = sent, DeviceLost("gone", where="null:0")
        with pytest.raises(DeviceLost, match="gone"):
            session.run(random(0))
        assert device.gone
    assert device.stats.live_buffers == device.stats.live_recordings == 0


def test_a_device_that_is_lost_in_a_load_is_gone() -> None:
    class Dying(NullDevice):
        def upload(self, buffer: GpuBuffer, offset: int, data: Array) -> None:
            raise DeviceLost("the device gave up", where="null:0")

    with null_gpu():
        creator: Any = registry.find("null")
        made = creator.device = Dying()
        net = Net()
        graph = net.finish(net.conv(net.input("x", 1, 3, 4, 4), 4, 1))
        with pytest.raises(DeviceLost, match="gave up"):
            weft.load(graph, device="null", fallback="error")
        assert made.gone


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
    assert device.log[CHUNKS:] == [("wait", handle) for _, handle in device.log[:CHUNKS]]
    assert device.stats.live_buffers == device.stats.live_recordings == 0
