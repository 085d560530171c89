"""Networks that are made ready while their devices open: what comes out, who is told of errors, who holds what."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, registered
from tests.helpers.nets import Net, branching, feeds
from weft.core.contract.backend import Precision
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.limits import Limits
from weft.core.placement import open_network
from weft.core.placement.open_network import OpenNetworks
from weft.core.placement.prepare import PreparedNetwork, prepare_network
from weft.core.registry.backend_registry import registry
from weft.core.session import prefetch
from weft.core.session import session as sessions
from weft.core.session.prefetch import Prefetch
from weft.core.session.runtime import Runtime
from weft.core.session.session import Session
from weft.errors import InputError, ModelError, NoDevice

LATE = 20.0
"""Seconds after which a thread is not coming any more."""


def open_ended() -> Graph:
    """Return a network whose batch is not known."""
    net = Net()
    return net.finish(net.add("Relu", net.input("x", "batch", 3), name="y"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the threads in which networks are made ahead, as they are made."""
    threads: list[str] = []

    prepare = OpenNetworks.prepare

    def noted(networks: OpenNetworks, bound: Graph) -> PreparedNetwork:
        threads.append(threading.current_thread().name)
        return prepare(networks, bound)

    monkeypatch.setattr(OpenNetworks, "prepare", noted)
    return threads


def test_a_network_is_ready_before_its_device_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, in_time = threading.Event(), []

    def prepare(*arguments: Any) -> PreparedNetwork:
        try:
            return prepare_network(*arguments)
        finally:
            ready.set()

    class Slow(Creator):
        def onPrepare(self, index: int) -> None:
            in_time.append(ready.wait(LATE))

    monkeypatch.setattr(open_network, "prepare_network", prepare)
    graph = branching()
    with registered(Slow(), "slow"), weft.load(graph, "slow") as session:
        np.testing.assert_allclose(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0], rtol=1e-5)
    assert in_time == [True]


@pytest.mark.parametrize("precision", list(Precision))
def test_a_session_is_the_same_as_one_that_prepares_by_itself(precision: Precision, made: list[str]) -> None:
    graph = branching()
    with weft.load(graph, "cpu", precision=precision) as session, Runtime() as runtime:
        assert len(made) == 1
        choices = registry.choose("cpu")
        with Session(graph, choices, session.options, runtime=runtime) as alone:
            assert len(made) == 1
            prepared = str(alone.optimized)
            assert str(session.optimized) == prepared
            assert session.optimized.passes == alone.optimized.passes
            assert str(session.report) == str(alone.report)
            for ours, theirs in zip(session.run(feeds(graph)), alone.run(feeds(graph)), strict=True):
                np.testing.assert_array_equal(ours, theirs)
    assert str(weft.optimize(graph, "cpu", precision=precision)) == prepared
    assert len(made) == 2


def test_open_shapes_are_prepared_when_they_are_known(made: list[str]) -> None:
    graph = open_ended()
    with weft.load(graph, "cpu") as session:
        assert made == []
        for batch in (2, 3):
            x = np.full((batch, 3), -1, np.float32)
            np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0))
    with weft.load(graph, "cpu", shapes={"x": (4, 3)}) as session:
        assert len(made) == 1
        session.resize({"x": (5, 3)})
        assert session.inputs == {"x": (5, 3)}, "what was made ahead was of other shapes"
        assert session.run(np.ones((5, 3), np.float32))[0].shape == (5, 3)
    assert len(made) == 1


def test_errors_are_those_of_the_session(monkeypatch: pytest.MonkeyPatch, made: list[str]) -> None:
    graph = open_ended()
    with pytest.raises(InputError, match="there is no input 'z'"):
        weft.load(graph, "cpu", shapes={"z": (1, 3)})
    with pytest.raises(InputError, match="is not a dict of shapes"):
        weft.load(graph, "cpu", shapes=[(1, 3)])  # type: ignore[arg-type]
    broken = branching()
    broken.outputs.append("nowhere")
    with pytest.raises(ModelError, match="nothing makes the output 'nowhere'"):
        weft.load(broken, "cpu")
    assert made == []

    def fails(*_: object) -> PreparedNetwork:
        raise MemoryError("of the thread")

    monkeypatch.setattr(open_network, "prepare_network", fails)
    with weft.load(branching(), "cpu") as session:
        assert session.report, "there was enough when the session did it"


def test_an_error_of_a_rewrite_is_raised_where_the_network_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> PreparedNetwork:
        raise ModelError(f"in {threading.current_thread().name}")

    for module in ("placement.open_network", "placement.optimizer"):
        monkeypatch.setattr(f"weft.core.{module}.prepare_network", fails)
    for call in (weft.load, weft.optimize):
        with pytest.raises(ModelError, match="in MainThread"):
            call(branching(), "cpu")


def test_no_thread_stays_behind_where_there_is_no_device() -> None:
    with pytest.raises(NoDevice):
        weft.load(branching(), "nowhere")
    assert not [t for t in threading.enumerate() if t.name.startswith("weft-read")]


def test_it_is_taken_once_and_held_by_nobody_else() -> None:
    taken: list[weakref.ref[Any]] = []

    class Watched(Prefetch):
        def take(self) -> PreparedNetwork | None:
            network = super().take()
            assert network is not None
            taken.append(weakref.ref(network))
            assert super().take() is None
            return network

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.loading.Prefetch", Watched)
        progress: list[bool] = []

        def note(*_: int) -> None:
            gc.collect()
            progress.append(taken[0]() is None)

        with weft.load(branching(), "cpu", memory="limit", progress=note):
            assert progress and all(progress), "weights must go when the devices have them"


def test_a_graph_that_is_not_there_has_no_network() -> None:
    def missing() -> Graph:
        raise OSError

    with ThreadPoolExecutor(1) as thread:
        begun = Prefetch(thread, missing, None, Precision.HIGH, Limits())
        for ask in (begun.graph, begun.bound):
            with pytest.raises(OSError):
                ask()
        assert begun.take() is None


@pytest.mark.parametrize("call", [weft.load, weft.optimize])
def test_a_model_is_validated_and_bound_once(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def note(graph: Graph, *given: Any) -> Any:
            done.append(f"{name} {graph.name}")
            return step(graph, *given)

        return note

    for module in (prefetch, sessions):
        for name in ("validate", "bind"):
            monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    graph = open_ended()
    graph.name = "mine"
    made = call(graph, "cpu", shapes={"x": (2, 3)})
    assert done == ["validate mine", "bind mine"]
    if isinstance(made, weft.Session):
        with made:
            made.run(np.ones((2, 3), np.float32))
            assert len(done) == 2
            made.run(np.ones((4, 3), np.float32))
            assert done[2:] == ["bind mine"]
