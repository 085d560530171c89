"""What a session does with dimensions that are open, or change."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.core.graph.graph import Graph
from weft.errors import InputError

DEVICES = ("cpu", "opencl", "vulkan")


def symbolic() -> Graph:
    net = Net()
    a, b = net.input("a", "N", 3), net.input("b", "N", "M")
    return net.finish(net.add("Concat", a, b, name="y", axis=1))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def assert_joined(session: weft.Session, n: int, m: int) -> None:
    a, b = np.full((n, 3), 2, np.float32), np.full((n, m), 5, np.float32)
    np.testing.assert_array_equal(session.run(a, b)[0], np.concatenate([a, b], 1))
    assert session.inputs == {"a": (n, 3), "b": (n, m)}


def test_F1_symbolic_dimensions_are_bound_by_the_first_run(device: str) -> None:
    with weft.load(symbolic(), device=device) as session:
        assert session.inputs == {"a": ("N", 3), "b": ("N", "M")}
        assert_joined(session, 2, 4)


def test_F1_symbolic_dimensions_are_bound_when_loading(device: str) -> None:
    with weft.load(symbolic(), device=device, shapes={"a": (2, 3), "b": (2, 5)}) as session:
        assert session.report.nodes_by_device
        assert_joined(session, 2, 5)
    with weft.load(symbolic(), device=device, shapes={"a": (2, 3)}) as session:
        assert session.inputs == {"a": (2, 3), "b": (2, "M")}
        assert_joined(session, 2, 1)


def test_F1_other_shapes_resize_the_session(device: str) -> None:
    with weft.load(symbolic(), device=device) as session:
        for n, m in ((1, 1), (3, 2), (1, 1), (2, 4)):
            assert_joined(session, n, m)


def test_F1_resize_keeps_what_is_not_named_and_follows_shared_symbols(device: str) -> None:
    with weft.load(symbolic(), device=device, shapes={"a": (2, 3), "b": (2, 4)}) as session:
        session.resize({"b": (2, 6)})
        assert session.inputs == {"a": (2, 3), "b": (2, 6)}
        session.resize({"a": (5, 3)})
        assert session.inputs == {"a": (5, 3), "b": (5, 6)}
        assert_joined(session, 5, 6)


def test_F1_shapes_that_contradict_each_other_are_refused_and_nothing_changes(device: str) -> None:
    with weft.load(symbolic(), device=device, shapes={"a": (2, 3), "b": (2, 4)}) as session:
        for shapes in ({"a": (3, 3), "b": (2, 4)}, {"a": (2, 4)}, {"c": (1,)}, {"a": (2,)}):
            with pytest.raises(InputError):
                session.resize(shapes)
        with pytest.raises(InputError, match=r"\('N'\) is 2 here and 3 elsewhere"):
            session.run(np.zeros((3, 3), np.float32), np.zeros((2, 4), np.float32))
        assert session.report.nodes_by_device
        assert_joined(session, 2, 4)


def test_F6_a_resize_ends_what_is_in_flight(device: str) -> None:
    with weft.load(symbolic(), device=device) as session:
        session.submit(np.zeros((2, 3), np.float32), np.zeros((2, 1), np.float32))
        session.resize({"a": (4, 3)})
        with pytest.raises(InputError, match="no run to wait for"):
            session.wait()
        assert_joined(session, 4, 1)
