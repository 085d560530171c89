"""Group norms as exporters write them: what becomes one op, what stays, and the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, kinds
from tests.helpers.norms import group_norm
from tests.helpers.random_nets import SLOW, assert_session_is_right
from tests.helpers.rewrites import assert_same
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.passes import run_passes
from weft.core.passes.patterns import fuse_group_norm

FOUND = "GroupNormalization"


@pytest.mark.parametrize("like", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", [(2, 6, 5, 3), (1, 6, 7), (2, 6, 2, 3, 2)])
def test_it_is_found_with_its_factor_and_shift(shape: tuple[int, ...], groups: int, like: int) -> None:
    net = Net()
    column = (6, *[1] * (len(shape) - 2))
    x = net.input("x", *shape)
    graph = net.finish(
        group_norm(net, x, groups, factor=net.random(*column), shift=net.random(1, *column), like=like)
    )
    after = fuse_group_norm(graph)
    assert kinds(after) == [FOUND] and after.nodes[0].op.attributes()["num_groups"] == groups
    assert_same(graph, after, 2e-5)


@given(data=st.data())
@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
def test_any_form_is_right(data: st.DataObject) -> None:
    net = Net()
    groups, each = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    channels = groups * each
    dtype = data.draw(st.sampled_from([DType.FLOAT32, DType.FLOAT64]))
    places = data.draw(st.sampled_from([(5,), (3, 2), (1, 1)]))
    x = net.input("x", data.draw(st.integers(1, 2)), channels, *places, dtype=dtype)
    shapes = [None, (), (1,), (channels, *[1] * (len(net.shape(x)) - 2)), net.shape(x)[-1:]]
    drawn = [data.draw(st.sampled_from(shapes)) for _ in range(2)]
    factor, shift = (None if shape is None else net.random(*shape) for shape in drawn)
    y = group_norm(net, x, groups, factor=factor, shift=shift)
    graph = net.finish(*data.draw(st.sampled_from([[y], [net.add("Relu", y), net.add("Neg", y)]])))
    after = fuse_group_norm(graph)
    assert FOUND in kinds(after)
    assert_same(graph, after, 2e-5)
    assert str(fuse_group_norm(after)) == str(after)
    assert_same(graph, run_passes(graph), 2e-5)


def no_norm(case: str) -> Graph:
    """Return a network that only looks like a group norm."""
    net = Net()
    x = net.input("x", 2, 6, 4, 3)
    if case == "groups that cut channels":
        parts, back = net.add("Reshape", x, np.array((2, 4, -1))), (2, 6, 4, 3)
    elif case == "images that are groups":
        parts, back = net.add("Reshape", x, np.array((4, 3, -1))), (2, 6, 4, 3)
    else:
        parts, back = net.add("Reshape", x, np.array((2, 3, -1))), (2, 3, 8, 3)
    count = net.shape(parts)[1]
    scale: str | Array = net.input("scale", count) if case == "a scale that is not known" else net.random(count)
    one = net.add("InstanceNormalization", parts, scale, net.random(count))
    back = (2, 6, 4, 3) if case in ("a scale that is not known", "read twice") else back
    y = net.add("Reshape", one, np.array(back))
    return net.finish(y, *([one] if case == "read twice" else []))


@pytest.mark.parametrize(
    "case",
    [
        "groups that cut channels",
        "images that are groups",
        "another shape",
        "a scale that is not known",
        "read twice",
    ],
)
def test_what_only_looks_like_it_stays(case: str) -> None:
    graph = no_norm(case)
    assert fuse_group_norm(graph).nodes == graph.nodes


def test_the_batch_and_the_picture_may_be_open() -> None:
    net = Net()
    x = net.input("x", "n", 8, "h", "w")
    parts = net.add("Reshape", x, np.array((0, 2, -1)))
    one = net.add("InstanceNormalization", parts, np.ones(2, np.float32), np.zeros(2, np.float32))
    graph = net.finish(net.add("Reshape", one, net.add("Shape", x)))
    with weft.load(graph, "cpu", shapes={"x": (1, 8, 4, 4)}) as session:
        for shape in ((1, 8, 4, 4), (3, 8, 5, 2)):
            (y,) = session.run(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
            np.testing.assert_allclose(y.reshape(shape[0], 2, -1).mean(2), 0, atol=1e-6)
    assert FOUND in str(weft.optimize(graph, "cpu", shapes={"x": (1, 8, 4, 4)}))


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_between_convolutions_it_is_one_launch(device: str) -> None:
    net = Net()
    x = net.conv(net.input("x", 1, 3, 8, 8), 8, 3, name="image")
    y = group_norm(net, x, 2, factor=net.random(8, 1, 1), shift=net.random(8, 1, 1))
    graph = net.finish(net.conv(net.add("Mul", y, net.add("Sigmoid", y)), 4, 3))
    with weft.load(graph, device, fallback="error") as session:
        assert len([kernel for kernel in kernels(session) if kernel != "relayout"]) == 3
        assert "normalize_images" in kernels(session)
        assert_session_is_right(session, graph, 1e-5)
