"""What a session does with dimensions that are open, or change."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import weft
from tests.helpers.nets import Net
from tests.helpers.onnx_models import make_model, node
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


@pytest.mark.parametrize("size", [-1, -7])
def test_F1_a_negative_size_of_an_input_is_an_open_one(device: str, size: int) -> None:
    model = make_model([node("Add", "x z")], dict.fromkeys("xz", (TensorProto.FLOAT, (size, 3))))
    model.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, (size, 3)))
    with weft.load(model, device) as session:
        assert session.inputs == {"x": ("x.0", 3), "z": ("z.0", 3)}
        for x, z in ((2, 2), (4, 1)):
            made = session.run(np.ones((x, 3), np.float32), np.ones((z, 3), np.float32))[0]
            np.testing.assert_array_equal(made, np.full((x, 3), 2))
    with weft.load(model, device, shapes={"x": (2, 3), "z": (1, 3)}) as session:
        assert sum(session.report.nodes_by_device.values()) == 1


def of_any_rank() -> ModelProto:
    """Return a model of two inputs that declare no shape."""
    model = make_model([node("Add", "x z", "t"), node("Softmax", "t")], dict.fromkeys("xz", (TensorProto.FLOAT, ())))
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    return model


def assert_softmax(session: weft.Session, x: tuple[int, ...], z: tuple[int, ...]) -> None:
    a, b = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in (x, z))
    e = np.exp(a + b)
    np.testing.assert_allclose(session.run(a, b)[0], e / e.sum(-1, keepdims=True), 1e-5, 1e-6)
    assert session.inputs == {"x": x, "z": z}


def test_F1_an_input_without_a_shape_may_have_any_rank_in_each_run(device: str) -> None:
    with weft.load(of_any_rank(), device) as session:
        assert session.inputs == {"x": ("...",), "z": ("...",)}
        for x in ((2, 3), (4, 3), (2, 2, 3), (3,), (2, 1, 4, 3), (2, 3)):
            assert_softmax(session, x, (3,))
        assert_softmax(session, (2, 2, 3), (2, 1))
        assert {d.partition(":")[0] for d in session.report.nodes_by_device} == {device}


def test_F1_an_input_without_a_shape_is_bound_by_shapes_and_by_resize(device: str) -> None:
    with weft.load(of_any_rank(), device, shapes={"x": (2, 3)}) as session:
        assert session.inputs == {"x": (2, 3), "z": ("...",)}
        session.resize({"z": (3,)})
        assert_softmax(session, (2, 3), (3,))
        session.resize({"x": (2, 2, 3)})
        assert session.inputs == {"x": (2, 2, 3), "z": (3,)}
        assert_softmax(session, (2, 2, 3), (3,))
    optimized = weft.optimize(of_any_rank(), device, shapes={"x": (2, 3), "z": (3,)})
    with weft.load(optimized) as session:
        assert_softmax(session, (2, 3), (3,))


def test_F1_a_network_of_unknown_ranks_can_be_looked_at_and_built_on() -> None:
    net = weft.parse(of_any_rank())
    assert "input  x: float32[...]" in str(net)
    with pytest.raises(InputError, match=r"cannot be optimised yet(?s:.)*float32\[\.\.\.\]"):
        weft.optimize(net, "cpu")
    with weft.load(net, "cpu") as session:
        assert_softmax(session, (2, 3), (3,))


def test_F6_a_resize_ends_what_is_in_flight(device: str) -> None:
    with weft.load(symbolic(), device=device) as session:
        session.submit(np.zeros((2, 3), np.float32), np.zeros((2, 1), np.float32))
        session.resize({"a": (4, 3)})
        with pytest.raises(InputError, match="no run to wait for"):
            session.wait()
        assert_joined(session, 4, 1)
