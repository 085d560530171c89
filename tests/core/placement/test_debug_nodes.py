"""Contract row A9: after every node, a callback or a file is told what its outputs hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.helpers.fakes import mock, mocks
from tests.helpers.nets import Net, branching, feeds
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs, values
from weft.core.graph.layout import Array
from weft.core.placement.debug_nodes import DebugRecord
from weft.errors import ExecutionError, InputError

DEVICES = ("cpu", "opencl", "vulkan")


def told(graph: Graph, device: object, fed: Mapping[str, Array] | None = None, **options: object) -> list[DebugRecord]:
    """Return what the callback hears of one run."""
    records: list[DebugRecord] = []
    with weft.load(graph, device, debug=records.append, **options) as session:  # type: ignore[arg-type]
        assert not records, "nothing has run"
        session.run(fed if fed is not None else feeds(graph))
    return records


def assert_describes(record: DebugRecord, value: Array, tolerance: float = 1e-4) -> None:
    """The record says what the array holds."""
    assert record.shape == value.shape
    numbers = value.astype(np.float64)
    assert record.nan_count == np.isnan(numbers).sum()
    real = numbers[~np.isnan(numbers)]
    if not real.size:
        assert (record.minimum, record.maximum) == (None, None)
        return
    scale = max(1.0, float(np.abs(real[np.isfinite(real)]).max(initial=0)))
    for said, wanted in ((record.minimum, real.min()), (record.maximum, real.max())):
        assert said == pytest.approx(wanted, abs=tolerance * scale)


# -- every output of every node --------------------------------------------------------------------------------


@pytest.mark.alike
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["high", "low"])
def test_A9_every_output_of_every_node_is_described(device: str, precision: str) -> None:
    graph, slots = branching(8), []
    records: list[DebugRecord] = []
    known = values(graph, feeds(graph))
    with weft.load(graph, device, debug=records.append, precision=precision, fallback="error") as session:
        y = session.run(feeds(graph))[0]
        np.testing.assert_allclose(y, known["y"], atol=0.01 if precision == "low" else 1e-5)
        network = session.optimized
        for part in network.parts:
            slots += [(n.name, k, part.device) for n in part.graph.nodes for k in range(len(n.outputs))]
        made = {(n.name, k): o for n in network.graph.nodes for k, o in enumerate(n.outputs)}
        dtypes = {v: s.dtype.numpy.name for v, s in network.graph.specs.items()}
    assert sorted((r.node, r.slot, r.device) for r in records) == sorted(slots)
    assert {r.device for r in records} == {f"{device}:0"}
    for record in records:
        value = made[record.node, record.slot]
        assert record.dtype == dtypes[value]
        # Values that casts of storage made have names of their own.
        source = value if value in known else value.rpartition(".")[0]
        assert_describes(record, known[source], 0.01 if precision == "low" else 1e-4)


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_A9_a_network_on_a_gpu_stays_one_part_and_stays_fused(device: str) -> None:
    graph = branching(8)
    plain = weft.optimize(graph, device)
    network = weft.optimize(graph, device, debug=lambda record: None)
    assert [p.device for p in network.parts] == [f"{device}:0", "cpu:0"]
    assert [n.name for n in network.parts[0].graph.nodes] == [n.name for p in plain.parts for n in p.graph.nodes]
    assert {n.op.type for n in network.parts[1].graph.nodes} == {"Debug"}
    fused = [n for n in network.parts[0].graph.nodes if n.op.type == "Fused"]
    assert fused, "a convolution takes its activation along"
    heard = {r.node for r in told(graph, device)}
    assert {n.name for n in fused} <= heard


def test_A9_a_divided_network_is_divided_no_further() -> None:
    graph = branching()
    made = {"one": mock("Conv"), "two": mock("Relu", "Concat", "Softmax", "Flatten")}
    with mocks(**made) as ids:
        plain, network = weft.optimize(graph, ids), weft.optimize(graph, ids, debug=lambda record: None)
        records = told(graph, ids)
    devices = [p.device for p in plain.parts]
    assert [p.device for p in network.parts if not all(n.op.type == "Debug" for n in p.graph.nodes)] == devices
    assert len(network.parts) <= len(devices) + 1
    known = values(graph, feeds(graph))
    where = plain.placement
    assert {r.node: r.device for r in records} == where and len(records) == len(graph.nodes)
    for record in records:
        assert_describes(record, known[record.node[2:]])


def test_A9_records_of_a_run_keep_the_order_of_the_nodes() -> None:
    graph = branching()
    assert [r.node for r in told(graph, "cpu")] == [n.name for n in graph.nodes]


@pytest.mark.parametrize("order", [["cpu", "vulkan"], ["vulkan", "cpu"], ["vulkan"], ["opencl", "vulkan"]])
@pytest.mark.parametrize("fallback", ["cpu", "error"])
def test_A9_debug_nodes_are_on_the_cpu_wherever_it_stands(order: list[str], fallback: str) -> None:
    graph = branching(8)
    network = weft.optimize(graph, order, debug=lambda record: None, fallback=fallback)
    where = network.placement
    debug = {n.name for n in network.graph.nodes if n.op.type == "Debug"}
    assert {where[n] for n in debug} == {"cpu:0"}
    assert {where[n] for n in where.keys() - debug} == {f"{order[0]}:0"} and not network.refusals
    records = told(graph, order, fallback=fallback)
    assert len(records) == len(debug) and {r.device for r in records} == {f"{order[0]}:0"}


def test_A9_every_run_is_told_and_so_is_one_after_a_resize() -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", "N", 2), name="y"))
    records: list[DebugRecord] = []
    with weft.load(graph, "vulkan", debug=records.append) as session:
        for n in (1, 3, 3):
            session.run(np.full((n, 2), float(n), np.float32))
    assert [(r.shape, r.minimum, r.maximum) for r in records] == [((1, 2), 1, 1), ((3, 2), 3, 3), ((3, 2), 3, 3)]


def test_A9_an_optimised_network_with_debug_nodes_is_loaded_with_them() -> None:
    records: list[DebugRecord] = []
    graph = branching(8)
    network = weft.optimize(graph, "opencl", fallback="error", debug=records.append)
    with weft.Runtime() as runtime:
        loaded = runtime.load(network)
        (y,) = runtime.run(loaded, feeds(graph))
    np.testing.assert_allclose(y, outputs(graph, feeds(graph))[0], atol=1e-5)
    assert {r.node for r in records} == {n.name for n in network.parts[0].graph.nodes}


# -- what values may hold ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_A9_nan_is_counted_and_infinity_is_not(device: str) -> None:
    net = Net()
    x = net.input("x", 6)
    graph = net.finish(net.add("Mul", x, np.ones(6, np.float32), name="a"), net.add("Neg", x, name="b"))
    x_ = np.array([1, np.nan, -2, np.nan, np.inf, 0], np.float32)
    a, b = told(graph, device, {"x": x_}, fallback="error")
    assert (a.minimum, a.maximum, a.nan_count) == (-2, np.inf, 2)
    assert (b.minimum, b.maximum, b.nan_count) == (-np.inf, 2, 2)
    a, _ = told(graph, device, {"x": np.full(6, np.nan, np.float32)})
    assert (a.minimum, a.maximum, a.nan_count) == (None, None, 6)


@pytest.mark.parametrize("device", DEVICES)
def test_A9_an_empty_output_has_no_extremes(device: str) -> None:
    net = Net()
    graph = net.finish(net.add("Relu", net.input("x", 0, 3), name="y"))
    (record,) = told(graph, device)
    assert (record.shape, record.minimum, record.maximum, record.nan_count) == ((0, 3), None, None, 0)


def test_A9_integers_booleans_and_scalars() -> None:
    net = Net()
    x = net.input("x", 2, 3)
    index = net.add("ArgMax", x, axis=1, keepdims=0, name="index")
    less = net.add("Less", x, np.zeros((), np.float32), name="less")
    total = net.add("ReduceSum", x, keepdims=0, name="total")
    graph = net.finish(index, less, total)
    x_ = np.array([[1, 5, 2], [-1, -2, -3]], np.float32)
    known = {r.node[2:]: r for r in told(graph, "cpu", {"x": x_})}
    facts = {n: (r.dtype, r.shape, r.minimum, r.maximum, r.nan_count) for n, r in known.items()}
    assert facts["index"] == ("int64", (2,), 0, 1, 0)
    assert facts["less"] == ("bool", (2, 3), 0, 1, 0)
    assert facts["total"] == ("float32", (), 2, 2, 0)


def test_A9_nodes_with_several_outputs_tell_of_each_by_its_slot() -> None:
    net = Net()
    first = net.add("Split", net.input("x", 2, 5), np.array([2, 3], np.int64), outputs=2, axis=1, name="s")
    graph = net.finish(net.add("Relu", first, name="y"))
    records = told(graph, "cpu")
    assert [(r.node, r.slot, r.shape) for r in records] == [
        ("n_s", 0, (2, 2)),
        ("n_s", 1, (2, 3)),
        ("n_y", 0, (2, 2)),
    ]
    assert_describes(records[1], values(graph, feeds(graph))["s.1"])


# -- a file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_A9_a_file_gets_lines_of_json(device: str, tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", 3)
    graph = net.finish(net.add("Neg", net.add("Mul", x, x, name="a"), name="b"))
    path = tmp_path / "debug.jsonl"
    for kind in (str(path), path):
        with weft.load(graph, device, debug=kind) as session:
            session.run(np.array([1, np.nan, np.inf], np.float32))
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert len(lines) in (2, 4), "each of the two sessions appends"  # a GPU fuses both nodes into one
    assert lines[-1] == {
        "node": lines[-1]["node"],
        "slot": 0,
        "device": f"{device}:0",
        "shape": [3],
        "dtype": "float32",
        "minimum": "-inf",
        "maximum": -1.0,
        "nan_count": 1,
    }
    assert float(lines[-1]["minimum"]) == -np.inf


def test_A9_a_file_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    graph = branching()
    path = tmp_path / "gone" / "folder.jsonl"
    path.parent.mkdir()
    wanted = pytest.raises(ExecutionError, match=r"debug n_stem:0[\s\S]*folder.jsonl")
    with weft.load(graph, "cpu", debug=path) as session, wanted:
        path.parent.rmdir()
        session.run(feeds(graph))
    with weft.load(graph, "cpu") as session:
        session.run(feeds(graph))


@pytest.mark.parametrize("error", [LookupError("not now"), InputError("not now"), MemoryError()], ids=repr)
def test_A9_what_a_callback_raises_is_the_users_own_and_leaves_the_session_usable(error: Exception) -> None:
    graph, heard, said = branching(), [], str(error)

    def callback(record: DebugRecord) -> None:
        heard.append(record)
        if len(heard) == 1:
            raise error

    with weft.load(graph, "vulkan", debug=callback) as session:
        with pytest.raises(type(error)) as raised:
            session.run(feeds(graph))
        assert raised.value is error and str(error) == said
        np.testing.assert_allclose(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0], atol=1e-5)
    assert len(heard) > 2


def test_A9_without_debug_there_are_no_debug_nodes() -> None:
    assert not [n for n in weft.optimize(branching(), "cpu").graph.nodes if n.op.type == "Debug"]
