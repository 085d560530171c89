"""Buffers: runs read and write them on their device without a copy, and callers own their memory."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.arrays_of_sessions import DEVICES, GPUS, SHAPE, check, network, random, upload, wanted
from tests.helpers.fakes import Creator, registered
from tests.helpers.nets import Net
from tests.helpers.opened import opened
from tests.helpers.run_length import examples
from weft.core.contract.backend import BackendInfo, Execution, StorageType
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import evaluate
from weft.core.graph.layout import Array, Layout
from weft.core.graph.tensor import Tensor
from weft.errors import CannotCopy, CannotShare, ClosedError, ConfigError, InputError

NBYTES = random(0).nbytes


@pytest.fixture(params=["whole", "directly", "chunks"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload arrays in each of the ways of GPUs."""
    upload(request.param, monkeypatch)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that all buffers made inside the block are freed after it."""
    gc.collect()
    before = {use.device: (use.buffers, use.buffer_bytes) for use in weft.memory() if use.buffers}
    yield
    gc.collect()
    assert {use.device: (use.buffers, use.buffer_bytes) for use in weft.memory() if use.buffers} == before


def copied(session: weft.Session, before: weft.Transfers) -> tuple[int, int]:
    """Return the bytes that runs copied to and from devices since an earlier count."""
    now = session.transfers
    return now.to_devices - before.to_devices, now.from_devices - before.from_devices


@pytest.mark.parametrize("device", DEVICES)
def test_runs_read_and_write_them_without_a_copy(device: str, ways: None) -> None:
    """Between runs with other buffers and with arrays, which neither change them nor are changed by them."""
    with nothing_left(), weft.load(network(), device, fallback="error") as session:
        session.run(random(0), random(1))
        ins = [{"a": session.buffer("a", random(k)), "b": weft.array(random(k + 10), device=device)} for k in (0, 1)]
        outs = [{name: session.buffer(name) for name in "yz"} for _ in range(2)]
        for turn in range(6):
            k, before = turn % 2, session.transfers
            y, z = session.run(ins[k], outputs=outs[k])
            assert (y, z) == (outs[k]["y"], outs[k]["z"])
            assert copied(session, before) == (0, 0)
            check(dict(zip("yz", session.run(random(turn), random(5)), strict=True)), random(turn), random(5))
            assert copied(session, before) == (2 * NBYTES, 2 * NBYTES)
            mine = np.empty(SHAPE, np.float32)
            mixed = session.run(random(7), ins[k]["b"], outputs=[None, mine])
            check(dict(zip("yz", mixed, strict=True)), random(7), random(k + 10))
            mixed = session.run(ins[k]["a"], random(8), outputs={"z": mine})
            check(dict(zip("yz", mixed, strict=True)), random(k), random(8))
            for n in range(2):
                for at, name in ((n, "a"), (n + 10, "b")):
                    np.testing.assert_array_equal(ins[n][name].numpy(), random(at))
            for n in range(min(turn + 1, 2)):
                check({name: b.numpy() for name, b in outs[n].items()}, random(n), random(n + 10))
        for each in (*ins, *outs):
            for buffer in each.values():
                buffer.close()


@pytest.mark.parametrize("precision", ["normal", "low"])
@pytest.mark.parametrize("device", DEVICES)
def test_at_other_precisions(device: str, precision: str) -> None:
    """At LOW the session's own buffers are float16; those of float32 are taken as well."""
    with nothing_left(), weft.load(network(), device, precision=precision, fallback="error") as session:
        session.run(random(0), random(1))
        a, b, y = session.buffer("a", random(2)), weft.array(random(3), device=device), session.buffer("y")
        assert a.dtype == y.dtype == (np.float16 if precision == "low" else np.float32)
        for _ in range(2):
            made, z = session.run(a, b, outputs={"y": y})
            assert made is y and isinstance(z, np.ndarray)
            check({"y": y.numpy(), "z": z}, random(2), random(3), "low")
        before = session.transfers
        session.run(a, b, outputs={"y": y})
        assert copied(session, before)[0] == 0
        both = session.run(a.numpy(), b, outputs=weft.Buffer)
        check({name: each.numpy() for name, each in zip("yz", both, strict=True)}, random(2), random(3), "low")
        for buffer in (a, b, y, *both):
            buffer.close()


@pytest.mark.parametrize("device", DEVICES)
def test_new_buffers_for_outputs(device: str) -> None:
    with nothing_left(), weft.load(network(), device, fallback="error") as session:
        for k in range(4):
            before = session.transfers
            y, z = session.run(random(k), random(k + 1), outputs=weft.Buffer)
            assert isinstance(y, weft.Buffer) and y.device.startswith(device) and z.shape == SHAPE
            assert copied(session, before) == (2 * NBYTES, 0)
            y2, z2 = session.run(random(k), y, outputs={"y": weft.Buffer})
            assert copied(session, before) == (3 * NBYTES, NBYTES)
            check({"y": y.numpy(), "z": z.numpy()}, random(k), random(k + 1))
            check({"y": y2.numpy(), "z": z2}, random(k), wanted(random(k), random(k + 1))["y"].astype(np.float32))
            y3, z3 = session.run(random(k), random(k + 2), outputs=[None, weft.Buffer])
            check({"y": y3, "z": z3.numpy()}, random(k), random(k + 2))
            for buffer in (y, z, y2, z3):
                buffer.close()


def moving() -> Graph:
    """Return a network whose outputs are an input as it is, reshaped, and moved, a constant, and one output twice."""
    net = Net()
    a = net.input("a", *SHAPE)
    flat = net.add("Reshape", a, np.array([-1], np.int64), name="flat")
    turned = net.add("Transpose", net.add("Relu", a), perm=(0, 2, 3, 1), name="turned")
    same = net.add("Reshape", turned, np.array([-1], np.int64), name="same")
    return net.finish(a, flat, turned, same, net.constant(random(3), "fixed"))


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_that_are_views_inputs_and_constants(device: str) -> None:
    with nothing_left(), weft.load(moving(), device, fallback="error") as session:
        for k in range(3):
            a = weft.array(random(k), device=device)
            relu = np.maximum(random(k), 0).transpose(0, 2, 3, 1)
            right = [random(k), random(k).ravel(), relu, relu.ravel(), random(3)]
            for given in (a, random(k)):
                results = session.run(given, outputs=weft.Buffer)
                for result, value in zip(results, right, strict=True):
                    np.testing.assert_array_equal(result.numpy(), value)
                    result.close()
            results = session.run(a)
            for result, value in zip(results, right, strict=True):
                np.testing.assert_array_equal(result, value)
            a.close()


@pytest.mark.parametrize("device", DEVICES)
def test_an_input_may_be_an_output(device: str) -> None:
    """The run reads what was there before it: another node reads the input after the output was made."""
    net = Net()
    a = net.input("a", *SHAPE)
    twice = net.add("Mul", a, np.array([2], np.float32), name="twice")
    deep = net.add("Exp", net.add("Neg", net.add("Tanh", twice)))
    graph = net.finish(twice, net.add("Add", deep, a, name="sum"))
    with weft.load(graph, device, fallback="error") as session, session.buffer("a", random(0)) as x:
        value = random(0)
        for _ in range(3):
            made, total = session.run(x, outputs={"twice": x})
            assert made is x
            np.testing.assert_allclose(total, np.exp(-np.tanh(2 * value)) + value, rtol=1e-4, atol=1e-5)
            value = 2 * value
            np.testing.assert_array_equal(x.numpy(), value)
        with pytest.raises(InputError, match="'twice' and 'sum' need buffers of their own"):
            session.run(x, outputs=[x, x])


@pytest.mark.parametrize(("first", "second"), [("cpu", "cpu"), ("opencl", "opencl"), ("vulkan", "vulkan"),
                                               ("opencl", "cpu"), ("vulkan", "opencl"), ("cpu", "vulkan")])
def test_from_session_to_session(first: str, second: str) -> None:
    """On one device nothing is copied; from one to another once."""
    x = random(0)
    with nothing_left(), weft.load(network(), first) as one, weft.load(network(), second) as two:
        y, z = one.run(x, x, outputs=weft.Buffer)
        one.close()
        results = two.run(y, z)
        right = wanted(x, x)
        right = {name: value.astype(np.float32) for name, value in right.items()}
        check(dict(zip("yz", results, strict=True)), right["y"], right["z"])
        assert two.transfers.to_devices == (0 if first == second else 2 * NBYTES)
        y.close()
        z.close()


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_with_little_memory(device: str) -> None:
    with nothing_left(), weft.load(network(), device, memory="limit", fallback="error") as session:
        for k in range(2):
            a, b = weft.array(random(k), device=device), session.buffer("b", random(5))
            results = session.run(a, b, outputs=weft.Buffer)
            check({n: r.numpy() for n, r in zip("yz", results, strict=True)}, random(k), random(5))
            for buffer in (a, b, *results):
                buffer.close()
        assert copied(session, weft.Transfers()) == (0, 0)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=examples(25), deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), max_size=5).map(tuple),
    dtype=st.sampled_from([t for t in DType if not t.is_complex]),
    seed=st.integers(0, 9),
)
def test_any_shape_and_type(device: str, shape: tuple[int, ...], dtype: DType, seed: int) -> None:
    value = np.random.default_rng(seed).integers(0, 2, shape).astype(dtype.numpy)
    with weft.empty(shape, dtype, device=device) as buffer, weft.array(value, device=device) as other:
        assert (buffer.shape, buffer.dtype, buffer.ndim, buffer.size) == (shape, dtype.numpy, len(shape), value.size)
        assert buffer.nbytes == value.nbytes
        buffer.write(value)
        assert buffer.numpy().tobytes() == value.tobytes()
        assert np.asarray(buffer).dtype == value.dtype
        buffer.write(other)
        other.write(np.zeros(shape, dtype.numpy))
        assert buffer.numpy().tobytes() == value.tobytes()
        mine = buffer.numpy()
        mine[...] = 0
        assert buffer.numpy().tobytes() == value.tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_resizes_between_runs(device: str) -> None:
    with nothing_left(), weft.load(network("N"), device, fallback="error") as session:
        for batch in (2, 5, 2, 3, 5):
            shape = (batch, *SHAPE[1:])
            a, b = (weft.array(random(k, shape), device=device) for k in (batch, batch + 1))
            for given in ((a, b), (random(batch, shape), b)):
                y, z = session.run(*given, outputs=weft.Buffer) if batch > 2 else session.run(*given)
                check({"y": np.asarray(y), "z": np.asarray(z)}, random(batch, shape), random(batch + 1, shape))
            del a, b, given, y, z


@pytest.mark.parametrize("device", DEVICES)
def test_its_life(device: str) -> None:
    gc.collect()
    before = sum(use.buffer_bytes for use in weft.memory())
    with weft.load(network(), device, shapes={"a": SHAPE}) as session:
        a = session.buffer("a", random(0))
    np.testing.assert_array_equal(a.numpy(), random(0))  # it outlives the session
    assert sum(use.buffer_bytes for use in weft.memory()) == before + a.nbytes
    assert repr(a) == f"Buffer((2, 4, 6, 5), float32, '{device}:0')"
    with a:
        pass
    a.close()
    assert a.is_closed and repr(a).endswith("closed)")
    assert sum(use.buffer_bytes for use in weft.memory()) == before
    with weft.load(network(), device) as session:

        for use in (a.numpy, lambda: a.write(random(0)), lambda: session.run(a, random(1)),
                    lambda: session.run(random(1), random(1), outputs=[a, None]), lambda: np.asarray(a)):
            with pytest.raises(ClosedError, match="the buffer is closed"):
                use()

    for refused in (copy.copy, copy.deepcopy):
        with pytest.raises(CannotCopy, match="a buffer cannot be copied"):
            refused(a)


@pytest.mark.parametrize("device", GPUS)
def test_a_closed_buffer_leaves_no_recording(device: str) -> None:
    """A driver frees memory after the last recording that is bound to it."""
    net = Net()
    graph = net.finish(net.add("Neg", net.input("x", 8 << 18), name="y"))
    with weft.load(graph, device, fallback="error", wait="all") as session:
        stats = opened(device).stats
        value = np.ones(8 << 18, np.float32)
        session.run(value)
        held = stats.live_recordings, stats.live_bytes
        for _ in range(2):
            x, y = session.buffer("x", value), session.buffer("y")
            assert (session.run(x, outputs=[y])[0].numpy() == -1).all()
            x.close()
            y.close()
            assert (stats.live_recordings, stats.live_bytes) == held


def test_what_is_dropped_is_freed() -> None:
    with nothing_left():
        made = [weft.empty((1 << 10,), device=device) for device in DEVICES for _ in range(3)]
        held = {use.device: use for use in weft.memory()}
        assert [held[f"{device}:0"].buffer_bytes >= 3 << 12 for device in DEVICES] == [True] * 3
        del made


@pytest.mark.parametrize("device", GPUS)
def test_new_ones_take_the_memory_of_those_that_were_dropped(device: str) -> None:
    """A loop allocates and records nothing, whether it keeps the last results or not."""
    with nothing_left(), weft.load(network(), device, fallback="error", wait="all") as session:
        stats, kept = opened(device).stats, session.run(random(0), random(1), outputs=weft.Buffer)

        def turn(k: int) -> list[weft.Buffer]:
            y, z = session.run(random(k), random(1), outputs=weft.Buffer)
            check({"y": y.numpy(), "z": z.numpy()}, random(k), random(1))
            return [y, z]

        for first in (0, 4):
            before = stats.allocations, stats.live_bytes, stats.live_recordings
            for k in range(first, first + 4):
                kept = turn(k)
            assert first == 0 or (stats.allocations, stats.live_bytes, stats.live_recordings) == before
        del kept
        for k in range(3):
            turn(k)
        assert (stats.allocations, stats.live_bytes) == before[:2]


@pytest.mark.parametrize("device", GPUS)
def test_the_memory_of_dropped_ones_makes_way(device: str) -> None:
    limit = {device: {"memory_limit": 48 << 20}}
    for another in (lambda: weft.empty((7 << 20,), device=device, backend_options=limit),
                    lambda: weft.load(network(), device, backend_options=limit)):
        held = weft.empty((1,), device=device, backend_options=limit)
        big = weft.empty((4 << 20,), device=device, backend_options=limit)
        del big
        with another():
            pass
        held.close()


def test_a_device_is_looked_up_once_as_long_as_there_are_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    creator = weft.registry.find("opencl")
    asked, devices = list[int](), creator.devices

    def noted() -> list[weft.DeviceInfo]:
        asked.append(1)
        return devices()

    monkeypatch.setattr(creator, "devices", noted)
    with weft.array(random(0), device="opencl") as first:
        assert asked
        asked.clear()
        for _ in range(3):
            assert weft.array(first, device="opencl").device == first.device
        assert not asked
    assert not any(use.buffers for use in weft.memory())
    weft.array(random(0), device="opencl").close()
    assert asked


@pytest.mark.parametrize("device", DEVICES)
def test_a_submitted_run_holds_its_buffers(device: str) -> None:
    with nothing_left(), weft.load(network(), device) as session, weft.load(network(), "cpu") as other:
        a, b, y = session.buffer("a", random(0)), session.buffer("b", random(1)), session.buffer("y")
        session.submit(a, b, outputs={"y": y})
        np.testing.assert_array_equal(a.numpy(), random(0))
        uses = (lambda: a.write(random(2)), y.numpy, lambda: other.run(y, random(0)),
                lambda: other.run(random(0), random(1), outputs=[a, None]))
        for use in uses:
            with pytest.raises(InputError, match=r"(?s)the buffer is in use.*wait for that run"):
                use()
        other.run(a, b)
        b.close()
        with pytest.raises(ClosedError):
            b.numpy()
        made, z = session.wait()
        assert made is y
        check({"y": y.numpy(), "z": z}, random(0), random(1))
        a.write(random(2))
        session.submit(a, random(1), outputs=weft.Buffer)
        session.submit(a, random(3), outputs={"y": y})  # waits for the first, whose outputs are lost
        (z,) = session.wait()[1:]
        check({"y": y.numpy(), "z": z}, random(2), random(3))
        session.submit(a, random(1))
        new = session.wait(outputs=weft.Buffer)
        check({n: each.numpy() for n, each in zip("yz", new, strict=True)}, random(2), random(1))
        session.submit(a, random(1), outputs={"y": y})
        session.close()
        y.write(random(0))
        for buffer in (a, y, *new):
            buffer.close()


@pytest.mark.parametrize("device", DEVICES)
def test_a_dropped_session_leaves_its_buffers(device: str) -> None:
    """The next to use one of them ends the run."""
    with nothing_left():
        session = weft.load(network(), device)
        a, b, y, z = session.buffer("a", random(0)), session.buffer("b"), session.buffer("y"), session.buffer("z")
        session.submit(a, b, outputs=[y, z])
        del session
        gc.collect()
        assert y.numpy().shape == SHAPE
        a.write(random(1))
        for buffer in (a, b, y, z):
            buffer.close()
        session = weft.load(network(), device)
        y = session.buffer("y")
        session.submit(random(0), random(1), outputs={"y": y})
        del session
        gc.collect()
        y.close()


@pytest.mark.parametrize("first", ["numpy", "write"])
def test_reads_and_writes_of_the_host_take_turns(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go = threading.Event(), threading.Event()
    method = {"numpy": "value", "write": "put"}[first]
    usual = getattr(weft.Buffer, method)

    def waits(buffer: weft.Buffer, *value: Array) -> Any:
        inside.set()
        assert go.wait(20)
        return usual(buffer, *value)

    with weft.array(random(0), device="cpu") as a, ThreadPoolExecutor(3) as threads:
        monkeypatch.setattr(weft.Buffer, method, waits)
        begun = threads.submit(a.numpy if first == "numpy" else lambda: a.write(random(1)))
        assert inside.wait(20)
        monkeypatch.undo()
        others: list[Future[Any]] = [threads.submit(a.write, random(2)), threads.submit(a.numpy)]
        assert not any(each.done() for each in others)
        go.set()
        if first == "numpy":
            np.testing.assert_array_equal(begun.result(20), random(0))
        assert others[0].result(20) is None
        assert others[1].result(20).shape == SHAPE
        np.testing.assert_array_equal(a.numpy(), random(2))


def test_a_failed_run_leaves_its_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    with weft.load(network(), "cpu") as session, session.buffer("a", random(0)) as a, session.buffer("y") as y:
        (pipeline,) = session.pipelines

        def fail() -> None:
            raise RuntimeError("no more")

        monkeypatch.setattr(pipeline.backend, "onExecuteEnd", fail)
        with pytest.raises(weft.WeftError, match="no more"):
            session.run(a, random(1), outputs={"y": y})
        a.write(random(2))
        monkeypatch.undo()
        session.run(a, random(1), outputs={"y": y})
        check({"y": y.numpy()} | {"z": wanted(random(2), random(1))["z"]}, random(2), random(1))


@pytest.mark.parametrize("device", DEVICES)
def test_threads(device: str) -> None:
    """Several sessions share what they read; each thread writes buffers of its own, and makes and drops others."""
    with nothing_left(), weft.array(random(0), device=device) as shared:
        sessions = [weft.load(network(), device, fallback="error") for _ in range(3)]

        def work(k: int) -> None:
            session = sessions[k % 3]
            with session.buffer("y") as y, session.buffer("b", random(k)) as b:
                for turn in range(6):
                    made, z = session.run(shared, b, outputs={"y": y, "z": weft.Buffer})
                    check({"y": made.numpy(), "z": z.numpy()}, random(0), random(k))
                    b.write(random(k))
                    z.close() if turn % 2 else None

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(work, range(6)))
        for session in sessions:
            session.close()


def test_what_does_not_fit_is_refused() -> None:
    with weft.load(network(), "cpu") as session:
        with pytest.raises(InputError, match=r"(?s)no input or output 'c'.*a, b, y, z"):
            session.buffer("c")
        with session.buffer("a") as a, weft.empty((3,), device="cpu") as other:
            with pytest.raises(InputError, match=r"needs a writable array.*Buffer\(\(3,\)"):
                session.run(random(0), random(1), outputs=[other, None])
            with pytest.raises(InputError, match="a bare array was given"):
                session.run(random(0), random(1), outputs=a)  # type: ignore[arg-type]
            with pytest.raises(InputError, match=r"(?s)does not fit the buffer.*it is \(3,\)"):
                a.write(other)
            with pytest.raises(InputError, match="does not hold all of its values"):
                weft.array(1e300, np.float32, device="cpu")
            with pytest.raises(TypeError, match="taken apart"):
                iter(a)
    with pytest.raises(InputError, match="not a shape"):
        weft.empty((-1,), device="cpu")
    with pytest.raises(ConfigError):
        weft.empty((1,), device=":")
    with pytest.raises(ConfigError, match=r"(?s)cannot be on 2 devices.*names vulkan, cpu.*device='vulkan'"):
        weft.empty((2,), device=["vulkan", "cpu"])  # type: ignore[arg-type]
    for arguments in ((), ((2, 3),)):
        with pytest.raises(InputError, match=r"(?s)not made by its class.*weft\.empty"):
            weft.Buffer(*arguments)
    for dtype in (None, "float32"):
        with pytest.raises(InputError, match=r"(?s)it is not an array.*rows of one length"):
            weft.array([[1, 2], [3]], dtype, device="cpu")


@pytest.mark.parametrize("device", DEVICES)
def test_new_buffers_for_a_cache_that_grows(device: str) -> None:
    """The same call works before and after the session plans for a capacity, as do arrays and buffers by name."""
    net = Net()
    x, past = net.input("x", 1, "new", 4), net.input("past", 1, "old", 4)
    rows = net.add("Concat", past, x, axis=1, name="present")
    graph = net.finish(rows, net.add("ReduceMean", rows, np.array([1]), name="mean"))
    one, whole = np.ones((1, 1, 4), np.float32), np.zeros((1, 1, 4), np.float32)
    with nothing_left(), weft.load(graph, device) as session:
        cache = weft.array(whole, device=device)
        for turn in range(12):
            before, whole = cache, np.concatenate([whole, one * turn], 1)
            cache, mean = session.run(one * turn, before, outputs=weft.Buffer)
            assert cache.device.startswith(device)
            np.testing.assert_array_equal(cache.numpy(), whole)
            np.testing.assert_allclose(mean.numpy(), whole.mean(1, keepdims=True), rtol=1e-6)
            arrays = session.output_arrays()
            assert arrays["present"].shape == session.buffer("present").shape == whole.shape
            inputs = session.input_arrays()
            inputs["x"][...], inputs["past"][...] = one * turn, before.numpy()
            session.run(inputs, outputs=arrays)
            np.testing.assert_array_equal(arrays["present"], whole)
            before.close()
            mean.close()
        assert "capacit" in session.report.plan or "grow" in session.report.plan
        session.submit(one, cache, outputs={"present": weft.Buffer})
        present, _ = session.wait()
        session.submit(one, present)
        assert session.wait(outputs=weft.Buffer)[0].shape == (1, 15, 4)
        cache.close()
        present.close()


@pytest.mark.parametrize("device", DEVICES)
def test_new_buffers_of_a_session_with_state(device: str) -> None:
    net = Net()
    x, past = net.input("x", 1, "new", 4), net.input("past", 1, "old", 4)
    rows = net.add("Concat", past, x, axis=1, name="present")
    graph = net.finish(rows, net.add("ReduceSum", rows, np.array([1]), name="sum"), net.add("Neg", rows, name="all"))
    with nothing_left(), weft.load(graph, device, state=True) as session:
        for turn in range(1, 4):
            total, every = session.run(np.ones((1, 2, 4), np.float32), outputs=[weft.Buffer] * 2)
            assert total.device.startswith(device)
            np.testing.assert_array_equal(total.numpy(), np.full((1, 1, 4), 2 * turn))
            np.testing.assert_array_equal(every.numpy(), np.full((1, 2 * turn, 4), -1))
            total.close()
            every.close()


def test_new_buffers_for_outputs_of_unknown_shapes() -> None:
    net = Net()
    x = net.input("x", "n")
    graph = net.finish(net.add("Neg", net.add("Compress", x, net.input("keep", "n", dtype=DType.BOOL)), name="y"))
    keep, value = np.array([1, 0, 1, 1, 0, 0], bool), np.arange(6, dtype=np.float32)
    with weft.load(graph, "cpu") as session, weft.array(value, device="cpu") as given, weft.empty((3,)) as y:
        np.testing.assert_array_equal(session.run(given, keep)[0], -value[keep])
        (made,) = session.run(given, weft.array(keep), outputs=[y])
        assert made is y
        np.testing.assert_array_equal(y.numpy(), -value[keep])
        for outputs in (weft.Buffer, [weft.Buffer], {"y": weft.Buffer}):
            (made,) = session.run(value, keep, outputs=outputs)  # type: ignore[arg-type]
            np.testing.assert_array_equal(made.numpy(), -value[keep])
        with pytest.raises(InputError, match=r"(?s)the shapes of the outputs are not known before a run.*in stages"):
            session.output_arrays()


# -- backends of others ------------------------------------------------------------------------------------------


class Far:
    """Memory that only its backend reaches."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.full(nbytes, 255, np.uint8)


class FarExecution(Execution):
    def __init__(self, op: Any) -> None:
        self.op = op

    def onExecute(self, inputs: Any, outputs: Any) -> None:
        results = evaluate(self.op, [None if t is None else FarBackend.array(t) for t in inputs])
        for tensor, value in zip(outputs, results, strict=True):
            FarBackend.array(tensor)[...] = value


class FarBackend(weft.Backend):
    """A plug-in without anything that is optional: its memory is reached by `onCopyBuffer` alone."""

    held = 0

    def onCreate(self, inputs: Any, outputs: Any, op: Any) -> Execution:
        return FarExecution(op)

    @staticmethod
    def array(tensor: Tensor) -> Array:
        raw: Array = tensor.memory.bytes[: tensor.nbytes]
        return raw.view(tensor.dtype.numpy).reshape(tensor.shape)

    def onAcquireBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        assert tensor.layout is Layout.NCHW and storage_type is not StorageType.STATE
        tensor.memory, tensor.backend = Far(tensor.nbytes), self
        FarBackend.held += tensor.nbytes if storage_type is StorageType.STATIC else 0
        return True

    def onReleaseBuffer(self, tensor: Tensor, storage_type: StorageType) -> bool:
        if storage_type is StorageType.STATIC:
            FarBackend.held -= tensor.nbytes
            tensor.memory = None
        return True

    def onClearBuffer(self) -> bool:
        return True

    def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
        assert {src.backend, dst.backend} <= {self, None}
        target = self.array(dst) if dst.backend is self else dst.memory
        target[...] = (self.array(src) if src.backend is self else src.memory).astype(target.dtype)

    def onExecuteBegin(self) -> None: ...

    def onExecuteEnd(self) -> None: ...


def test_a_backend_needs_only_the_contract() -> None:
    with registered(Creator(FarBackend, id="far"), "far"), weft.load(network(), "far") as session:
        a, b, y = session.buffer("a", random(0)), weft.array(random(1), device="far"), session.buffer("y")
        assert (a.device, FarBackend.held) == ("far:0", 3 * NBYTES)
        for _ in range(2):
            made, z = session.run(a, b, outputs={"y": y, "z": weft.Buffer})
            check({"y": made.numpy(), "z": z.numpy()}, random(0), random(1))
            z.close()
        assert session.transfers == weft.Transfers(2, 4 * NBYTES, 4 * NBYTES)
        for buffer in (a, b, y):
            buffer.close()
        assert FarBackend.held == 0


def test_others_come_and_go_while_a_device_is_opened() -> None:
    def others() -> None:
        weft.empty((3,), device="cpu").close()

    came: list[bool] = []

    class Opening(Creator):
        def onCreate(self, info: BackendInfo) -> weft.Backend:
            thread = threading.Thread(target=others, daemon=True)
            thread.start()
            thread.join(10)
            came.append(not thread.is_alive())
            return super().onCreate(info)

    with registered(Opening(FarBackend, id="far"), "far"):
        weft.empty((3,), device="far").close()
    assert came == [True]


# -- other libraries ---------------------------------------------------------------------------------------------


class Theirs:
    """An array of another library."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.buffer.__dlpack_device__()
        return device

    def __dlpack__(self, **options: Any) -> Any:
        return self.buffer.__dlpack__(**options)


@settings(max_examples=examples(25), deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    dtype=st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_, ml_dtypes.bfloat16, np.complex64,
                           ml_dtypes.float8_e4m3fn]),
)
def test_other_libraries_share_its_memory(shape: tuple[int, ...], dtype: Any) -> None:
    value = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    buffer = weft.array(value, device="cpu")
    other = weft.from_dlpack(Theirs(buffer))
    assert (other.shape, other.dtype, other.is_writable) == (shape, value.dtype, True)
    other.write((value == 0).astype(dtype))
    np.testing.assert_array_equal(buffer.numpy(), other.numpy())
    buffer.close()
    other.write(value)  # the memory lives as long as it is shared
    np.testing.assert_array_equal(other.numpy(), value)


def test_numpy_shares_its_memory() -> None:
    with weft.load(network(), "cpu") as session, session.buffer("y") as y, session.buffer("a", random(0)) as a:
        seen = np.from_dlpack(y)
        session.run(a, random(1), outputs={"y": y})
        np.testing.assert_array_equal(seen, y.numpy())
        assert np.asarray(y, copy=False).base is not None and np.asarray(y) is not seen
        fixed = random(2)
        fixed.flags.writeable = False
        shared = weft.from_dlpack(Theirs(fixed))
        with pytest.raises(InputError, match="read-only"):
            shared.write(random(3))
        check(dict(zip("yz", session.run(shared, a), strict=True)), fixed, random(0))
        both = random(4)
        one, two = weft.from_dlpack(both), weft.from_dlpack(both)
        with pytest.raises(InputError, match="share memory"):
            session.run(a, a, outputs=[one, two])
        net = Net()
        x = net.input("x", *SHAPE)
        with weft.load(net.finish(net.add("Add", net.add("Neg", x, name="minus"), x), "minus"), "cpu") as apart:
            zero, _ = apart.run(one, outputs={"minus": two})
            np.testing.assert_array_equal(zero, np.zeros(SHAPE))


def test_what_cannot_be_shared() -> None:
    for device in GPUS:
        with weft.empty((2,), device=device) as buffer:
            for share in (buffer.__dlpack__, buffer.__dlpack_device__, lambda b=buffer: np.from_dlpack(b)):
                with pytest.raises(BufferError, match=f"(?s)memory of {device}:0.*buffer.numpy"):
                    share()
            with pytest.raises(ValueError, match="copy=False"):
                np.asarray(buffer, copy=False)
    with pytest.raises(CannotShare, match="do not lie one behind the other"):
        weft.from_dlpack(random(0).T)
    with pytest.raises(CannotShare, match="a list that cannot be shared"):
        weft.from_dlpack([1])  # type: ignore[arg-type]
    with weft.empty((2,), "int4", device="cpu") as small, pytest.raises(CannotShare, match="DLPack has no such type"):
        small.__dlpack__()


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_buffer_that_another_run_reads_is_not_written_at_the_end_of_one_that_reads_it(device: str) -> None:
    net = weft.Network("neg")
    net.add_output("y", net.add_layer("Neg", net.add_input("x", (2, 3))))
    x = np.ones((2, 3), np.float32)
    with weft.load(net, device) as one, weft.load(net, device) as other, one.buffer("x", x) as held:
        one.submit(held)
        other.submit(held)
        with pytest.raises(InputError, match="in use"):
            one.wait(outputs=[held])
        assert (other.wait()[0] == -1).all() and (held.numpy() == 1).all()
        one.submit(held)
        one.wait(outputs=[held])
        assert (held.numpy() == -1).all()
