"""The queue of a thread and the one for its uploads beside it, on a machine with OpenCL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyopencl as cl
import pytest

import weft
from tests.helpers.device_figures import set_figures
from tests.helpers.nets import Net
from tests.helpers.opencl_kernels import SOURCE, free, values, whole
from tests.helpers.opened import opened
from tests.helpers.waits import ended, returns
from weft.backends.gpu.device.device import Binding, CopyCommand, GpuBuffer, LaunchCommand, MemoryKind
from weft.backends.gpu.lowering.launches.micro_batches import MicroBatchFigures
from weft.backends.opencl.device import OpenCLDevice
from weft.backends.opencl.discovery import raw_device
from weft.backends.opencl.queues import QueuePool
from weft.backends.opencl.recording import QueuedWrite
from weft.errors import DeviceError
from weft.kernels.chain import CHAIN
from weft.kernels.source import KernelCode

COMPLETE = cl.command_execution_status.COMPLETE


@pytest.fixture
def pool() -> Iterator[QueuePool]:
    device = raw_device(0)
    made = QueuePool(cl.Context([device]), device)
    yield made
    made.close()


@contextmanager
def released(held: cl.UserEvent) -> Iterator[None]:
    """Let what waits for an event go at the end, also of a test that fails: its queue could not be closed."""
    try:
        yield
    finally:
        held.set_status(COMPLETE)


def test_what_comes_after_uploads_waits_for_them_and_what_came_before_does_not(pool: QueuePool) -> None:
    before = cl.enqueue_marker(pool.current())
    uploads = pool.uploads()
    held = cl.UserEvent(uploads.context)
    cl.enqueue_barrier(uploads, wait_for=[held])
    with released(held):
        returns(before.wait)
        after = cl.enqueue_marker(pool.current())
        assert pool.current() is not uploads
        pool.current().flush()
        assert after.command_execution_status != COMPLETE
    returns(after.wait)


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
        ended(thread)
    (lane,) = pool._all
    assert found == [lane.uploads, lane.queue] and not lane.behind


def test_uploads_run_while_earlier_work_waits(pool: QueuePool) -> None:
    held = cl.UserEvent(pool.current().context)
    cl.enqueue_barrier(pool.current(), wait_for=[held])
    with released(held):
        done = cl.enqueue_marker(pool.uploads())
        pool.uploads().flush()
        returns(done.wait)
        assert done.command_execution_status == COMPLETE
    returns(pool.finish)


def test_to_wait_for_all_is_to_wait_for_uploads_too(pool: QueuePool) -> None:
    held = cl.UserEvent(pool.uploads().context)
    cl.enqueue_barrier(pool.uploads(), wait_for=[held])
    waiting = threading.Thread(target=pool.finish)
    waiting.start()
    with released(held):
        waiting.join(0.1)
        assert waiting.is_alive()
    ended(waiting)


def test_the_next_work_makes_uploads_start(pool: QueuePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard lets a driver keep what nobody flushes, for which the other queue would wait for ever."""
    uploads = pool.uploads()
    flushed: list[cl.CommandQueue] = []
    real = cl.CommandQueue.flush

    def flush(queue: cl.CommandQueue) -> None:
        flushed.append(queue)
        real(queue)

    monkeypatch.setattr(cl.CommandQueue, "flush", flush)
    pool.current()
    assert flushed == [uploads]


def test_where_a_driver_makes_one_queue_uploads_go_there(pool: QueuePool, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pool.current()

    def refuse(*_: object) -> None:
        record = cl._cl._ErrorRecord(msg="no more", code=-5, routine="clCreateCommandQueue")
        raise cl.RuntimeError(record)

    monkeypatch.setattr(cl, "CommandQueue", refuse)
    assert pool.uploads() is first and pool.current() is first and not pool._all[0].behind
    pool.finish()


def test_chains_of_two_threads_run_one_after_the_other(pool: QueuePool) -> None:
    held = cl.UserEvent(pool.current().context)

    def second() -> None:
        pool.start_alone(pool.current(), cl.enqueue_marker)
        pool.current().finish()

    thread = threading.Thread(target=second)
    with released(held):
        pool.start_alone(pool.current(), lambda queue: cl.enqueue_barrier(queue, wait_for=[held]))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
    ended(thread)


def test_a_closed_pool_holds_no_queues(pool: QueuePool) -> None:
    pool.uploads()
    pool.close()
    assert not pool._all and not pool._idle


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


def test_only_recordings_with_a_chain_are_started_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened("opencl")
    assert isinstance(device, OpenCLDevice)
    code = KernelCode(SOURCE.text.replace("scale", CHAIN))
    kernel = device.compile(replace(SOURCE, entry=CHAIN, code=code), values(32, 1.0))
    plain = device.compile(SOURCE, values(32, 1.0))
    x, y = device.allocate(128), device.allocate(128)
    launches = [LaunchCommand(k, (whole(x), whole(y)), (1, 1, 1), "k") for k in (kernel, plain)]
    alone = list[cl.CommandQueue]()
    real = QueuePool.start_alone

    def noting(pool: QueuePool, queue: cl.CommandQueue, start: Callable[[cl.CommandQueue], None]) -> None:
        alone.append(queue)
        real(pool, queue, start)

    monkeypatch.setattr(QueuePool, "start_alone", noting)
    recordings = [device.record([launch]) for launch in launches]
    for recording in recordings:
        device.submit(recording)
        device.wait(recording)
    assert alone == [recordings[0].queue]
    for recording in recordings:
        device.release(recording)
    free(device, x, y)


def test_a_recording_that_is_refused_leaves_nothing_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened("opencl")
    assert isinstance(device, OpenCLDevice)
    a, b = device.allocate(1 << 20), device.allocate(1 << 20)
    recording = device.record([CopyCommand(Binding(a, 0, 1 << 20), Binding(b, 0, 1 << 20))])
    start, events = recording.start, list[cl.Event]()

    def refused(queue: cl.CommandQueue) -> None:
        start(queue)
        events.append(cl.enqueue_marker(queue))
        raise DeviceError("no more", where="opencl:0")

    monkeypatch.setattr(recording, "start", refused)
    with pytest.raises(DeviceError, match="no more"):
        device.submit(recording)
    assert events[0].command_execution_status == COMPLETE
    device.release(recording)
    for buffer in (a, b):
        device.free(buffer)


def test_chunks_go_beside_the_launches_and_the_front_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sends_ahead", "computes_ahead"):
        monkeypatch.setattr(opened("opencl"), name, True)
    monkeypatch.setattr(opened("opencl"), "uploads_directly", False)
    set_figures(monkeypatch, MicroBatchFigures, pixels=1)
    net = Net()
    pooled = net.add("GlobalAveragePool", net.conv(net.input("x", 8, 3, 256, 256), 4, 3, pads=(1,) * 4))
    graph = net.finish(net.add("Softmax", net.add("Flatten", pooled), name="y"))
    with weft.load(graph, device="opencl", fallback="error") as session:
        session.run(np.random.default_rng(0).standard_normal((8, 3, 256, 256)).astype(np.float32))
        (pipeline,) = session.pipelines
        every = pipeline.backend.recording.handles  # type: ignore[attr-defined]
        sent = [r for r in every if isinstance(r.steps[0], QueuedWrite)]
        submitted = [r for r in every if r not in sent]
        assert len(sent) > 2 and len(submitted) == 3, "two micro-batches, and the rest"
        assert {id(r.queue) for r in sent} == {id(sent[0].queue)}
        assert {id(r.queue) for r in submitted} == {id(submitted[0].queue)} != {id(sent[0].queue)}
