"""A backend that decides in `onCreate` alone is asked again wherever shapes change (M4, A3)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.fakes import Creator, Inputs, Outputs, registered
from tests.helpers.nets import Net
from weft.core.contract.backend import Backend, Execution
from weft.core.graph.graph import Graph
from weft.core.graph.op import Op
from weft.core.host.host_backend import HostBackend
from weft.errors import BackendError, ExecutionError, UnsupportedOps

MOST = 4
"""Rows that Late takes."""


class Rows(Execution):
    """A ReLU of at most `MOST` rows, for the shape that it was made for; more it does not write."""

    closed = 0

    def __init__(self, inputs: Inputs, outputs: Outputs) -> None:
        self.made_for = outputs[0].shape

    def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
        (x,) = inputs
        assert x is not None and x.shape == self.made_for
        np.maximum(x.memory[:MOST], 0, out=outputs[0].memory[:MOST])

    def close(self) -> None:
        Rows.closed += 1


class Late(HostBackend):
    """Has no `why_not`: it refuses in `onCreate`."""

    asked: list[tuple[int, ...]] = []

    def onCreate(self, inputs: Inputs, outputs: Outputs, op: Op) -> Execution | None:
        self.asked.append(outputs[0].shape)
        takes = op.type == "Relu" and outputs[0].shape[0] <= MOST
        return Rows(inputs, outputs) if takes else None


@pytest.fixture(autouse=True)
def late() -> Iterator[None]:
    Late.asked, Rows.closed = [], 0
    with registered(Creator(Late), "late"):
        yield


def relu() -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.input("x", "N", 3), name="y"))


def right(session: weft.Session, rows: int) -> None:
    x = np.linspace(-1, 1, rows * 3, dtype=np.float32).reshape(rows, 3)
    np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0))


def device(rows: int) -> str:
    return "late:0" if rows <= MOST else "cpu:0"


@pytest.mark.parametrize("memory", ["normal", "limit"])
def test_M4_a_node_goes_on_when_its_shape_is_refused_and_comes_back(memory: str) -> None:
    with weft.load(relu(), ["late", "cpu"], memory=memory) as session:
        # More shapes than a session keeps networks of, and back to each.
        for rows in (2, 8, 3, 9, 4, 10, 2, 8, 1, 11, 4):
            right(session, rows)
            assert session.report.subgraphs == (device(rows),)
            reasons = session.report.refusals
            assert ("onCreate returned None" in str(reasons)) == (rows > MOST), reasons
    made = sum(shape[0] <= MOST for shape in Late.asked)
    assert Rows.closed == made, "each execution is closed, once"


def test_M4_each_change_of_shapes_asks_once_and_the_same_shapes_do_not() -> None:
    with weft.load(relu(), "late", shapes={"x": (2, 3)}) as session:
        for rows, times in ((2, 0), (3, 1), (3, 0), (2, 1)):
            Late.asked = []
            session.resize({"x": (rows, 3)})
            assert Late.asked == [(rows, 3)] * times


def test_M4_what_is_not_taken_any_more_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with weft.load(relu(), ["late", "cpu"], shapes={"x": (2, 3)}) as session, caplog.at_level(logging.WARNING):
        session.resize({"x": (8, 3)})
        session.resize({"x": (9, 3)})
    assert caplog.text.count("onCreate returned None") == 1


def test_M4_without_another_device_a_refused_resize_says_so_and_the_old_shape_runs_again() -> None:
    with weft.load(relu(), "late", fallback="error", shapes={"x": (2, 3)}) as session:
        for _ in range(2):
            with pytest.raises(UnsupportedOps, match="onCreate returned None") as caught:
                session.resize({"x": (8, 3)})
            assert "late:0" in str(caught.value)
            with pytest.raises(weft.WeftError, match="the last resize failed"):
                _ = session.optimized
            with pytest.raises(UnsupportedOps):
                session.run(np.zeros((8, 3), np.float32))
            right(session, 2)


def test_M4_a_hint_is_kept_or_the_node_goes_on() -> None:
    with weft.load(relu(), ["cpu", "late"], hints={"n_y": "late"}) as session:
        for rows in (2, 8, 2):
            right(session, rows)
            assert session.report.subgraphs == (device(rows),)
    with weft.load(relu(), ["cpu", "late"], hints={"n_y": "late"}, fallback="error") as session:
        right(session, 2)
        with pytest.raises(UnsupportedOps, match="late:0"):
            session.resize({"x": (8, 3)})


def test_M4_one_of_two_nodes_is_refused_and_only_it_moves() -> None:
    net = Net()
    x, z = net.input("x", "N", 3), net.input("z", 2, 3)
    graph = net.finish(net.add("Relu", x, name="a"), net.add("Relu", z, name="b"))
    with weft.load(graph, ["late", "cpu"], shapes={"x": (2, 3)}) as session:
        for rows in (8, 3, 8):
            session.resize({"x": (rows, 3)})
            assert session.report.placement == {"n_a": device(rows)[:-2], "n_b": "late"}


def test_M4_what_follows_in_the_same_part_is_run_by_the_device_that_takes_it() -> None:
    """Refused in the middle of a part, and in one that comes after a part that was resized already."""
    net = Net()
    x = net.input("x", "N", 3)
    a = net.add("Relu", x, name="a")
    b = net.add("Tanh", a, name="b")
    graph = net.finish(net.add("Relu", b, name="y"))
    with weft.load(graph, ["late", "cpu"]) as session:
        for rows in (2, 8, 2, 5, 1):
            x_ = np.linspace(-1, 1, rows * 3, dtype=np.float32).reshape(rows, 3)
            np.testing.assert_allclose(session.run(x_)[0], np.tanh(np.maximum(x_, 0)), rtol=1e-6)


def test_a_saved_network_whose_backend_changed_its_mind_says_what_to_do() -> None:
    network = weft.optimize(relu(), "cpu", shapes={"x": (8, 3)})
    with weft.Runtime() as runtime:
        id_ = runtime.load(network)
        with pytest.raises(weft.WeftError, match="8"):
            runtime.session(id_).resize({"x": (2, 3)})
        right(runtime.session(id_), 8)
        late = weft.optimize(relu(), "late", shapes={"x": (8, 3)})
        assert late.devices == ("late:0", "cpu:0")
        with pytest.raises(BackendError, match="onCreate returned None"):
            runtime.load(late)


class Anything(Rows):
    """Serves all shapes."""

    any_shape = True

    def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
        self.made_for = outputs[0].shape


def test_M3_an_execution_for_any_shape_is_kept_and_only_resized() -> None:
    made: list[Execution] = []

    def create(self: Backend, inputs: Inputs, outputs: Outputs, op: Op) -> Execution:
        made.append(Anything(inputs, outputs))
        return made[-1]

    kind: Any = type("Able", (HostBackend,), {"onCreate": create})
    with registered(Creator(kind), "able"), weft.load(relu(), "able", fallback="error") as session:
        for rows in (2, 3, 4):
            right(session, rows)
    assert len(made) == 1


def test_4_an_execution_that_fails_in_onResize_leaves_the_session_to_shapes_that_it_does() -> None:
    class Failing(Rows):
        def onResize(self, inputs: Inputs, outputs: Outputs) -> None:
            if outputs[0].shape[0] > MOST:
                raise RuntimeError("too many rows")

    kind: Any = type("Fails", (HostBackend,), {"onCreate": lambda self, i, o, op: Failing(i, o)})
    with registered(Creator(kind), "fails"), weft.load(relu(), "fails", fallback="error") as session:
        right(session, 2)
        with pytest.raises(ExecutionError, match="too many rows"):
            session.resize({"x": (8, 3)})
        right(session, 3)
        with pytest.raises(ExecutionError, match="too many rows"):
            session.run(np.zeros((8, 3), np.float32))
        right(session, 3)
    assert Rows.closed == 5


def test_M4_a_chosen_algorithm_belongs_to_the_shape_it_was_chosen_for() -> None:
    """As MNN's backends do: another class for another size."""

    class Few(Rows):
        """Must not get more rows."""

    class Many(Rows):
        def onExecute(self, inputs: Inputs, outputs: Outputs) -> None:
            assert inputs[0] is not None
            np.maximum(inputs[0].memory, 0, out=outputs[0].memory)

    def create(self: Backend, inputs: Inputs, outputs: Outputs, op: Op) -> Execution:
        return (Few if outputs[0].shape[0] <= MOST else Many)(inputs, outputs)

    kind: Any = type("Chooses", (HostBackend,), {"onCreate": create})
    with registered(Creator(kind), "chooses"), weft.load(relu(), "chooses", fallback="error") as session:
        for rows in (8, 2, 9, 3):
            right(session, rows)
