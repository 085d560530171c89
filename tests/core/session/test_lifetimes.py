"""Contract rows A12 and A14: executions are made at load; nothing that was made needs the backend object."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Interpreted, Mock, Outputs, mock, mocks, registered
from tests.helpers.native_sources import VAULT
from tests.helpers.nets import Net, branching, chain, feeds
from tests.helpers.plugins import ROOT, needs_compiler, write
from weft.core.contract.backend import Backend, BackendInfo, Execution
from weft.core.contract.lowered import Lowered
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft.core.graph.graph import Graph, Node
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.core.placement.optimized_network import PreCompiled
from weft.core.registry.backend_registry import registry
from weft.core.registry.device_choice import DeviceChoice
from weft.core.session.runtime import default_runtime
from weft.core.session.session import Session
from weft.plugins.native_backend import NativeExecution

DEVICES = ("cpu", "opencl", "vulkan")


# -- A12 -------------------------------------------------------------------------------------------------------


class Counting(Mock):
    """Counts its callbacks by name."""

    calls: Counter[str] = Counter()
    takes = frozenset({"Relu", "Tanh", "Conv", "Add"})

    def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
        self.calls["why_not"] += 1
        return super().why_not(inputs, outputs, op)

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        self.calls["OptimizeSubgraph"] += 1
        return OptimizationViews().keep_rest(view)

    def lower(self, graph: Graph) -> Lowered | None:
        self.calls["lower"] += 1
        return super().lower(graph)

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        self.calls["onCreate"] += 1
        return super().onCreate(inputs, outputs, op)


@pytest.fixture(autouse=True)
def fresh() -> None:
    Counting.calls.clear()


def test_A12_a_load_makes_one_execution_for_each_node_and_a_run_makes_none() -> None:
    graph = branching()
    mine = [n for n in graph.nodes if n.op.type in Counting.takes]
    with mocks(acme=Counting), weft.load(graph, "acme") as session:
        assert Counting.calls["onCreate"] == len(mine) < len(graph.nodes)
        assert Counting.calls["OptimizeSubgraph"] == Counting.calls["lower"] == session.report.subgraphs.count("acme:0")
        before = Counting.calls.copy()
        for seed in range(3):
            session.run(feeds(graph, seed))
        session.submit(feeds(graph))
        session.wait()
        assert Counting.calls == before, "running asks for nothing"


def test_A12_loading_an_optimised_network_optimises_nothing() -> None:
    graph = branching()
    with mocks(acme=Counting):
        network = weft.optimize(graph, "acme")
        assert Counting.calls["onCreate"] == 0, "optimising creates nothing"
        Counting.calls.clear()
        with weft.Runtime() as runtime:
            id_ = runtime.load(network)
            made = Counting.calls.copy()
            assert made["OptimizeSubgraph"] == 0
            own = sum(d == "acme:0" for d in network.placement.values())
            assert made["onCreate"] == made["why_not"] == own, "each node is asked about once"
            for _ in range(3):
                runtime.run(id_, feeds(graph))
            assert Counting.calls == made


@pytest.mark.parametrize("fails", [False, True])
def test_A12_devices_are_opened_while_the_model_is_read(tmp_path: Path, fails: bool) -> None:
    """What fails then fails again where it belongs, or not at all; a model that is wrong leaves no thread behind."""
    said: list[object] = []

    class Slow(Creator):
        def onPrepare(self, index: int) -> None:
            said.append((index, threading.current_thread() is threading.main_thread()))
            if fails:
                raise OSError("not yet")

        def onCreate(self, info: BackendInfo) -> Backend:
            said.append("onCreate")
            return super().onCreate(info)

    with registered(Slow(devices=(True, True)), "slow"):
        with weft.load(chain("Relu"), "slow:1") as session:
            session.run(np.ones((2, 3), np.float32))
        assert said[:2] == [(1, False), "onCreate"]
        said.clear()
        (tmp_path / "broken.onnx").write_bytes(b"no model")
        with pytest.raises(weft.WeftError):
            weft.load(tmp_path / "broken.onnx", "slow:1")
        assert said == [(1, False)]
        said.clear()
        with pytest.raises(weft.WeftError, match="missing"):
            weft.load(tmp_path / "missing.onnx", "slow:1")
        assert said == [], "a wrong path is told at once"
        assert not any(thread.name.startswith("weft-open") for thread in threading.enumerate())


def test_A12_a_resize_keeps_executions_and_may_optimise_again() -> None:
    with mocks(acme=Counting), weft.load(chain("Relu", "Tanh", n="N"), "acme") as session:
        session.run(np.ones((2, 3), np.float32))
        assert (Counting.calls["onCreate"], Counting.calls["OptimizeSubgraph"]) == (2, 1)
        session.run(np.ones((4, 3), np.float32))
        assert (Counting.calls["onCreate"], Counting.calls["OptimizeSubgraph"]) == (2, 2)


def test_A12_a_precompiled_node_of_another_payload_is_created_anew() -> None:
    """Two PreCompiled nodes are equal only if they are the same: a resize must not keep what the first one made."""

    class Compiling(Mock):
        def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
            rows = view.graph.specs["x"].dims[0]
            op = PreCompiled("acme", rows, tuple(view.graph.specs[o] for o in view.outputs))
            graph = view.graph.copy()
            graph.nodes = [Node("compiled", op, view.inputs, view.outputs)]
            views = OptimizationViews()
            views.substitute(view, graph)
            return views

        def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
            return Filling(op.payload) if isinstance(op, PreCompiled) else super().onCreate(inputs, outputs, op)

    with mocks(acme=Compiling), weft.load(chain("Relu", n="N"), "acme") as session:
        for rows in (2, 5, 2):
            (y,) = session.run(np.zeros((rows, 3), np.float32))
            np.testing.assert_array_equal(y, np.full((rows, 3), rows))


class Filling(Execution):
    """Fills its output with a number."""

    def __init__(self, number: object) -> None:
        self.number = number

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        """Prepare nothing."""

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        outputs[0].memory[...] = self.number


# -- A14 -------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Backend]]:
    """Return weak references to every backend object that is opened."""
    known: list[weakref.ref[Backend]] = []
    open_ = DeviceChoice.open

    def noting(self: DeviceChoice, *given: Any, **named: Any) -> Backend:
        backend = open_(self, *given, **named)
        known.append(weakref.ref(backend))
        return backend

    monkeypatch.setattr(DeviceChoice, "open", noting)
    return known


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["high", "low"])
def test_A14_an_optimised_network_outlives_the_backends_that_made_it(
    device: str, precision: str, opened: list[weakref.ref[Backend]]
) -> None:
    graph = branching(8)
    network = weft.optimize(graph, [device, "cpu"], precision=precision)
    assert opened
    gc.collect()
    assert [ref() for ref in opened] == [None] * len(opened)
    wanted = outputs(graph, feeds(graph))[0]
    with weft.Runtime() as runtime:
        first, second = runtime.load(network), runtime.load(network)
        for id_ in (first, second):
            np.testing.assert_allclose(runtime.run(id_, feeds(graph))[0], wanted, atol=0.01)
        runtime.unload(first)
        np.testing.assert_allclose(runtime.run(second, feeds(graph))[0], wanted, atol=0.01)
    gc.collect()
    assert not any(ref() for ref in opened)


def test_A14_a_precompiled_payload_belongs_to_its_node(opened: list[weakref.ref[Backend]]) -> None:
    graph = branching()
    creator = Creator(mock(replace=lambda nodes: [("compiled", nodes[:3]), ("compiled", nodes[3:])]))
    with registered(creator, "acme"):
        network = weft.optimize(graph, "acme", fallback="error")
        creator.backends.clear()
        gc.collect()
        assert len(opened) == 1 and opened[0]() is None
        payloads = [weakref.ref(n.op.payload) for n in network.graph.nodes if isinstance(n.op, PreCompiled)]
        assert len(payloads) == 2 and all(isinstance(p(), Graph) for p in payloads)
        with weft.load(network) as session:
            np.testing.assert_array_equal(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0])
            for pipeline in session.pipelines:
                assert all(isinstance(t.execution, Interpreted) for t in pipeline.tasks)
        del network, session, pipeline
    gc.collect()
    assert [p() for p in payloads] == [None, None], "and goes with it"


@pytest.mark.parametrize("device", DEVICES)
def test_A14_executions_of_our_backends_hold_no_backend_object(device: str) -> None:
    with weft.load(branching(8), device) as session:
        for pipeline in session.pipelines:
            for task in pipeline.tasks:
                kept = vars(task.execution)
                assert not holds_backend(list(kept.values())), f"{type(task.execution).__name__}: {kept}"


@needs_compiler
@pytest.mark.parametrize("name", ["leaky", "vault"])
def test_A14_executions_in_C_hold_no_backend_object(name: str, tmp_path: Path) -> None:
    """On the host's memory, and on buffers of the library's own."""
    source = VAULT if name == "vault" else (ROOT / "examples" / "c_backend" / "acme_leaky_backend.c").read_text()
    write(tmp_path / f"acme_{name}_backend.so", source)
    net = Net()
    x = net.input("x", 2, 3)
    graph = net.finish(net.add("Add", x, x, name="y") if name == "vault" else net.add("Relu", x, name="y"))
    runtime = weft.Runtime(dynamic_backend_paths=[tmp_path])
    with runtime, weft.load(graph, name, runtime=runtime, fallback="error") as session:
        ((task,),) = (p.tasks for p in session.pipelines)
        assert isinstance(task.execution, NativeExecution)
        for _ in range(2):
            assert not holds_backend(list(vars(task.execution).values()))
            np.testing.assert_array_equal(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0])


def holds_backend(start: list[object]) -> bool:
    """Tell whether a backend can be reached from objects, other than by tensors that lie in its memory."""
    seen: set[int] = set()
    while start:
        thing = start.pop()
        if isinstance(thing, Backend):
            return True
        skipped = isinstance(thing, (weft.Tensor, type)) or type(thing).__module__ in ("builtins.module", "numpy")
        if id(thing) in seen or skipped or not type(thing).__module__.startswith(("weft", "builtins", "tests")):
            continue
        seen.add(id(thing))
        if not callable(thing) or type(thing).__module__.startswith("weft"):
            start += gc.get_referents(thing)
    return False


@pytest.mark.parametrize("device", DEVICES)
def test_A14_a_closed_session_leaves_no_backend_object(device: str, opened: list[weakref.ref[Backend]]) -> None:
    session = weft.load(branching(8), device)
    session.run(feeds(branching(8)))
    session.close()
    gc.collect()
    assert opened and not any(ref() for ref in opened)


def test_A14_a_creator_that_keeps_nothing_can_be_called_for_each_backend_object() -> None:
    """A fresh object for each part and for each question: nothing is shared but by the creator."""
    graph = chain("Relu", "Exp", "Tanh")
    creator = Creator(mock("Relu", "Tanh"))
    with registered(creator, "acme"), weft.load(graph, "acme") as session:
        assert [p.device for p in session.pipelines] == ["acme:0", "cpu:0", "acme:0"]
        assert len({id(p.backend) for p in session.pipelines}) == 3
        assert len(creator.backends) == 2, "what was asked first runs the first part"
        np.testing.assert_array_equal(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0])


def test_A14_the_device_stays_open_for_as_long_as_its_creator() -> None:
    (choice,) = registry.choose("vulkan")
    runtime = choice.creator.runtime(0)  # type: ignore[attr-defined]
    for _ in range(2):
        backend = choice.creator.onCreate(BackendInfo("vulkan"))
        assert backend.runtime is runtime  # type: ignore[attr-defined]
        backend.close()
    graph = branching(8)
    with Session(graph, [choice], runtime=default_runtime()) as session:
        np.testing.assert_allclose(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0], atol=1e-5)
