"""Contract row A8: copies between backends are visible, named, and left out where memory can be imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.fakes import AsynchronousBackend, mock, mocks
from tests.helpers.nets import Net, assert_near, chain, feeds
from tests.helpers.random_nets import SLOW, networks
from tests.helpers.run_length import examples
from weft.core.contract.backend import Backend
from weft.core.graph.graph import Graph, bind
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.session.executable import PipelineCopy
from weft.errors import BackendError

DEVICE = {"V": "vulkan", "O": "opencl", "C": "cpu"}
EVERY = ["vulkan", "opencl", "cpu"]


def copies(network: OptimizedNetwork) -> list[str]:
    return [n.name for n in network.copies]


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the copies that runs make."""
    names: list[str] = []
    run = PipelineCopy.run

    def noting(self: PipelineCopy) -> None:
        names.append(self.name)
        run(self)

    monkeypatch.setattr(PipelineCopy, "run", noting)
    return names


def check(session: weft.Session, graph: Graph, seeds: int = 2, tolerance: float = 1e-5) -> None:
    """The session gives what the references of the graph's ops give."""
    for seed in range(seeds):
        fed = feeds(graph, seed)
        for got, wanted in zip(session.run(fed), outputs(graph, fed), strict=True):
            assert_near(got, wanted, tolerance)


# -- visible ---------------------------------------------------------------------------------------------------


def test_A8_copies_are_nodes_that_name_source_and_destination(moved: list[str]) -> None:
    graph = chain("Relu", "Tanh", "Relu")
    with mocks(one=mock("Relu"), two=mock("Tanh")) as ids:
        network = weft.optimize(graph, ids)
        wanted = ["copy v0: one:0 -> two:0", "copy v1: two:0 -> one:0"]
        assert copies(network) == wanted
        assert [n.name for n in network.graph.nodes] == ["n_v0", wanted[0], "n_v1", wanted[1], "n_v2"]
        assert [(n.op.type, n.inputs, n.outputs) for n in network.copies] == [
            ("Copy", ("v0",), ("v0@two:0",)),
            ("Copy", ("v1",), ("v1@one:0",)),
        ]
        assert network.parts[1].graph.inputs == ["v0@two:0"] and network.graph.outputs == ["v2"]
        assert all(name in str(network) for name in wanted)
        for source, more in ((network, ()), (graph, (ids,))):
            with weft.load(source, *more) as session:
                assert [(c.name, c.value, c.source, c.target, c.nbytes) for c in session.report.copies] == [
                    (wanted[0], "v0", "one:0", "two:0", 24),
                    (wanted[1], "v1", "two:0", "one:0", 24),
                ]
                assert "copy one:0 -> two:0: v0, 24 bytes" in str(session.report)
                assert session.report.subgraphs == ("one:0", "two:0", "one:0")
                moved.clear()
                check(session, graph, 2)
                assert moved == wanted * 2


def test_A8_names_that_are_taken_are_not_taken_twice() -> None:
    net = Net()
    a = net.add("Relu", net.input("x", 2), name="a")
    b = net.add("Tanh", a, name="a@two:0")
    graph = net.finish(net.add("Tanh", net.add("Relu", b, name="c"), name="copy a: one:0 -> two:0"))
    with mocks(one=mock("Relu"), two=mock("Tanh")) as ids, weft.load(graph, ids) as session:
        check(session, graph)
        names = [n for node in session.optimized.graph.nodes for n in (node.name, *node.outputs)]
        assert len(set(names)) == len(names)


def test_A8_a_copy_that_fails_is_named() -> None:
    class Torn(mock("Tanh")):  # type: ignore[misc]
        host_memory = False

        def onCopyBuffer(self, src: Tensor, dst: Tensor) -> None:
            raise RuntimeError("the cable is out")

    with (
        mocks(one=mock("Relu"), two=Torn) as ids,
        weft.load(chain("Relu", "Tanh"), ids) as session,
        pytest.raises(weft.WeftError, match=r"copy v0: one:0 -> two:0[\s\S]*the cable is out"),
    ):
        session.run(np.zeros((2, 3), np.float32))


# -- imports ---------------------------------------------------------------------------------------------------


def test_A8_where_memory_can_be_imported_nothing_is_copied(moved: list[str]) -> None:
    graph = chain("Relu", "Tanh", "Exp", "Relu")
    made = {"one": mock("Relu", imports=True), "two": mock("Tanh", imports=True)}
    with mocks(**made) as ids, weft.load(graph, ids) as session:
        assert session.report.subgraphs == ("one:0", "two:0", "cpu:0", "one:0")
        assert session.report.copies == () and session.optimized.copies == ()
        check(session, graph)
        parts = session.pipelines
        for source, reader in pairwise(parts):
            (value,) = reader.graph.inputs
            assert np.shares_memory(source.tensor(value).memory, reader.tensor(value).memory)
    assert not moved


def test_A8_only_who_can_import_is_spared() -> None:
    graph = chain("Relu", "Tanh", "Relu")
    with mocks(one=mock("Relu"), two=mock("Tanh", imports=True)) as ids, weft.load(graph, ids) as session:
        assert [c.name for c in session.report.copies] == ["copy v1: two:0 -> one:0"]
        check(session, graph)


def read_twice() -> Graph:
    """v is made by Relu and read by two Exp that a Tanh lies between."""
    net = Net()
    v = net.add("Relu", net.input("x", 2, 3), name="v")
    first = net.add("Exp", v, name="first")
    between = net.add("Tanh", first, name="between")
    return net.finish(net.add("Mul", between, net.add("Sub", v, between, name="s"), name="y"))


def test_A8_what_two_parts_of_a_device_read_is_copied_once_if_they_can_import() -> None:
    graph = read_twice()
    hints = {"n_v": "cpu", "n_first": "one", "n_between": "cpu", "n_s": "one", "n_y": "one"}

    class Own(mock()):  # type: ignore[misc]
        """Has memory of its own kind, which its parts share."""

        def canImport(self, source: Backend) -> bool:
            return isinstance(source, Own)

    with mocks(one=Own), weft.load(graph, ["one", "cpu"], hints=hints) as session:
        assert session.report.subgraphs == ("cpu:0", "one:0", "cpu:0", "one:0")
        # The CPU imports first, and so does the last part what the second one got.
        assert [c.name for c in session.report.copies] == ["copy v: cpu:0 -> one:0", "copy between: cpu:0 -> one:0"]
        check(session, graph)
    with mocks(one=mock()), weft.load(graph, ["one", "cpu"], hints=hints) as session:
        assert [c.value for c in session.report.copies] == ["v", "v", "between"]
        check(session, graph)


@pytest.mark.parametrize("imports", [False, True])
def test_A8_of_many_who_hold_a_value_its_maker_comes_first(imports: bool) -> None:
    net = Net()
    v = net.add("Relu", net.input("x", 2, 3), name="v")
    graph = net.finish(net.add("Sub", net.add("Tanh", v, name="t"), v, name="y"))
    made = {"one": mock("Relu"), "two": mock("Tanh"), "three": mock("Sub", imports=imports)}
    with mocks(**made) as ids, weft.load(graph, ids) as session:
        wanted = [("v", "v@two:0", "one:0")]  # two has a copy, from which nobody copies
        wanted += [] if imports else [("t", "t@three:0", "two:0"), ("v", "v@three:0", "one:0")]
        network = session.optimized
        assert sorted((*n.inputs, *n.outputs, n.op.source) for n in network.copies) == sorted(wanted)  # type: ignore[attr-defined]
        assert set(network.parts[2].graph.inputs) == ({"t", "v"} if imports else {"t@three:0", "v@three:0"})
        check(session, graph)


@pytest.mark.parametrize("gpu", ["opencl", "vulkan"])
@pytest.mark.parametrize("memory", ["normal", "limit"])
def test_A8_two_parts_of_a_gpu_share_memory_and_only_what_crosses_is_moved(
    gpu: str, memory: str, moved: list[str]
) -> None:
    graph = read_twice()
    hints = {"n_between": "cpu"}
    with weft.load(graph, [gpu, "cpu"], hints=hints, memory=memory) as session:
        wanted = [f"copy first: {gpu}:0 -> cpu:0", f"copy between: cpu:0 -> {gpu}:0"]
        assert session.report.subgraphs == (f"{gpu}:0", "cpu:0", f"{gpu}:0")
        assert [c.name for c in session.report.copies] == wanted
        check(session, graph, 3, 1e-4)
        assert moved == wanted * 3
        first, _, last = session.pipelines
        assert first.tensor("v").memory.slot is last.tensor("v").memory.slot
        if memory == "normal":  # v stays on the device: it is not downloaded either
            assert set(first.mapped) == {"x", "first"} and set(last.mapped) == {f"between@{gpu}:0", "y"}


def test_A8_a_backend_that_promises_an_import_and_refuses_it_is_named() -> None:
    class Fickle(mock("Tanh", imports=True)):  # type: ignore[misc]
        def onImportBuffer(self, tensor: Tensor, source: Tensor) -> bool:
            return False

    with mocks(one=mock("Relu"), two=Fickle) as ids, pytest.raises(BackendError, match="two:0 did not import 'v0'"):
        weft.load(chain("Relu", "Tanh"), ids)


# -- at the edges ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("imports", [False, True])
@pytest.mark.parametrize("second", ["two", "opencl", "vulkan"])
def test_A8_outputs_that_are_read_elsewhere_inputs_of_many_and_constants(second: str, imports: bool) -> None:
    net = Net()
    x, z = net.input("x", 2, 4), net.input("z", 2, 4)
    c = net.constant(net.random(4), "c")
    a = net.add("Relu", x, name="a")
    b = net.add("Tanh", net.add("Mul", a, c, name="m"), name="b")
    d = net.add("Add", net.add("Relu", b, name="r"), x, name="d")
    e = net.add("Tanh", net.add("Mul", d, c, name="n"), name="e")
    graph = net.finish(e, a, c, x, b, a, z)
    hints = {"n_[mbne]": second}
    made = {"one": mock(imports=imports), "two": mock(imports=imports)}
    with mocks(**made), weft.load(graph, ["one", second], hints=hints) as session:
        assert session.report.subgraphs == ("one:0", f"{second}:0") * 2
        check(session, graph, 3)
        assert len(session.report.copies) == (0 if imports and second == "two" else 3)
        given = [np.zeros_like(y) for y in session.run(feeds(graph))]
        assert all(g is y for g, y in zip(given, session.run(feeds(graph), outputs=given), strict=True))
        for got, wanted in zip(given, outputs(graph, feeds(graph)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_A8_empty_values_cross_too() -> None:
    net = Net()
    a = net.add("Relu", net.input("x", 0, 3), name="a")
    graph = net.finish(net.add("Tanh", a, name="b"), a)
    for order, hints in ((["vulkan", "opencl"], {"n_b": "opencl"}), (["cpu", "vulkan"], {"n_b": "vulkan"})):
        with weft.load(graph, order, hints=hints) as session:
            assert [y.shape for y in session.run(feeds(graph))] == [(0, 3), (0, 3)]


@pytest.mark.parametrize("kind", ["INT64", "INT32", "BOOL", "UINT8", "INT8", "FLOAT64"])
def test_A8_values_of_every_type_cross(kind: str) -> None:
    dtype = weft.DType[kind]
    net = Net()
    x = net.input("x", 2, 3, dtype=dtype)
    v = net.add("Transpose", x, perm=(1, 0), name="v")
    graph = net.finish(net.add("Concat", v, v, axis=0, name="y"))
    with mocks(one=mock("Transpose"), two=mock("Concat")) as ids, weft.load(graph, ids) as session:
        assert session.report.copies[0].value == "v" and len(session.report.copies) == 1
        for got, wanted in zip(session.run(feeds(graph)), outputs(graph, feeds(graph)), strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)


# -- while a run is on -----------------------------------------------------------------------------------------


def test_A8_memory_that_a_later_part_still_reads_is_not_freed_under_it() -> None:
    """After submit the last part is at work; a close or a resize waits for it before the first part's memory goes."""
    calls: list[str] = []

    class Busy(AsynchronousBackend):
        def why_not(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> str | None:
            return "not here" if op.type == "Tanh" else None

        def canImport(self, source: Backend) -> bool:
            return isinstance(source, Busy)

        def onWaitFinish(self) -> bool:
            calls.extend(["work"] if self.queue else [])
            return super().onWaitFinish()

        def onClearBuffer(self) -> bool:
            calls.append("free")
            return super().onClearBuffer()

        def close(self) -> None:
            calls.append("free")
            super().close()

    net = Net()
    v = net.add("Relu", net.input("x", "N", 3), name="v")
    b = net.add("Tanh", net.add("Exp", v, name="e"), name="b")
    graph = net.finish(net.add("Mul", v, b, name="y"))
    with mocks(busy=Busy):
        session = weft.load(graph, ["busy"], shapes={"x": (2, 3)})
        assert session.report.subgraphs == ("busy:0", "cpu:0", "busy:0")
        assert [c.value for c in session.report.copies] == ["e", "b"]
        ends: list[Callable[[], None]] = [lambda: session.resize({"x": (4, 3)}), session.close]
        for end in ends:
            session.submit(np.ones(session.inputs["x"], np.float32))  # type: ignore[arg-type]
            calls.clear()
            end()
            assert "free" in calls and "work" not in calls[calls.index("free") :] and calls[0] == "work"


# -- OpenCL, Vulkan and the CPU in one network -----------------------------------------------------------------


def convolutions(length: int) -> Graph:
    """Return a chain of nodes k0, k1 ... : convolutions of one shape, and activations."""
    net = Net()
    x = net.input("x", "N", 8, 6, 6)
    for k in range(length):
        if k % 2:
            x = net.add("LeakyRelu", x, name=f"k{k}")
        else:
            w = net.random(8, 8, 3, 3, scale=0.15)
            x = net.add("Conv", x, w, net.random(8, scale=0.1), name=f"k{k}", pads=(1, 1, 1, 1))
    return net.finish(x)


def bound(graph: Graph, n: int) -> Graph:
    """Return the graph with the size of N."""
    return bind(graph, {"x": (n, 8, 6, 6)})


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("memory", ["normal", "limit"])
@pytest.mark.parametrize("pattern", ["VOC", "VCO", "VOVO", "OCVC", "VVOOCC", "CVOCVOC"])
def test_A8_every_way_through_three_devices(pattern: str, precision: str, memory: str) -> None:
    graph = convolutions(len(pattern))
    hints = {f"n_k{k}": DEVICE[p] for k, p in enumerate(pattern)}
    tolerance = 0.02 if precision == "low" else 1e-5
    with weft.load(
        graph, EVERY, hints=hints, precision=precision, memory=memory, shapes={"x": (1, 8, 6, 6)}
    ) as session:
        turns = [DEVICE[p] for k, p in enumerate(pattern) if not k or pattern[k - 1] != p]
        for n in (1, 3, 1):
            session.resize({"x": (n, 8, 6, 6)})
            assert session.report.subgraphs == tuple(f"{d}:0" for d in turns)
            for name, device in session.report.placement.items():
                if name in hints:
                    assert device == hints[name]
            kept = 2 if precision == "low" else 4
            assert [(c.source, c.target, c.nbytes) for c in session.report.copies] == [
                (f"{a}:0", f"{b}:0", n * 8 * 6 * 6 * kept) for a, b in pairwise(turns)
            ]
            check(session, bound(graph, n), 2, tolerance)
            fed = feeds(bound(graph, n), 9)
            session.submit(fed)
            np.testing.assert_allclose(session.wait()[0], outputs(bound(graph, n), fed)[0], atol=tolerance)


@st.composite
def tangled(draw: st.DrawFn) -> tuple[Graph, dict[str, str]]:
    """Draw a network of one shape, with values that many nodes read, and a device for each node."""
    net = Net(draw(st.integers(0, 99)))
    values = [net.input("x", 1, 4, 3, 3), net.input("z", 1, 4, 3, 3)]
    hints = {}
    for k in range(draw(st.integers(2, 10))):
        kind = draw(st.sampled_from(["Add", "Mul", "Relu", "Tanh", "MaxPool"]))
        reads = [draw(st.sampled_from(values[-5:])) for _ in range(1 + (kind in ("Add", "Mul")))]
        more: dict[str, Any] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)} if kind == "MaxPool" else {}
        values.append(net.add(kind, *reads, name=f"k{k}", **more))
        hints[f"n_k{k}"] = draw(st.sampled_from(EVERY))
    results = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    graph = net.finish(values[-1], *results)
    return graph, hints


@pytest.mark.parametrize(("precision", "memory"), [("high", "normal"), ("high", "limit"), ("low", "normal")])
@given(case=tangled())
@settings(max_examples=examples(12), deadline=None)
def test_A8_any_network_on_three_devices(precision: str, memory: str, case: tuple[Graph, dict[str, str]]) -> None:
    graph, hints = case
    live = {n.name for n in weft.optimize(graph, "cpu").graph.nodes}
    wanted = {name: device for name, device in hints.items() if name in live}
    with weft.load(graph, EVERY, hints=hints, precision=precision, memory=memory) as session:
        placed = session.report.placement
        assert all(placed[n] == d for n, d in wanted.items() if n in placed)
        assert {n for n in wanted if n not in placed} <= {n for n, d in wanted.items() if d != "cpu"}, "only fused"
        check(session, graph, 2, 0.02 if precision == "low" else 1e-5)


@pytest.mark.parametrize(("precision", "memory"), [("high", "normal"), ("low", "limit")])
@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=SLOW)
def test_A8_any_convolution_network_on_three_devices(precision: str, memory: str, data: st.DataObject) -> None:
    """Concats in place, views, fused nodes and rewritten ones, on both sides of a copy."""
    graph = data.draw(networks(8))
    hints = {n.name: data.draw(st.sampled_from(EVERY)) for n in graph.nodes}
    with weft.load(graph, EVERY, hints=hints, precision=precision, memory=memory) as session:
        placed = session.report.placement
        assert all(placed[n] == d for n, d in hints.items() if n in placed) and not session.report.refusals
        check(session, graph, 2, 0.05 if precision == "low" else 1e-4)
