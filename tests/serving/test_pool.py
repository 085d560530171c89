"""`weft.Pool`: one queue for sessions on several devices; nothing is lost, whatever dies."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import weft
from tests.helpers.fakes import Creator, registered
from tests.helpers.nets import Net
from tests.helpers.onnx_models import make_model, node
from tests.helpers.waits import soon
from weft.backends.cpu.backend import CpuBackend
from weft.core.graph.graph import Graph
from weft.errors import (
    CannotCopy,
    ClosedError,
    ConfigError,
    DeviceError,
    DeviceLost,
    ExecutionError,
    InputError,
    ModelError,
    QueueFull,
)


def network(rows: int | str = "n", columns: int | str = "m") -> Graph:
    net = Net()
    return net.finish(net.add("Neg", net.input("x", rows, columns), name="y"))


def x(first: int, rows: int = 1, columns: int = 3) -> np.ndarray:
    return np.arange(first, first + rows * columns, dtype=np.float32).reshape(rows, columns)


class Gate:
    """A debug callback: it notes the rows of each run, and lets none go on until it is opened."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, record: weft.DebugRecord) -> None:
        self.rows.append(record.shape[0])
        self.reached.set()
        soon(self.opened)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


def gathered(pool: weft.Pool, gate: Gate, requests: list[np.ndarray]) -> list[Future[list[Any]]]:
    """Submit requests while the pool's only replica is busy with one row, then let it go on."""
    first = pool.submit(x(0, columns=9))
    soon(gate.reached)
    futures = [pool.submit(each) for each in requests]
    gate.opened.set()
    first.result()
    return futures


# -- order and batches -----------------------------------------------------------------------------------------


def test_requests_of_many_threads_each_get_their_own_outputs() -> None:
    with weft.Pool(network(), ["cpu", "cpu"], batch=4) as pool, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda k: pool.run(x(k))[0], range(200)))
    for k, y in enumerate(results):
        np.testing.assert_array_equal(y, -x(k))
    report = pool.report
    assert (report.done, report.failed, report.waiting, report.running) == (200, 0, 0, 0)
    assert sum(replica.rows for replica in report.replicas) == 200
    assert [replica.state for replica in report.replicas] == ["closed", "closed"]


@given(
    requests=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 2)), max_size=12),
    batch=st.sampled_from([1, 2, 3, 4, 8]),
)
@settings(max_examples=25, deadline=None)
def test_batches_keep_the_order_and_hold_as_many_as_fit(requests: list[tuple[int, int]], batch: int) -> None:
    gate, arrays = Gate(), [x(10 * k, *shape) for k, shape in enumerate(requests)]
    order: list[int] = []
    with weft.Pool(network(), "cpu", batch=batch, batch_wait=0, debug=gate) as pool:
        futures = gathered(pool, gate, arrays)
        for k, future in enumerate(futures):
            future.add_done_callback(lambda _, k=k: order.append(k))  # type: ignore[misc]
        for array, future in zip(arrays, futures, strict=True):
            np.testing.assert_array_equal(future.result()[0], -array)
    for columns in (1, 2):
        alike = [k for k, shape in enumerate(requests) if shape[1] == columns]
        assert [k for k in order if k in alike] == alike
    expected = [*batches(requests, batch)]
    sizes = [1 << k for k in range(batch.bit_length()) if 1 << k < batch] + [batch]
    assert gate.rows[1:] == ([next((s for s in sizes if s >= n), n) for n in expected] if batch > 1 else expected)


def batches(requests: list[tuple[int, int]], most: int) -> Iterator[int]:
    """Yield the rows of each batch: the oldest request, and those of its shape behind it as long as they fit."""
    left = list(requests)
    while left:
        rows, columns = left.pop(0)
        for each in [r for r in left if r[1] == columns] if most > 1 else []:
            if rows + each[0] > most:
                break
            rows += each[0]
            left.remove(each)
        yield rows


def test_map_yields_in_order_and_reads_an_endless_source_no_further_than_needed() -> None:
    read = count()
    with weft.Pool(network(), "cpu", replicas=2, batch=2, batch_wait=0.001) as pool:
        mapped = pool.map((x(k) for k in read), ahead=5)
        for k in range(20):
            np.testing.assert_array_equal(next(mapped)[0], -x(k))
        assert next(read) <= 25
        mapped.close()  # type: ignore[attr-defined]  # it is a generator
        assert [r[0].shape for r in pool.map([(x(0),), {"x": x(1)}, x(2)])] == [(1, 3)] * 3


def test_what_cannot_be_batched_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"several requests at once(.|\n)*'x' is float32\[2x3\]"):
        weft.Pool(network(2, 3), "cpu", batch=4)
    net = Net()
    total = net.finish(net.add("ReduceSum", net.input("x", "n", 3), np.array([0]), keepdims=0))
    told = pytest.raises(ConfigError, match=r"cannot be told apart(.|\n)*\(3,\)")
    with weft.Pool(total, "cpu", batch=4) as pool, told:
        pool.run(x(0, 3))


# -- what dies ---------------------------------------------------------------------------------------------------


def dying(should: Callable[[np.ndarray], BaseException | None]) -> type[CpuBackend]:
    """Return a class of backends. What a function of the input returns once, all later runs of the backend raise."""

    class Dying(CpuBackend):
        def __init__(self, info: weft.BackendInfo) -> None:
            super().__init__(info)
            self.dead: BaseException | None = None

        def onCreate(self, inputs: Any, outputs: Any, op: weft.Op) -> weft.Execution | None:
            inner = super().onCreate(inputs, outputs, op)
            backend = self

            class Checked(weft.Execution):
                def onResize(self, inputs: Any, outputs: Any) -> None:
                    assert inner is not None
                    inner.onResize(inputs, outputs)

                def onExecute(self, inputs: Any, outputs: Any) -> None:
                    assert inner is not None
                    backend.dead = backend.dead or should(inputs[0].memory)
                    if backend.dead is not None:
                        raise backend.dead
                    inner.onExecute(inputs, outputs)

            return Checked()

    return Dying


@pytest.mark.parametrize("error", [DeviceLost("the card fell off the bus"), RuntimeError("the driver is confused")])
def test_a_replica_that_dies_is_replaced_and_nothing_is_lost(error: Exception) -> None:
    """A driver that only says that a node failed counts as dead if it fails at what it could do before, too."""
    runs = count()

    def should(_: np.ndarray) -> BaseException | None:
        return error if next(runs) == 9 else None

    with (
        registered(Creator(dying(should)), "dying"),
        weft.Pool(network(1, 3), ["dying", "dying"]) as pool,
    ):
        futures = [pool.submit(x(k)) for k in range(40)]
        for k, future in enumerate(futures):
            np.testing.assert_array_equal(future.result()[0], -x(k))
    report = pool.report
    assert (report.done, report.failed, report.retried) == (40, 0, 1)
    assert sum(replica.replaced for replica in report.replicas) == 1
    assert any(str(error) in replica.why for replica in report.replicas)


def test_a_request_that_kills_every_replica_fails_alone() -> None:
    def should(array: np.ndarray) -> BaseException | None:
        return DeviceLost("killed") if (array == 50).any() else None

    with registered(Creator(dying(should)), "dying"), weft.Pool(network(), "dying", batch=8, attempts=2) as pool:
        futures = [pool.submit(np.full((1, 3), 50.0 if k == 5 else k, np.float32)) for k in range(20)]
        for k, future in enumerate(futures):
            if k == 5:
                with pytest.raises(DeviceLost, match="killed"):
                    future.result()
            else:
                np.testing.assert_array_equal(future.result()[0], np.full((1, 3), -k))
        assert pool.report.failed == 1 and pool.report.replicas[0].replaced == 2


def test_an_error_that_a_requests_values_make_is_its_own() -> None:
    net = Net()
    table = np.arange(4, dtype=np.float32)
    picks = net.finish(net.add("Gather", table, net.input("i", "n", dtype=weft.DType.INT64)))
    with weft.Pool(picks, "cpu", batch=8, batch_wait=0.05) as pool:
        futures = [pool.submit(np.array([k])) for k in (1, 7, 2)]
        assert [float(futures[k].result()[0][0]) for k in (0, 2)] == [1, 2]
        with pytest.raises(ExecutionError, match="Gather"):
            futures[1].result()
        assert pool.report.replicas[0].replaced == 0 and pool.report.failed == 1


def test_a_pool_without_a_replica_fails_what_waits_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.serving.pool.PAUSE", 0.001)
    broken = False

    class Gone(dying(lambda *_: DeviceLost("unplugged") if broken else None)):  # type: ignore[misc]
        def __init__(self, info: weft.BackendInfo) -> None:
            if broken:
                raise DeviceError("there is no card")
            super().__init__(info)

    with registered(Creator(Gone), "gone"), weft.Pool(network(), "gone") as pool:
        assert pool.run(x(1))[0][0, 0] == -1
        broken = True
        with pytest.raises(DeviceError, match=r"no replica left(.|\n)*unplugged(.|\n)*there is no card"):
            pool.run(x(2))
        with pytest.raises(DeviceError, match="no replica left"):
            pool.run(x(1))
        assert pool.is_closed and pool.report.replicas[0].state == "lost"


def test_a_process_that_crashes_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "neg.onnx"
    file.write_bytes(make_model([node("Neg", "x", "y")], {"x": (TensorProto.FLOAT, ("n", 3))}).SerializeToString())
    with weft.Pool(file, "cpu", processes=True, batch=4) as pool:
        for rows in (1, 3, 7):  # one alone, a batch with padding, more than a batch
            np.testing.assert_array_equal(pool.run(x(5, rows))[0], -x(5, rows))
        (before,) = pool.report.replicas
        assert before.process != os.getpid()
        futures = [pool.submit(x(k)) for k in range(20)]
        os.kill(before.process, signal.SIGSEGV)
        futures += [pool.submit(x(k)) for k in range(20, 40)]
        for k, future in enumerate(futures):
            np.testing.assert_array_equal(future.result()[0], -x(k))
        with pytest.raises(InputError, match="rank 1"):
            pool.run(x(0)[0])
    (after,) = pool.report.replicas
    assert after.replaced == 1 and "SIGSEGV" in after.why and pool.report.failed == 0
    for process in (before.process, after.process):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_process_takes_inputs_without_elements_and_shapes_that_come_back(tmp_path: Path) -> None:
    file = tmp_path / "concat.onnx"
    inputs = {name: (TensorProto.FLOAT, (name, 2)) for name in ("past", "new")}
    file.write_bytes(make_model([node("Concat", "past new", "y", axis=0)], inputs).SerializeToString())
    with weft.Pool(file, "cpu", processes=True) as pool:
        for past in (*range(20), 0, 1):
            given = {"past": np.full((past, 2), 3, np.float32), "new": np.full((1, 2), past, np.float32)}
            np.testing.assert_array_equal(pool.run(given)[0], np.concatenate([*given.values()]))


def test_errors_of_a_process_are_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        weft.Pool(tmp_path / "none.onnx", "cpu", processes=True)
    with pytest.raises(ConfigError, match="cannot get their network"):
        weft.Pool(network(), "cpu", processes=True, debug=lambda record: None)


# -- the queue ---------------------------------------------------------------------------------------------------


def test_a_full_queue_holds_callers_back(gate: Gate) -> None:
    with weft.Pool(network(), "cpu", queue=2, debug=gate) as pool:
        pool.submit(x(0))
        soon(gate.reached)
        futures = [pool.submit(x(k)) for k in (1, 2)]
        with pytest.raises(QueueFull, match="2 requests wait"):
            pool.submit(x(3), timeout=0)
        with ThreadPoolExecutor(1) as threads:
            late = threads.submit(pool.run, x(4))
            gate.opened.set()
            assert late.result()[0][0, 0] == -4
        assert [f.result()[0][0, 0] for f in futures] == [-1, -2]


def test_requests_can_be_cancelled_and_time_out(gate: Gate) -> None:
    with weft.Pool(network(), "cpu", debug=gate) as pool:
        first = pool.submit(x(0))
        soon(gate.reached)
        assert pool.submit(x(1)).cancel() and not first.cancel()
        with pytest.raises(TimeoutError):
            pool.run(x(2), timeout=0.001)
        gate.opened.set()
        pool.run(x(3))
        assert (pool.report.done, pool.report.cancelled) == (2, 2)


@pytest.mark.parametrize("cancel", [False, True])
def test_a_close_runs_or_cancels_what_waits(gate: Gate, cancel: bool) -> None:
    pool = weft.Pool(network(), "cpu", debug=gate)
    first = pool.submit(x(0))
    soon(gate.reached)
    second = pool.submit(x(1))
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(pool.close, cancel=cancel)
        if cancel:
            with pytest.raises(CancelledError):
                second.result()
        gate.opened.set()
        closing.result()
    assert first.done() and second.cancelled() == cancel
    pool.close()
    with pytest.raises(ClosedError):
        pool.submit(x(2))


def test_a_pool_that_is_dropped_ends_its_threads() -> None:
    pool = weft.Pool(network(), "cpu")
    pool.run(x(0))
    threads = [t for t in threading.enumerate() if t.name.startswith("weft-pool")]
    assert threads
    del pool
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_wrong_inputs_and_options_are_told_at_once() -> None:
    with weft.Pool(network(columns=3), "cpu") as pool:
        with pytest.raises(InputError, match=r"cannot have shape \(1, 4\)"):
            pool.submit(x(0, columns=4))
        with pytest.raises(InputError, match="there is no input 'z'"):
            pool.submit({"z": x(0)})
        with pytest.raises(CannotCopy, match=r"weft\.Predictor"):
            __import__("pickle").dumps(pool)
        assert pool.report.failed == 0 and (pool.inputs, pool.outputs) == ({"x": ("n", 3)}, ["y"])
    options: list[dict[str, Any]] = [{"batch": 0}, {"replicas": 1.5}, {"batch_wait": -1}, {"devices": []}, {"state": 1}]
    for wrong in options:
        with pytest.raises(ConfigError):
            weft.Pool(network(), **{"devices": "cpu", **wrong})


# -- devices -----------------------------------------------------------------------------------------------------


class Cards(Creator):
    """Two cards, of which an API may list one only."""

    def devices(self) -> list[weft.DeviceInfo]:
        listed = {"acme": ["aa", "bb"], "other": ["bb", "cc"]}[self.id]
        return [weft.DeviceInfo(self.id, k, uuid, uuid=f"GPU-{uuid * 16}") for k, uuid in enumerate(listed)]


def test_all_is_each_gpu_once() -> None:
    with registered(Cards(id="acme", auto_rank=1), "acme"), registered(Cards(id="other", auto_rank=2), "other"):
        assert [(d.id, d.name) for d in weft.registry.gpus()] == [("acme", "aa"), ("acme", "bb"), ("other", "cc")]
        with weft.Pool(network()) as pool:
            pool.run(x(0))
            assert [r.device[:11] for r in pool.report.replicas] == ["acme:GPU-aa", "acme:GPU-bb", "other:GPU-c"]


def test_replicas_on_one_gpu_share_its_weights_and_warm_prepares_each_size() -> None:
    net = Net()
    y = net.add("MatMul", net.input("x", "n", 256), net.random(256, 256), name="y")
    with weft.Pool(net.finish(y), "opencl", batch=2) as one:
        one.warm()
        before = used()
        with weft.Pool(net.graph, "opencl", replicas=2) as two:
            two.warm()
            assert used() - before < 256 * 256 * 4
            np.testing.assert_allclose(two.run(x(0, 1, 256))[0], one.run(x(0, 1, 256))[0], rtol=1e-5)
    with weft.Pool(network(), "cpu") as pool, pytest.raises(InputError, match="does not know"):
        pool.warm()


def used() -> int:
    return sum(each.all_bytes or 0 for each in weft.memory() if each.device.startswith("opencl"))
