"""State of networks that stays on its device: one memory for an input and the output that is its next value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.fakes import Creator, registered
from tests.helpers.nets import Net
from tests.helpers.run_length import examples
from weft.backends.cpu.backend import CpuBackend
from weft.core.buffers.device_memory import DeviceMemory
from weft.core.contract.backend import BackendConfig, MemoryMode, Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.graph.op import new_op
from weft.core.graph.tensor import TensorSpec
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.registry.backend_registry import registry
from weft.core.session.loader import Loader
from weft.core.session.open_devices import OpenDevices
from weft.core.session.overflow import OverflowWatch
from weft.core.session.plans import Plan, Plans
from weft.errors import BackendError, InputError

DEVICES = ("cpu", "opencl", "vulkan")
ROWS, WIDTH = 24, 8
MODES = st.sampled_from(["linear", "circular"])


def decoder(rows: int | str, dtype: DType = DType.FLOAT32, *, aliased: bool = True) -> Graph:
    """Return an attention over a cache in which `rows` new ones are written."""
    net = Net()
    x, past = net.input("x", 1, rows, WIDTH, dtype=dtype), net.input("past", 1, ROWS, WIDTH, dtype=dtype)
    at = net.input("at", 1, dtype=DType.INT64)
    new = net.add("MatMul", x, net.random(WIDTH, WIDTH).astype(dtype.numpy))
    present = net.add("TensorScatter", past, new, at, axis=1, name="present")
    scores = net.add("Softmax", net.add("MatMul", x, net.add("Transpose", present, perm=(0, 2, 1))), axis=-1)
    graph = net.finish(net.add("MatMul", scores, present, name="y"), present)
    graph.aliases = {"present": "past"} if aliased else {}
    return graph


@contextmanager
def loaded(
    device: str, precision: Precision = Precision.HIGH, memory_mode: MemoryMode = MemoryMode.NORMAL
) -> Iterator[tuple[Loader, DeviceMemory]]:
    """Yield what loads networks on a device, and memory for state there."""
    (choice,), config = registry.choose([device]), BackendConfig(memory_mode, precision)
    memory, made = DeviceMemory(choice.open(config)), Loader(OpenDevices([choice], config))
    try:
        yield made, memory
    finally:
        made.drop()
        memory.close()


def run(network: Loader, **inputs: Array) -> list[Array]:
    network.now.start(inputs)
    return network.now.finish([])


def steps(*rows: int, dtype: Any = np.float32) -> Iterator[tuple[int, dict[str, Array]]]:
    """Yield numbers of new rows with the inputs for them, one behind the other."""
    rng, at = np.random.default_rng(3), 0
    for count in rows:
        x = rng.standard_normal((1, count, WIDTH)).astype(dtype)
        yield count, {"x": x, "at": np.array([at], np.int64)}
        at += count


def staged(network: Loader) -> int:
    """Return the bytes that runs copy to and from devices."""
    return sum(pipeline.backend.statistics().get("staging_bytes", 0) for pipeline in network.now.pipelines)


@pytest.mark.parametrize("device", DEVICES)
def test_M16_a_cache_stays_on_its_device(device: str) -> None:
    """Networks of two shapes write it in turns, and no run copies it."""
    networks = {rows: weft.optimize(decoder(rows), device) for rows in (1, 5)}
    alone = {rows: weft.load(decoder(rows, aliased=False), "cpu") for rows in networks}
    with loaded(device) as (network, memory):
        state = networks[1].state["past"]
        assert state.output == "present"
        assert state.device.startswith(device)
        cache, fed = memory.make("past", state.spec), np.zeros((1, ROWS, WIDTH), np.float32)
        plans = Plans(network)
        for rows, inputs in steps(5, 1, 1, 5, 1):
            plan = plans.find(Plan, rows)
            if plan is None:
                plan = Plan(rows)
                plans.load(plan, networks[rows], beside=True, state={"past": cache})
            plans.turn_to(plan)
            assert not plan.executable.unaliased
            assert plan.executable.results == ["y"]
            (y,) = run(network, **inputs)
            wanted, fed = alone[rows].run({**inputs, "past": fed})
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(memory.read(cache), fed, rtol=1e-4, atol=1e-5)
            assert staged(network) < fed.nbytes
    for session in alone.values():
        session.close()


@pytest.mark.parametrize("device", DEVICES)
def test_state_is_read_written_forked_and_freed(device: str) -> None:
    network = weft.optimize(decoder(1), device)
    with loaded(device) as (runs, memory):
        cache = memory.make("past", network.state["past"].spec)
        assert not memory.read(cache).any()
        runs.load(network, state={"past": cache})
        (_, first), (_, second) = steps(1, 1)
        run(runs, **first)
        before = memory.read(cache)
        fork = memory.copy(cache)
        run(runs, **second)
        np.testing.assert_array_equal(memory.read(fork), before)
        assert (memory.read(cache)[0, 1] != 0).all()
        memory.write(cache, memory.read(fork))
        again = run(runs, **second)
        runs.load(network, state={"past": fork})
        np.testing.assert_array_equal(run(runs, **second), again)
        half = memory.copy(fork, DType.FLOAT16)
        np.testing.assert_allclose(memory.read(half), memory.read(fork).astype(np.float16), rtol=2e-3)
        assert memory.nbytes == 2 * cache.nbytes + half.nbytes
        memory.release(half)
        assert memory.nbytes == 2 * cache.nbytes
        with pytest.raises(InputError, match="another shape"):
            memory.write(cache, np.zeros((1, ROWS + 1, WIDTH), np.float32))


@pytest.mark.parametrize(
    ("dtype", "precision", "stored"),
    [
        (DType.FLOAT16, Precision.HIGH, DType.FLOAT32),
        (DType.FLOAT32, Precision.LOW, DType.FLOAT16),
        (DType.FLOAT16, Precision.LOW, DType.FLOAT16),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_state_has_the_type_that_the_network_stores(
    device: str, dtype: DType, precision: Precision, stored: DType
) -> None:
    """And no cast of the whole stands before or behind it."""
    network = weft.optimize(decoder(1, dtype), device, precision=precision)
    with loaded(device, precision) as (runs, memory):
        spec = network.state["past"].spec
        assert spec == TensorSpec((1, ROWS, WIDTH), stored)
        cache, fed = memory.make("past", spec), np.zeros((1, ROWS, WIDTH), np.float32)
        runs.load(network, state={"past": cache})
        with weft.load(decoder(1, aliased=False), "cpu") as session:
            for _, inputs in steps(1, 1, dtype=np.float16):
                y = run(runs, **{**inputs, "x": inputs["x"].astype(dtype.numpy)})[0]
                wanted, fed = session.run({**inputs, "x": inputs["x"].astype(np.float32), "past": fed})
                np.testing.assert_allclose(y.astype(np.float32), wanted, rtol=2e-2, atol=2e-2)
        np.testing.assert_allclose(memory.read(cache).astype(np.float32), fed, rtol=2e-2, atol=2e-2)


HEADS, GROUPS, DEPTH = 4, 2, 8


def group_query(rows: int, total: int, *, aliased: bool = True) -> Graph:
    """Return a layer of attention with rotary positions, and a past with room for all keys."""
    net = Net()
    x = net.input("x", 1, rows, 16)
    q, k, v = (net.add("MatMul", x, net.random(16, heads * DEPTH)) for heads in (HEADS, GROUPS, GROUPS))
    past = [net.input(f"past_{side}", 1, GROUPS, ROWS, DEPTH) for side in "kv"]
    ends, whole = net.input("ends", 1, dtype=DType.INT32), net.constant(np.array(total, np.int32))
    angles = np.arange(64)[:, None] / 100.0 ** (np.arange(DEPTH // 2) / 4)
    turns = [net.constant(turn(angles).astype(np.float32)) for turn in (np.cos, np.sin)]
    attend = new_op("com.microsoft::GroupQueryAttention", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1, outputs=3)
    y = net.add(attend, q, k, v, *past, ends, whole, *turns, name="attended", outputs=3)
    graph = net.finish(net.add("MatMul", y, net.random(HEADS * DEPTH, 16), name="y"), "attended.1", "attended.2")
    graph.aliases = {"attended.1": "past_k", "attended.2": "past_v"} if aliased else {}
    return graph


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
def test_group_query_attention_keeps_its_caches(device: str) -> None:
    """A prompt and steps behind it: the op runs in parts, also where the device takes it whole.

    What is behind the rows that were written changes nothing, and stays.
    """
    forms = {3: 3, 1: 9}
    networks = {rows: weft.optimize(group_query(rows, total), device) for rows, total in forms.items()}
    alone = {rows: weft.load(group_query(rows, total, aliased=False), "cpu") for rows, total in forms.items()}
    rng = np.random.default_rng(0)
    with loaded(device) as (runs, memory):
        state = {name: memory.make(name, where.spec) for name, where in networks[1].state.items()}
        fed = {name: rng.standard_normal((1, GROUPS, ROWS, DEPTH)).astype(np.float32) for name in ("past_k", "past_v")}
        assert state.keys() == fed.keys()
        behind = {name: value.copy() for name, value in fed.items()}
        for name, tensor in state.items():
            memory.write(tensor, fed[name])
        end = -1
        for rows in (3, 1, 1):
            end += rows
            runs.load(networks[rows], state=state)
            inputs = {"x": rng.standard_normal((1, rows, 16)).astype(np.float32), "ends": np.array([end], np.int32)}
            (y,) = run(runs, **inputs)
            wanted, fed["past_k"], fed["past_v"] = alone[rows].run({**inputs, **fed})
            np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-4)
            for name, tensor in state.items():
                held = memory.read(tensor)
                np.testing.assert_allclose(held[:, :, : end + 1], fed[name][:, :, : end + 1], rtol=1e-3, atol=1e-4)
                np.testing.assert_array_equal(held[:, :, end + 1 :], behind[name][:, :, end + 1 :])
    for session in alone.values():
        session.close()


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_a_run_that_is_repeated_leaves_the_state_as_it_is(device: str) -> None:
    """At precision LOW the first run is repeated, launch by launch, to see which values overflow."""
    network = weft.optimize(decoder(1), device, precision=Precision.LOW)
    with loaded(device, Precision.LOW) as (runs, memory):
        cache = memory.make("past", network.state["past"].spec)
        filled = np.random.default_rng(5).standard_normal((1, ROWS, WIDTH)).astype(np.float16)
        memory.write(cache, filled)
        runs.load(network, state={"past": cache})
        ((_, inputs),) = steps(1)
        runs.now.start(inputs, watch=OverflowWatch(thorough=True))
        runs.now.finish([])
        np.testing.assert_array_equal(memory.read(cache)[0, 1:], filled[0, 1:])
        assert (memory.read(cache)[0, 0] != filled[0, 0]).all()


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_with_little_memory(device: str) -> None:
    network = weft.optimize(decoder(1), device, memory=MemoryMode.LIMIT)
    with loaded(device, memory_mode=MemoryMode.LIMIT) as (runs, memory):
        cache = memory.make("past", network.state["past"].spec)
        runs.load(network, state={"past": cache})
        for _, inputs in steps(1, 1):
            run(runs, **inputs)
        runs.load(network, state={"past": cache})
        np.testing.assert_array_equal(memory.read(cache)[0].any(axis=1), [True] * 2 + [False] * (ROWS - 2))


def test_another_device_reads_what_was_written() -> None:
    """The cache is on a GPU, and the CPU attends: the output is copied there in each run, and not to the caller."""
    hints = {f"n_{name}": "cpu" for name in ("transpose2", "matmul3", "softmax4", "y")}
    network = weft.optimize(decoder(1), ["opencl", "cpu"], hints=hints)
    choices = registry.choose(["opencl", "cpu"])
    assert [part.device for part in network.parts] == ["opencl:0", "cpu:0"]
    memory, runs = DeviceMemory(choices[0].open(BackendConfig())), Loader(OpenDevices(choices, BackendConfig()))
    cache, fed = memory.make("past", network.state["past"].spec), np.zeros((1, ROWS, WIDTH), np.float32)
    runs.load(network, state={"past": cache})
    with weft.load(decoder(1, aliased=False), "cpu") as alone:
        for _, inputs in steps(1, 1):
            assert runs.now.results == ["y"]
            (y,) = run(runs, **inputs)
            wanted, fed = alone.run({**inputs, "past": fed})
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
    runs.drop()
    memory.close()


WRITERS: dict[str, tuple[dict[str, Any], Any, tuple[int, ...]]] = {
    "ScatterElements": ({"axis": 0}, [[3, 1, 2]], (1, 3)),
    "ScatterND": ({}, [[2], [4]], (2, 3)),
    "TensorScatter": ({"axis": 1}, [2, 0, 1, 2, 0], (5, 1)),
}


@pytest.mark.parametrize("op", WRITERS)
@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_each_op_that_writes_leaves_the_rest(device: str, op: str) -> None:
    attributes, places, shape = WRITERS[op]
    for dtype in (DType.FLOAT32, DType.INT8, DType.INT64, DType.BOOL):
        net = Net()
        past, new = net.input("past", 5, 3, dtype=dtype), net.input("new", *shape, dtype=dtype)
        at = net.constant(np.array(places, np.int64))
        inputs = (past, new, at) if op == "TensorScatter" else (past, at, new)
        graph = net.finish(net.add(op, *inputs, name="present", **attributes))
        wanted = graph.copy()
        graph.aliases = {"present": "past"}
        network = weft.optimize(graph, device)
        values = np.random.default_rng(0).integers(0, 2, (2, 5, 3)).astype(dtype.numpy)
        fresh = values[1].reshape(-1)[: shape[0] * shape[1]].reshape(shape)
        with loaded(device) as (runs, memory), weft.load(wanted, "cpu") as session:
            cache = memory.make("past", network.state["past"].spec)
            memory.write(cache, values[0])
            runs.load(network, state={"past": cache})
            assert run(runs, new=fresh) == []
            np.testing.assert_array_equal(memory.read(cache), session.run({"past": values[0], "new": fresh})[0])


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
@settings(max_examples=examples(12), deadline=None)
@given(rows=st.integers(1, 7), count=st.integers(1, 3), begin=st.integers(-4, 9), mode=MODES, data=st.data())
def test_any_rows_of_any_axis(
    device: str, rows: int, count: int, begin: int, mode: str, data: st.DataObject
) -> None:
    shape = [2, *data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))]
    axis = data.draw(st.integers(1, len(shape) - 1))
    shape[axis] = max(rows, count)
    net = Net()
    past, new = net.input("past", *shape), net.input("new", *shape[:axis], count, *shape[axis + 1 :])
    at = net.input("at", 2, dtype=DType.INT64)
    graph = net.finish(net.add("TensorScatter", past, new, at, axis=axis, mode=mode, name="present"))
    graph.aliases = {"present": "past"}
    network = weft.optimize(graph, device)
    values, fresh = net.random(*shape), net.random(*graph.specs["new"].dims)
    begins = np.array([begin, begin + 1])
    with loaded(device) as (runs, memory):
        cache = memory.make("past", network.state["past"].spec)
        memory.write(cache, values)
        runs.load(network, state={"past": cache})
        run(runs, new=fresh, at=begins)
        wanted = graph.nodes[0].op.reference(values, fresh, begins)
        np.testing.assert_array_equal(memory.read(cache), wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_without_state_the_caller_s_array_stays(device: str) -> None:
    """A network may be run with the cache as an input, lent or not: what is written in place is a copy."""
    graph = decoder(1)
    past = np.random.default_rng(1).standard_normal((1, ROWS, WIDTH)).astype(np.float32)
    ((_, inputs),) = steps(1)
    with weft.load(graph, device) as session, weft.load(decoder(1, aliased=False), "cpu") as alone:
        lent = session.input_arrays()
        wanted = alone.run({**inputs, "past": past})
        for array in (past, lent["past"]):
            array[...] = past
            for got, want in zip(session.run({**inputs, "past": array}), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(array, past)
        session.run({**inputs, "past": lent["past"]})
        np.testing.assert_array_equal(lent["past"], past)


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_open_sizes_keep_the_pair(device: str) -> None:
    """A network for any number of new rows, which is prepared and divided once."""
    rng, past = np.random.default_rng(2), np.zeros((1, ROWS, WIDTH), np.float32)
    with weft.load(decoder("rows"), device) as session, weft.load(decoder("rows", aliased=False), "cpu") as alone:
        for rows in (1, 3, 2, 5, 1):
            x = rng.standard_normal((1, rows, WIDTH)).astype(np.float32)
            inputs = {"x": x, "at": np.array([rows]), "past": past}
            (y, made), (wanted, past) = session.run(inputs), alone.run(inputs)
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(made, past, rtol=1e-4, atol=1e-5)
            assert not [note for note in session.report.notes if "is copied to" in note]


class Forgetful(CpuBackend):
    """A backend that does not say that it keeps state, as its parent does."""


def test_a_backend_that_keeps_no_state_says_so() -> None:
    with registered(Creator(Forgetful)):
        network = weft.optimize(decoder(1), "acme")
    assert not network.state
    assert "'present' is copied to 'past' after each run: acme:0 does not keep state" in network.notes


def also_read(graph: Graph) -> Graph:
    net = Net()
    net.graph = graph
    graph.outputs.append(net.add("Relu", "past", name="other"))
    return graph


def of_two_outputs() -> Graph:
    """Return a graph that is cast at its edges, with one value as two outputs."""
    net = Net()
    net.input("past", 1, ROWS, WIDTH, dtype=DType.FLOAT16)
    new = net.add("Mul", net.input("x", 1, 1, WIDTH, dtype=DType.FLOAT16), np.array(2, np.float16))
    made = net.add("TensorScatter", "past", new, axis=1, name="present")
    graph = net.finish(made, net.add("Identity", made, name="other"))
    graph.aliases = {"present": "past", "other": "past"}
    return graph


def of_two_sizes() -> Graph:
    net = Net()
    net.input("past", 1, ROWS, WIDTH)
    graph = net.finish(net.add("Slice", "past", np.array([1]), np.array([9]), np.array([1]), name="present"))
    graph.aliases = {"present": "past"}
    return graph


def of_no_output() -> Graph:
    graph = decoder(1)
    graph.outputs.remove("present")
    return graph


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (also_read(decoder(1)), "more than TensorScatter 'n_present' reads 'past'"),
        (of_two_sizes(), "does not write it into 'past'"),
        (of_no_output(), "no node makes an output 'present'"),
    ],
)
def test_a_pair_that_cannot_share_memory_goes_with_a_reason(graph: Graph, why: str) -> None:
    network = weft.optimize(graph, "cpu")
    assert not network.state
    assert [note for note in network.notes if why in note and "copied to 'past' after each run" in note]


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_of_two_outputs_one_lies_in_the_input(device: str) -> None:
    network = weft.optimize(of_two_outputs(), device)
    x = np.ones((1, 1, WIDTH), np.float16)
    with loaded(device) as (runs, memory):
        state = {name: memory.make(name, where.spec) for name, where in network.state.items()}
        runs.load(network, state=state)
        fed = {name: np.zeros((1, ROWS, WIDTH), np.float16) for name in network.graph.inputs if name not in state}
        made = dict(zip(runs.now.results, run(runs, **{**fed, "x": x}), strict=True))
        assert {*made} == {"present", "other"} - {where.output for where in network.state.values()}
        for value in (*made.values(), *map(memory.read, state.values())):
            np.testing.assert_array_equal(value[0, :2], [[2] * WIDTH, [0] * WIDTH])


def test_tensors_that_do_not_fit_or_are_not_used() -> None:
    network = weft.optimize(decoder(1), "cpu")
    with loaded("cpu") as (runs, memory):
        with pytest.raises(BackendError, match="does not fit the network"):
            runs.load(network, state={"past": memory.make("past", TensorSpec((1, ROWS, 4), DType.FLOAT32))})
        with loaded("opencl") as (_, elsewhere):
            state = {name: elsewhere.make(name, network.state["past"].spec) for name in ("past", "x")}
            runs.load(network, state=state)
            assert runs.now.unaliased == {
                "past": "cpu:0 cannot use its memory", "x": "no output lies in it",
            }
            ((_, inputs),) = steps(1)
            y, present = run(runs, **inputs, past=np.zeros((1, ROWS, WIDTH), np.float32))
            assert y.shape == (1, 1, WIDTH)
            assert present[0, 0].any()


def test_a_saved_network_keeps_its_state(tmp_path: Path) -> None:
    made = weft.optimize(decoder(1), "cpu")
    assert "'present' lies in 'past' on cpu:0: float32[1x24x8]" in str(made)
    made.save(tmp_path / "decoder.weft")
    assert OptimizedNetwork.load(tmp_path / "decoder.weft").state == made.state
