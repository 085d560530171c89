"""After a run that failed there is nothing to wait for, and the next run is right (M12, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import AsynchronousBackend, Creator, Inputs, Outputs, registered
from tests.helpers.nets import Net
from weft.core.graph.graph import Graph
from weft.core.graph.tensor import Tensor
from weft.errors import ExecutionError, InputError

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


class Hot(AsynchronousBackend):
    """Fails on the device for as long as it is hot."""

    fails: dict[str, Exception] = {}


class Stopped(BaseException):
    """What a signal's handler raises."""


@pytest.fixture(autouse=True)
def hot() -> Iterator[None]:
    Hot.fails = {}
    with registered(Creator(Hot), "hot"):
        yield


def network(rows: int | str = 2) -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.input("x", rows, 3), name="y"))


def nothing_to_wait_for(session: weft.Session) -> None:
    with pytest.raises(InputError, match="no run to wait for"):
        session.wait()


def usable(session: weft.Session, x: np.ndarray = X) -> None:
    """A run, and a submit, are right; then there is nothing to wait for again."""
    np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0))
    nothing_to_wait_for(session)
    session.submit(x)
    np.testing.assert_array_equal(session.wait()[0], np.maximum(x, 0))
    nothing_to_wait_for(session)


@pytest.mark.parametrize("start", ["run", "submit"])
def test_M12_a_run_that_failed_on_the_device_has_no_outputs(start: str) -> None:
    with weft.load(network(), "hot", fallback="error") as session:
        usable(session)
        Hot.fails = {"Relu": RuntimeError("over-temperature")}
        with pytest.raises(ExecutionError, match="over-temperature"):
            if start == "run":
                session.run(X)
            session.submit(X)
            session.wait()
        nothing_to_wait_for(session)
        Hot.fails = {}
        nothing_to_wait_for(session)
        usable(session)


def test_M12_what_was_submitted_is_lost_by_a_failed_run_after_it() -> None:
    with weft.load(network(), "hot", fallback="error") as session:
        session.submit(X)
        session.pipelines[0].wait()
        Hot.fails = {"Relu": RuntimeError("over-temperature")}
        with pytest.raises(ExecutionError, match="over-temperature"):
            session.run(X)
        nothing_to_wait_for(session)


WHERE = [(c, s) for c in ("onExecuteBegin", "onExecuteEnd", "onWaitFinish", "onCopyBuffer") for s in ("run", "submit")]


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stopped])
@pytest.mark.parametrize(("callback", "doing"), [*WHERE, ("onWaitFinish", "wait"), ("onCopyBuffer", "wait")])
def test_an_interrupted_run_has_no_outputs_and_the_next_is_right(
    callback: str, doing: str, error: type[BaseException]
) -> None:
    armed = False

    def interrupted(self: Any, *arguments: Any) -> Any:
        nonlocal armed
        if armed:
            armed = False
            raise error
        return getattr(AsynchronousBackend, callback)(self, *arguments)

    made: Any = type("Interrupted", (AsynchronousBackend,), {callback: interrupted})
    with registered(Creator(made), "cut"), weft.load(network(), "cut", fallback="error") as session:
        usable(session)
        if doing == "wait":
            session.submit(X)
        armed = True
        with pytest.raises(error):
            session.wait() if doing == "wait" else getattr(session, doing)(X)
        nothing_to_wait_for(session)
        usable(session, -X)


def test_4_a_failed_copy_of_an_output_ends_the_run() -> None:
    armed = False

    def copy(self: Any, src: Tensor, dst: Tensor) -> None:
        if armed and dst.backend is None:
            raise RuntimeError("the bus is broken")
        AsynchronousBackend.onCopyBuffer(self, src, dst)

    made: Any = type("Cut", (AsynchronousBackend,), {"onCopyBuffer": copy})
    with registered(Creator(made), "cut"), weft.load(network(), "cut", fallback="error") as session:
        session.submit(X)
        armed = True
        with pytest.raises(ExecutionError, match="the bus is broken"):
            session.wait()
        armed = False
        nothing_to_wait_for(session)
        usable(session)


def test_4_a_debug_callback_that_raises_ends_the_run() -> None:
    broken = False

    def sink(_: object) -> None:
        if broken:
            raise ValueError("the sink is full")

    with weft.load(network(), "cpu", debug=sink) as session:
        for start in (lambda: session.run(X), lambda: session.submit(X)):
            broken = True
            with pytest.raises(ValueError, match="the sink is full"):
                start()
            broken = False
            nothing_to_wait_for(session)
            usable(session)


def test_4_after_a_resize_that_failed_there_is_nothing_to_wait_for() -> None:
    armed = False

    def begin(self: Any) -> None:
        if armed:
            raise RuntimeError("no room")
        AsynchronousBackend.onResizeBegin(self)

    made: Any = type("Full", (AsynchronousBackend,), {"onResizeBegin": begin})
    with registered(Creator(made), "full"), weft.load(network("N"), "full", shapes={"x": (2, 3)}) as session:
        session.submit(X)
        armed = True
        with pytest.raises(ExecutionError, match="no room"):
            session.resize({"x": (3, 3)})
        armed = False
        nothing_to_wait_for(session)
        usable(session)


REFUSED: dict[str, Callable[[weft.Session], object]] = {
    "a shape of another rank": lambda s: s.resize({"x": (3, 3, 3)}),
    "outputs that do not fit": lambda s: s.wait(outputs=[np.zeros(1)]),
    "inputs that do not fit": lambda s: s.submit(np.zeros((2, 4), np.float32)),
    "outputs of a run that do not fit": lambda s: s.run(X, outputs=[np.zeros(1)]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_before_it_begins_leaves_the_run_that_was_submitted(what: str) -> None:
    with weft.load(network("N"), "hot", fallback="error", shapes={"x": (2, 3)}) as session:
        session.submit(X)
        with pytest.raises(weft.WeftError):
            REFUSED[what](session)
        np.testing.assert_array_equal(session.wait()[0], np.maximum(X, 0))


class Broken(AsynchronousBackend):
    """Does not begin a run while it is armed."""

    armed = False

    def onExecuteBegin(self) -> None:
        super().onExecuteBegin()
        if self.armed:
            raise RuntimeError("it does not begin")


class Tangents(Broken):
    """Takes Tanh alone."""

    def why_not(self, inputs: Inputs, outputs: Outputs, op: weft.Op) -> str | None:
        return None if op.type == "Tanh" else "tangents alone"


@pytest.mark.parametrize("start", ["run", "submit"])
def test_when_a_part_does_not_begin_what_was_begun_before_it_is_waited_for(start: str) -> None:
    """Its inputs are the program's again then, and what comes next meets nothing that is still at work."""
    net = Net()
    x = net.input("x", 2, 3)
    graph = net.finish(net.add("Relu", x, name="a"), net.add("Tanh", x, name="b"))
    tangents, broken = registered(Creator(Tangents), "tangents"), registered(Creator(Broken), "broken")
    with tangents, broken, weft.load(graph, ["tangents", "broken"], fallback="cpu") as session:
        first, second = (pipeline.backend for pipeline in session.pipelines)
        assert isinstance(first, Broken) and isinstance(second, Broken)
        second.armed = True
        with pytest.raises(ExecutionError, match="it does not begin"):
            getattr(session, start)(X)
        assert first.finished == 1 and first.queue == []
        nothing_to_wait_for(session)
        second.armed = False
        a, b = session.run(X)
        np.testing.assert_array_equal(a, np.maximum(X, 0))
        np.testing.assert_allclose(b, np.tanh(X), rtol=1e-6)


def test_the_second_part_that_fails_does_not_spoil_the_next_run(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    x = net.input("x", 2, 3)
    graph = net.finish(net.add("Relu", x, name="a"), net.add("Tanh", x, name="b"))

    class Other(AsynchronousBackend):
        fails = {"Tanh": RuntimeError("the second is hot")}

        def why_not(self, inputs: Inputs, outputs: Outputs, op: weft.Op) -> str | None:
            return None if op.type == "Tanh" else "tangents alone"

    Hot.fails = {"Relu": RuntimeError("the first is hot")}
    with registered(Creator(Other), "other"), weft.load(graph, ["other", "hot"], fallback="cpu") as session:
        with pytest.raises(ExecutionError, match="is hot"):
            session.run(X)
        assert "failed as well" in caplog.text
        Hot.fails = Other.fails = {}
        a, b = session.run(X)
        np.testing.assert_array_equal(a, np.maximum(X, 0))
        np.testing.assert_allclose(b, np.tanh(X), rtol=1e-6)
