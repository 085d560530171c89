"""Contract row A11: a backend's memory manager acquires before the first run and releases at the unload."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Mock, Outputs, mock, registered
from tests.helpers.nets import chain, feeds
from weft.core.contract.backend import Backend, BackendInfo
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.op import Op
from weft.core.session.loader import close_forgotten
from weft.errors import ExecutionError

Calls = list[tuple[str, int]]


class Pool(weft.MemoryManager):
    """Notes what it is asked for; `fails` has the calls that raise."""

    def __init__(self, creator: WithMemory, number: int) -> None:
        self.creator, self.number = creator, number
        self.held = False

    def acquire(self) -> None:
        self._note("acquire")
        assert not self.held
        self.held = True

    def release(self) -> None:
        self._note("release")
        assert self.held
        self.held = False

    def _note(self, what: str) -> None:
        self.creator.calls.append((what, self.number))
        if what in self.creator.fails:
            raise OSError(f"{what} failed")


class WithMemory(Creator):
    """A creator with a memory manager for each network."""

    def __init__(self, made: type[Backend] = Mock) -> None:
        super().__init__(made)
        self.calls: Calls = []
        self.fails: set[str] = set()
        self.pools: list[Pool] = []

    def create_memory_manager(self, index: int) -> weft.MemoryManager:
        self.pools.append(Pool(self, len(self.pools)))
        return self.pools[-1]


@pytest.fixture
def acme() -> Iterator[WithMemory]:
    with registered(creator := WithMemory(mock("Relu", "Tanh")), "acme"):
        yield creator


def run(session: weft.Session, graph: Graph) -> None:
    np.testing.assert_array_equal(session.run(feeds(graph))[0], outputs(graph, feeds(graph))[0])


def test_A11_memory_is_acquired_before_the_first_run_and_released_at_the_unload(acme: WithMemory) -> None:
    graph = chain("Relu")
    session = weft.load(graph, "acme")
    assert acme.calls == [] and len(acme.pools) == 1
    for _ in range(3):
        run(session, graph)
        assert acme.calls == [("acquire", 0)]
    session.close()
    session.close()
    assert acme.calls == [("acquire", 0), ("release", 0)]


def test_A11_it_is_acquired_before_anything_is_executed() -> None:
    held: list[bool] = []

    class Looking(mock()):  # type: ignore[misc]
        def onExecuteBegin(self) -> None:
            manager = self.info.memory_manager
            assert isinstance(manager, Pool)
            held.append(manager.held)

    with registered(WithMemory(Looking), "acme"), weft.load(chain("Relu"), "acme") as session:
        run(session, chain("Relu"))
    assert held == [True]


def test_A11_nothing_is_freed_between_runs_of_two_networks(acme: WithMemory) -> None:
    graphs = [chain("Relu"), chain("Tanh")]
    with weft.Runtime() as runtime:
        ids = [runtime.load(weft.optimize(g, "acme")) for g in graphs]
        assert acme.calls == []
        for k in (0, 1, 0, 1, 1, 0):
            assert np.array_equal(runtime.run(ids[k], feeds(graphs[k]))[0], outputs(graphs[k], feeds(graphs[k]))[0])
        assert acme.calls == [("acquire", 0), ("acquire", 1)]
        runtime.unload(ids[0])
        assert acme.calls[2:] == [("release", 0)]
        runtime.run(ids[1], feeds(graphs[1]))
    assert acme.calls[3:] == [("release", 1)]


def test_A11_what_was_never_run_is_never_acquired_nor_released(acme: WithMemory) -> None:
    weft.load(chain("Relu"), "acme").close()
    assert acme.calls == [] and len(acme.pools) == 1


def test_A11_all_parts_of_a_network_find_one_manager_in_their_info(acme: WithMemory) -> None:
    graph = chain("Relu", "Exp", "Tanh")
    with weft.load(graph, "acme") as session:
        run(session, graph)
        managers = [p.backend.info.memory_manager for p in session.pipelines]
    assert managers == [acme.pools[0], None, acme.pools[0]] and len(acme.pools) == 1
    assert acme.calls == [("acquire", 0), ("release", 0)]


def test_A11_a_device_that_runs_nothing_acquires_nothing(acme: WithMemory) -> None:
    graph = chain("Exp")
    with weft.load(graph, "acme") as session:
        assert session.report.nodes_by_device == {"cpu": 1}
        run(session, graph)
    assert acme.calls == []


def test_A11_a_resize_keeps_the_memory_and_a_device_that_joins_acquires_then() -> None:
    class Small(Mock):
        views: list[list[str]] = []

        def why_not(self, inputs: Inputs, outputs: Outputs, op: Op) -> str | None:
            return "at most two rows" if outputs[0].shape[0] > 2 else None

    graph = chain("Relu", n="N")
    with registered(creator := WithMemory(Small), "acme"):
        with weft.load(graph, "acme") as session:
            for rows, calls in ((3, 0), (2, 1), (4, 1), (1, 1)):
                x = np.full((rows, 3), -1, np.float32)
                np.testing.assert_array_equal(session.run(x)[0], 0 * x)
                assert creator.calls == [("acquire", 0)] * calls
        assert creator.calls == [("acquire", 0), ("release", 0)]


def test_A11_a_resize_that_fails_keeps_the_memory_for_the_next_one() -> None:
    class Brittle(mock("Relu")):  # type: ignore[misc]
        broken = False

        def onResizeBegin(self) -> None:
            if self.broken:
                raise OSError("not now")
            super().onResizeBegin()

    graph = chain("Relu", n="N")
    x = np.full((2, 3), -1, np.float32)
    with registered(creator := WithMemory(Brittle), "acme"):
        with weft.load(graph, "acme", shapes={"x": (2, 3)}) as session:
            np.testing.assert_array_equal(session.run(x)[0], 0 * x)
            Brittle.broken = True
            with pytest.raises(ExecutionError, match="not now"):
                session.resize({"x": (4, 3)})
            assert creator.calls == [("acquire", 0)], "the network is loaded still"
            Brittle.broken = False
            np.testing.assert_array_equal(session.run(x)[0], 0 * x)
            (pipeline,) = session.pipelines
            assert pipeline.backend.info.memory_manager is creator.pools[0]
            assert creator.calls == [("acquire", 0)] and len(creator.pools) == 1
        assert creator.calls == [("acquire", 0), ("release", 0)]


def test_A11_networks_that_nobody_closed_release_later(acme: WithMemory) -> None:
    session = weft.load(chain("Relu"), "acme")
    run(session, chain("Relu"))
    del session
    gc.collect()
    assert acme.calls == [("acquire", 0)]
    close_forgotten()
    assert acme.calls == [("acquire", 0), ("release", 0)]


def test_A11_memory_that_cannot_be_had_is_an_error_that_names_the_device(acme: WithMemory) -> None:
    graph = chain("Relu")
    acme.fails = {"acquire"}
    with weft.load(graph, "acme") as session:
        for _ in range(2):
            with pytest.raises(ExecutionError, match=r"memory manager[\s\S]*acme:0[\s\S]*acquire failed"):
                session.run(feeds(graph))
        acme.fails = set()
        run(session, graph)
    assert acme.calls == [("acquire", 0)] * 3 + [("release", 0)]


def test_A11_what_one_manager_cannot_release_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    one, two = WithMemory(mock("Relu")), WithMemory(mock())
    graph = chain("Relu", "Tanh")
    with registered(one, "one"), registered(two, "two"), caplog.at_level(logging.WARNING, "weft.session"):
        with weft.load(graph, ["one", "two"]) as session:
            run(session, graph)
            one.fails = {"release"}
            caplog.clear()
        assert (one.calls[-1][0], two.calls[-1][0]) == ("release", "release")
    assert "one:0" in caplog.text and "release failed" in caplog.text


def test_A11_optimising_creates_no_manager(acme: WithMemory) -> None:
    weft.optimize(chain("Relu"), "acme")
    assert acme.pools == []


def test_A11_backends_without_a_manager_find_none() -> None:
    seen: list[object] = []

    class Looking(mock()):  # type: ignore[misc]
        def __init__(self, info: BackendInfo) -> None:
            seen.append(info.memory_manager)
            super().__init__(info)

    with registered(Creator(Looking), "acme"), weft.load(chain("Relu"), "acme") as session:
        run(session, chain("Relu"))
    assert seen == [None]
