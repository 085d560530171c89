"""The queue of a thread and the one for its uploads beside it, on a machine with OpenCL."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pyopencl as cl
import pytest

import weft
from tests.core.nets import Net
from tests.core.test_large_inputs import opened
from weft.backends.gpu.device import Binding, CopyCommand, GpuBuffer, MemoryKind
from weft.backends.opencl.device import OpenCLDevice
from weft.backends.opencl.discovery import raw_device
from weft.backends.opencl.queues import QueuePool

COMPLETE = cl.command_execution_status.COMPLETE


@pytest.fixture
def pool() -> Iterator[QueuePool]:
    device = raw_device(0)
    made = QueuePool(cl.Context([device]), device)
    yield made
    made.close()


def test_what_comes_after_uploads_waits_for_them_and_what_came_before_does_not(pool: QueuePool) -> None:
    before = cl.enqueue_marker(pool.current())
    uploads = pool.uploads()
    held = cl.UserEvent(uploads.context)
    cl.enqueue_barrier(uploads, wait_for=[held])
    before.wait()
    after = cl.enqueue_marker(pool.current())
    assert pool.current() is not uploads
    pool.current().flush()
    assert after.command_execution_status != COMPLETE
    held.set_status(COMPLETE)
    after.wait()


def test_uploads_are_waited_for_by_the_next_work_alone(pool: QueuePool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[cl.CommandQueue] = []
    real = cl.enqueue_barrier

    def counting(queue: cl.CommandQueue, wait_for: list[cl.Event]) -> cl.Event:
        calls.append(queue)
        return real(queue, wait_for)

    monkeypatch.setattr(cl, "enqueue_barrier", counting)
    for _ in range(3):
        pool.uploads()
    for _ in range(3):
        pool.current()
    assert calls == [pool.current()]


def test_a_lane_whose_thread_ended_behind_its_uploads_catches_up_in_the_next(pool: QueuePool) -> None:
    found: list[cl.CommandQueue] = []

    def work(begin: bool) -> None:
        found.append(pool.uploads() if begin else pool.current())

    for begin in (True, False):
        thread = threading.Thread(target=work, args=[begin])
        thread.start()
        thread.join()
    (lane,) = pool._all
    assert found == [lane.uploads, lane.queue] and not lane.behind
    pool.finish()


def test_uploads_that_are_sent_are_there_when_a_submit_reads_them() -> None:
    device = opened("opencl")
    assert isinstance(device, OpenCLDevice)
    count = 1 << 18
    up, on, down = (
        device.allocate(4 * count, kind) for kind in (MemoryKind.UPLOAD, MemoryKind.DEVICE, MemoryKind.DOWNLOAD)
    )

    def whole(buffer: GpuBuffer) -> Binding:
        return Binding(buffer, 0, buffer.nbytes)

    sent, read = (device.record([CopyCommand(whole(a), whole(b))]) for a, b in ((up, on), (on, down)))
    assert up.host is not None and down.host is not None
    for value in range(20):
        up.host.view(np.float32)[:] = value
        device.send(sent)
        device.submit(read)
        device.wait(read)
        assert (down.host.view(np.float32) == value).all()
    assert sent.queue is not read.queue
    for recording in (sent, read):
        device.release(recording)
    for buffer in (up, on, down):
        device.free(buffer)


def test_chunks_of_a_large_input_go_beside_the_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened("opencl"), "sends_ahead", True)
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", 5, 3, 300, 301), name="y"))
    with weft.load(graph, device="opencl", fallback="error") as session:
        x = np.random.default_rng(0).standard_normal((5, 3, 300, 301)).astype(np.float32)
        np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0))
        (pipeline,) = session.pipelines
        *chunks, run = pipeline.backend.recording.handles  # type: ignore[attr-defined]
        assert len(chunks) > 2 and len({id(chunk.queue) for chunk in chunks}) == 1
        assert run.queue is not chunks[0].queue
