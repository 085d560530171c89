"""Contract row A8: what a part reads is waited for, be it copied or imported."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Inputs, Outputs, mock, mocks
from tests.helpers.nets import Net, feeds
from tests.helpers.waits import ended, soon
from weft.core.contract.backend import BackendInfo, Execution
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.core.graph.op import Op


class Threaded(mock()):  # type: ignore[misc]
    """Computes in a thread, once the test has set `gate`, and lends its memory to whoever imports it."""

    gate = threading.Event()
    asked = threading.Event()
    """Set where a run waits for a device, or reads what the device makes."""
    calls: list[str] = []

    def __init__(self, info: BackendInfo) -> None:
        super().__init__(info)
        self.work: list[Callable[[], None]] = []
        self.thread: threading.Thread | None = None

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        inner = super().onCreate(inputs, outputs, op)
        return Deferred(inner, self.work) if inner else None

    def onExecuteBegin(self) -> None:
        self.work.clear()

    def onExecuteEnd(self) -> None:
        work, gate = self.work[:], self.gate

        def compute() -> None:
            soon(gate)
            for each in work:
                each()

        self.thread = threading.Thread(target=compute, daemon=True)
        self.thread.start()

    def onWaitFinish(self) -> bool:
        self.calls.append(f"wait for {self.info.id}")
        self.asked.set()
        if self.thread is not None:
            ended(self.thread)
        return True


class Deferred(Execution):
    """Leaves what is to be computed in a list."""

    def __init__(self, inner: Execution, work: list[Callable[[], None]]) -> None:
        self.inner, self.work = inner, work

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.inner.onResize(inputs, outputs)

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        self.work.append(lambda: self.inner.onExecute(inputs, outputs))


class Importing(mock("Sub", imports=True)):  # type: ignore[misc]
    """Reads the memory of others where it is, at once."""

    def onExecuteBegin(self) -> None:
        Threaded.calls.append("read")
        Threaded.asked.set()


def test_A8_memory_that_is_imported_is_read_when_all_who_make_it_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices that compute in threads, and a third that uses the memory of both."""
    net = Net()
    x = net.input("x", 2, 3)
    graph = net.finish(net.add("Sub", net.add("Tanh", x, name="a"), net.add("Exp", x, name="b"), name="y"))
    made = {
        "first": type("First", (Threaded,), {"takes": frozenset({"Tanh"})}),
        "second": type("Second", (Threaded,), {"takes": frozenset({"Exp"})}),
        "reader": Importing,
    }
    with mocks(**made) as ids, weft.load(graph, ids) as session:
        assert session.report.subgraphs == ("first:0", "second:0", "reader:0") and session.report.copies == ()
        for seed in range(2):
            monkeypatch.setattr(Threaded, "gate", threading.Event())
            monkeypatch.setattr(Threaded, "asked", threading.Event())
            monkeypatch.setattr(Threaded, "calls", [])
            fed = feeds(graph, seed)
            got: list[Array] = []
            running = threading.Thread(target=lambda f, g: g.extend(session.run(f)), args=(fed, got), daemon=True)
            running.start()
            assert Threaded.asked.wait(60)
            Threaded.gate.set()
            running.join(60)
            assert sorted(Threaded.calls[:2]) == ["wait for first", "wait for second"]
            assert Threaded.calls[2:] == ["read"]
            np.testing.assert_array_equal(got[0], outputs(graph, fed)[0])
