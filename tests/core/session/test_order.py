"""Contract rows M11 and M12: the exact order of callbacks, and devices that finish later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import pytest

import weft
from tests.helpers.fakes import AsynchronousBackend, Call, Creator, Outputs, RecordingBackend, registered
from tests.helpers.nets import Net, branching, feeds
from tests.helpers.null_gpu import null_gpu
from weft.core.contract.lowered import Lowered
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.graph.tensor import Tensor
from weft.errors import ClosedError, DeviceLost, ExecutionError, WeftError

# -- M11 -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def acme() -> Iterator[None]:
    RecordingBackend.log = []
    with registered(Creator(RecordingBackend)):
        yield


def said() -> list[Call]:
    """Return what was called since the last time."""
    log, RecordingBackend.log = RecordingBackend.log, []
    return log


def diamond() -> Graph:
    """Return a branch without constants: x -> a -> (b, c) -> d -> y, with x read again at the end."""
    net = Net()
    x = net.input("x", "N", 3)
    a = net.add("Relu", x, name="a")
    b = net.add("Exp", a, name="b")
    c = net.add("Tanh", a, name="c")
    d = net.add("Add", b, c, name="d")
    return net.finish(net.add("Mul", d, x, name="y"))


NODES = ("a", "b", "c", "d", "y")
RESIZE = [
    ("onResizeBegin",),
    ("onAcquireBuffer", "x", "DYNAMIC_SEPERATE"),
    ("onAcquireBuffer", "a", "DYNAMIC"),
    ("onResize", "a"),
    ("onAcquireBuffer", "b", "DYNAMIC"),
    ("onResize", "b"),
    ("onAcquireBuffer", "c", "DYNAMIC"),
    ("onResize", "c"),
    ("onReleaseBuffer", "a", "DYNAMIC"),
    ("onAcquireBuffer", "d", "DYNAMIC"),
    ("onResize", "d"),
    ("onReleaseBuffer", "b", "DYNAMIC"),
    ("onReleaseBuffer", "c", "DYNAMIC"),
    ("onAcquireBuffer", "y", "DYNAMIC"),
    ("onResize", "y"),
    ("onReleaseBuffer", "d", "DYNAMIC"),
    ("onReleaseBuffer", "x", "DYNAMIC_SEPERATE"),
    ("onAllocateBuffer",),
    ("onResizeEnd",),
]
RUN = [
    ("onExecuteBegin",),
    *(("onExecute", name) for name in NODES),
    ("onExecuteEnd",),
    ("onWaitFinish",),
]


CREATE = [("onCreate", name) for name in NODES]
AGAIN = [("onClearBuffer",), *(("Execution.close", name) for name in NODES), *CREATE, *RESIZE]
"""Another shape: the backend is asked again for executions."""


def test_M11_the_whole_sequence_of_a_session_and_nothing_else() -> None:
    with weft.load(diamond(), device="acme", fallback="error", shapes={"x": (1, 3)}) as session:
        assert said() == [("construct",), *CREATE, *RESIZE]
        session.run(np.ones((1, 3), np.float32))
        assert said() == RUN
        session.run(np.ones((1, 3), np.float32))
        assert said() == RUN
        session.resize({"x": (4, 3)})
        assert said() == AGAIN
        session.resize({"x": (4, 3)})
        assert said() == [], "the shapes are the same"
        session.run(np.ones((4, 3), np.float32))
        assert said() == RUN
        session.run(np.ones((2, 3), np.float32))
        assert said() == [*AGAIN, *RUN]
    assert said() == [*(("Execution.close", name) for name in NODES), ("onClearBuffer",), ("close",)]


def test_M11_a_second_close_calls_nothing() -> None:
    session = weft.load(diamond(), device="acme", shapes={"x": (1, 3)})
    session.close()
    said()
    session.close()
    assert said() == []


def test_M11_with_fallback_the_order_on_the_first_device_is_the_same() -> None:
    with weft.load(diamond(), device="acme", shapes={"x": (1, 3)}):
        assert said() == [("construct",), *CREATE, *RESIZE]


def test_M11_constants_are_placed_once_before_the_resize_and_released_at_the_end() -> None:
    net = Net()
    graph = net.finish(net.add("Add", net.input("x", "N", 3), np.ones(3, np.float32), name="y"))
    session = weft.load(graph, device="acme", shapes={"x": (1, 3)})
    log = said()
    assert log[:4] == [
        ("construct",),
        ("onAcquireBuffer", "c", "STATIC"),
        ("onCopyBuffer", "c"),
        ("onCreate", "y"),
    ]
    session.resize({"x": (2, 3)})
    assert not any("c" in call for call in said()), "a resize leaves constants"
    session.close()
    assert said() == [("Execution.close", "y"), ("onReleaseBuffer", "c", "STATIC"), ("onClearBuffer",), ("close",)]


def test_M11_an_output_is_acquired_before_the_inputs_of_its_op_are_released() -> None:
    with weft.load(branching(), device="acme", fallback="error") as session:
        session.run(feeds(branching()))
        log = said()
    born = {c[1]: k for k, c in enumerate(log) if c[0] == "onAcquireBuffer"}
    resized = {c[1]: k for k, c in enumerate(log) if c[0] == "onResize"}
    died = {c[1]: k for k, c in enumerate(log) if c[0] == "onReleaseBuffer"}
    graph = branching()
    for node in graph.nodes:
        (out,) = node.outputs
        assert born[out] < resized[out]
        for i in node.inputs:
            if i not in graph.constants:
                assert resized[out] < died[i]
    assert "y" not in died


def test_M11_outputs_that_nobody_reads_are_released_at_once() -> None:
    net = Net()
    x = net.input("x", 2, 4)
    parts = net.add("Split", x, name="p", axis=1, num_outputs=2, outputs=2)
    assert parts == "p"
    graph = net.finish(net.add("Relu", "p.1", name="y"))
    with weft.load(graph, device="acme"):
        log = said()
    assert log.index(("onReleaseBuffer", "p", "DYNAMIC")) < log.index(("onAcquireBuffer", "y", "DYNAMIC"))


# -- M11, with a memory plan that may be kept -----------------------------------------------------------


class Keeping(RecordingBackend):
    """Keeps its memory plan where it has room, as the CPU, unless it is told not to; its executions serve one shape."""

    room = True

    @property
    def reads_late(self) -> bool:
        return True

    def refit(self, tensors: Sequence[Tensor]) -> bool:
        self.note("refit", *(t.name for t in tensors))
        return self.room and super().refit(tensors)


ANEW = [*(("Execution.close", name) for name in NODES), *CREATE]
CHANGED = ("refit", "x", *NODES)


def test_M11_a_kept_plan_calls_for_no_memory() -> None:
    with registered(Creator(Keeping), "keeping"), weft.load(
        diamond(), device="keeping", fallback="error", shapes={"x": (4, 3)}
    ) as session:
        assert said() == [("construct",), *CREATE, *RESIZE]
        session.resize({"x": (5, 3)})
        assert said() == [*ANEW, CHANGED, *(("onResize", name) for name in NODES)]
        session.resize({"x": (5, 3)})
        assert said() == []
        session.run(np.ones((5, 3), np.float32))
        assert said() == RUN


def test_M11_a_backend_that_needs_a_new_plan_is_cleared_after_it_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeping, "room", False)
    with registered(Creator(Keeping), "keeping"), weft.load(
        diamond(), device="keeping", fallback="error", shapes={"x": (4, 3)}
    ) as session:
        said()
        session.resize({"x": (5, 3)})
        assert said() == [*ANEW, CHANGED, ("onClearBuffer",), *RESIZE]
        session.run(np.ones((5, 3), np.float32))
        assert said() == RUN


@pytest.mark.parametrize("room", [True, False])
def test_M11_constants_and_executions_are_new_before_a_plan_is_kept(
    room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keeping, "room", room)
    net = Net()
    x = net.input("x", "N", 3)
    size = net.add("Cast", net.add("Shape", x, start=0, end=1), to=weft.DType.FLOAT32, name="size")
    graph = net.finish(net.add("Mul", x, size, name="y"))  # the size is a constant, another for each shape
    with registered(Creator(Keeping), "keeping"), weft.load(
        graph, device="keeping", fallback="error", shapes={"x": (4, 3)}
    ) as session:
        said()
        session.resize({"x": (5, 3)})
        log = said()
    assert log[:7] == [
        ("onAcquireBuffer", "size", "STATIC"),
        ("onCopyBuffer", "size"),
        ("onReleaseBuffer", "size", "STATIC"),
        ("Execution.close", "y"),
        ("onCreate", "y"),
        ("refit", "x", "y"),
        ("onResize", "y") if room else ("onClearBuffer",),
    ]
    assert len(log) == 7 if room else log[7] == ("onResizeBegin",)


def test_M11_no_plan_is_kept_of_a_lowered_part() -> None:
    class Lowers(Keeping):
        def lower(self, graph: Graph) -> Lowered:
            return Lowered(graph)

    with registered(Creator(Lowers), "keeping"), weft.load(
        diamond(), device="keeping", fallback="error", shapes={"x": (4, 3)}
    ) as session:
        said()
        session.resize({"x": (5, 3)})
        assert said() == AGAIN


def test_M11_no_plan_is_kept_where_memory_is_limited() -> None:
    with registered(Creator(Keeping), "keeping"), weft.load(
        diamond(), device="keeping", memory="limit", shapes={"x": (4, 3)}
    ) as session:
        said()
        session.resize({"x": (5, 3)})
        log = said()
    assert log[0] == ("onClearBuffer",) and CHANGED not in log


def test_M11_no_plan_is_kept_with_inputs_in_the_memory_of_others() -> None:
    class Begins(Keeping):
        log: list[Call] = []

        def why_not(self, inputs: object, outputs: Outputs, op: object) -> str | None:
            return None if outputs[0].name == "a" else "only the first node is here"

    with registered(Creator(Begins), "begins"), registered(Creator(Keeping), "keeping"), weft.load(
        diamond(), device=["begins", "keeping"], shapes={"x": (4, 3)}
    ) as session:
        assert session.report.nodes_by_device == {"begins": 1, "keeping": 4}
        said()
        session.resize({"x": (5, 3)})
        log = said()
        (y,) = session.run(np.ones((5, 3), np.float32))
    assert log[0] == ("onClearBuffer",) and "refit" not in {call[0] for call in log}
    assert ("refit", "x", "a") in Begins.log
    np.testing.assert_allclose(y, outputs(diamond(), {"x": np.ones((5, 3), np.float32)})[0], rtol=1e-6)


# -- M12 -----------------------------------------------------------------------------------------------


@pytest.fixture
def later() -> Iterator[Creator]:
    AsynchronousBackend.fails = {}
    creator = Creator(AsynchronousBackend)
    with registered(creator, "later"):
        yield creator
    AsynchronousBackend.fails = {}


X = np.array([[1.0, -2.0, 0.5]], np.float32)


def load(device: object = "later") -> weft.Session:
    return weft.load(diamond(), device=device, fallback="error", shapes={"x": (1, 3)})  # type: ignore[arg-type]


def test_M12_submit_returns_before_the_device_is_done(later: Creator) -> None:
    with load() as session:
        backend = later.backends[-1]
        assert isinstance(backend, AsynchronousBackend)
        session.submit(X)
        assert backend.finished == 0 and backend.queue
        (y,) = session.wait()
        assert backend.finished == 1
    np.testing.assert_allclose(y, outputs(diamond(), {"x": X})[0], rtol=1e-6)


def test_M12_reading_a_result_waits(later: Creator) -> None:
    with load() as session:
        (y,) = session.run(X)
        np.testing.assert_allclose(y, outputs(diamond(), {"x": X})[0], rtol=1e-6)


def test_M12_a_second_submit_waits_for_the_first(later: Creator) -> None:
    with load() as session:
        session.submit(2 * X)
        session.submit(X)
        assert later.backends[-1].finished == 1  # type: ignore[attr-defined]
        np.testing.assert_allclose(session.wait()[0], outputs(diamond(), {"x": X})[0], rtol=1e-6)


@pytest.mark.parametrize("error", [RuntimeError("the bus is down"), DeviceLost("the device is gone")])
def test_M12_an_error_of_the_device_surfaces_in_wait_and_names_the_op(later: Creator, error: Exception) -> None:
    with load() as session:
        AsynchronousBackend.fails = {"Tanh": error}
        session.submit(X)
        with pytest.raises(WeftError, match=r"node 'n_c' \(Tanh\)") as caught:
            session.wait()
        assert isinstance(caught.value, DeviceLost if isinstance(error, DeviceLost) else ExecutionError)
        assert "later:0" in caught.value.where
        AsynchronousBackend.fails = {}
        np.testing.assert_allclose(session.run(X)[0], outputs(diamond(), {"x": X})[0], rtol=1e-6)


def test_M12_an_error_surfaces_at_the_next_run_at_the_latest(later: Creator) -> None:
    with load() as session:
        AsynchronousBackend.fails = {"Exp": ValueError("no")}
        session.submit(X)
        with pytest.raises(ExecutionError, match=r"n_b.*ValueError: no|ValueError: no"):
            session.submit(X)
        AsynchronousBackend.fails = {}
        session.run(X)


def test_M12_an_error_in_flight_does_not_stop_a_close() -> None:
    class Closes(AsynchronousBackend):
        log: ClassVar[list[str]] = []

        def onClearBuffer(self) -> bool:
            self.log.append("onClearBuffer")
            return super().onClearBuffer()

        def close(self) -> None:
            self.log.append("close")

    with registered(Creator(Closes), "closes"):
        session = load("closes")
        AsynchronousBackend.fails = {"Add": RuntimeError("gone")}
        session.submit(X)
        session.close()
        AsynchronousBackend.fails = {}
        assert Closes.log == ["onClearBuffer", "close"], "all is freed, once"
        with pytest.raises(ClosedError):
            session.wait()
        with load("closes") as other:
            np.testing.assert_allclose(other.run(X)[0], outputs(diamond(), {"x": X})[0], rtol=1e-6)


def test_M12_values_for_the_next_device_are_waited_for(later: Creator) -> None:
    class Halves(AsynchronousBackend):
        def why_not(self, inputs: object, outputs: object, op: object) -> str | None:
            return None if getattr(op, "type", "") in ("Relu", "Add") else "only Relu and Add are here"

    with registered(Creator(Halves), "halves"), weft.load(
        diamond(), device=["halves", "later"], shapes={"x": (1, 3)}
    ) as session:
        assert session.report.nodes_by_device == {"halves": 2, "later": 3}
        assert str(session.report.copies[0]) == "copy halves:0 -> later:0: a, 12 bytes"
        for k in range(3):
            (y,) = session.run(k * X)
            np.testing.assert_allclose(y, outputs(diamond(), {"x": k * X})[0], rtol=1e-6)


def test_M12_onWaitFinish_may_also_say_False(later: Creator) -> None:
    class Quits(AsynchronousBackend):
        def onWaitFinish(self) -> bool:
            return False

    with registered(Creator(Quits), "quits"), load("quits") as session, pytest.raises(
        ExecutionError, match=r"n_a.*onWaitFinish returned False|could not finish"
    ):
        session.run(X)


def test_M12_a_lost_gpu_is_named_with_its_work_and_the_session_can_be_closed() -> None:
    with null_gpu() as device:
        session = weft.load(branching(), device="null", fallback="error")
        device.lost = DeviceLost("the device stopped answering", why="VK_ERROR_DEVICE_LOST")
        with pytest.raises(DeviceLost, match=r"node 'n_stem' \(Conv\)|null:0, which ran"):
            session.run(feeds(branching()))
        with pytest.raises(DeviceLost):
            session.run(feeds(branching()))
        session.close()
        assert (device.stats.live_buffers, device.stats.live_recordings) == (0, 0)


def test_M12_a_lost_gpu_gives_its_memory_back_even_when_lost_in_flight() -> None:
    with null_gpu() as device:
        session = weft.load(branching(), device="null", fallback="error")
        session.submit(feeds(branching()))
        device.lost = DeviceLost("the device stopped answering")
        session.close()
        assert (device.stats.live_buffers, device.stats.live_recordings) == (0, 0)
