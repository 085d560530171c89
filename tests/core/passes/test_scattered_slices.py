"""Slices that a scatter writes in order, as PyTorch exports an assignment to a slice, are joined instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds
from tests.helpers.random_parts import elements
from tests.helpers.rewrites import assert_same
from weft.core.graph.graph import Graph
from weft.core.passes import find_pass, run_passes


def scatter(rows: list[int] | np.ndarray[Any, Any], **attributes: Any) -> Graph:
    """Return a network that writes slices of a value of six."""
    net = Net()
    x = net.add("Relu", net.input("x", 6, 2, 3))
    places = np.array(rows, np.int64).reshape(-1, 1)
    return net.finish(net.add("ScatterND", x, places, net.input("y", len(places), 2, 3), name="z", **attributes))


def kinds(graph: Graph) -> list[str]:
    """Return the types of the nodes after the pass, which computes what the network does."""
    after = run_passes(graph, (find_pass("concat_scattered_slices"),))
    assert_same(graph, after, 0)
    return [node.op.type for node in after.nodes]


@pytest.mark.parametrize(
    ("rows", "made"),
    [
        ([2, 3, 4], ["Relu", "Slice", "Slice", "Concat"]),
        ([0, 1], ["Relu", "Slice", "Concat"]),
        ([5], ["Relu", "Slice", "Concat"]),
        ([-2, -1], ["Relu", "Slice", "Concat"]),
        ([0, 1, 2, 3, 4, 5], ["Relu", "Identity"]),
    ],
    ids=str,
)
def test_slices_in_order_are_joined(rows: list[int], made: list[str]) -> None:
    assert kinds(scatter(rows)) == made


@pytest.mark.parametrize("rows", [[3, 2], [1, 3], [1, 1, 2], [5, 0], [-1, 0], []], ids=str)
def test_others_stay(rows: list[int]) -> None:
    assert kinds(scatter(rows)) == ["Relu", "ScatterND"]


def test_sums_stay() -> None:
    assert kinds(scatter([2, 3], reduction="add")) == ["Relu", "ScatterND"]


def written(places: np.ndarray[Any, Any], dims: tuple[int, ...] = (2, 4, 3), flat: bool = False) -> Graph:
    """Return a network that writes the elements at these places; `flat`: one after the other."""
    net, depth = Net(), places.shape[-1]
    places = places.reshape(-1, depth) if flat else places
    x, y = net.add("Relu", net.input("x", *dims)), net.input("y", *places.shape[:-1], *dims[depth:])
    return net.finish(net.add("ScatterND", x, places, y, name="z"))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_is_written_as_a_whole_is_left_alone(depth: int, flat: bool) -> None:
    """As PyTorch writes x[:, :, 0:] = y."""
    _, made = kinds(written(elements((2, 4, 3), depth), flat=flat))
    assert made == ("Reshape" if flat and depth > 1 else "Identity")


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("box", "parts"), [({"a1": (1, 4)}, 1), ({"a1": (1, 3)}, 2), ({"a2": (0, 2)}, 1), ({"a0": (1, 2)}, 1)], ids=str
)
def test_a_part_of_one_axis_is_joined(box: dict[str, tuple[int, int]], parts: int, flat: bool) -> None:
    made = kinds(written(elements((2, 4, 3), 3, **box), flat=flat))
    assert made.count("Slice") == parts and made[-1] == "Concat"
    from_the_end = elements((2, 4, 3), 3, **box) - np.array([2, 4, 3])
    assert kinds(written(from_the_end))[-1] == "Concat"


@pytest.mark.parametrize(
    "places",
    [
        elements((2, 4, 3), 3, a1=(1, 3), a2=(1, 3)),
        elements((2, 4, 3), 2)[::-1],
        elements((2, 4, 3), 2).transpose(1, 0, 2),
        np.array([[0, 0], [0, 2]]),
        np.array([[0, 0], [0, 0]]),
        np.array([[0, 0], [1, 3]]),
    ],
    ids=["two axes", "backwards", "another order", "a gap", "twice", "two corners"],
)
def test_other_elements_stay(places: np.ndarray[Any, Any]) -> None:
    assert kinds(written(places)) == ["Relu", "ScatterND"]


def test_places_that_a_run_computes_stay() -> None:
    net = Net()
    x, y, places = net.input("x", 6, 2), net.input("y", 1, 2), net.input("at", 1, 1, dtype=weft.DType.INT64)
    graph = net.finish(net.add("ScatterND", x, places, y))
    after = run_passes(graph, (find_pass("concat_scattered_slices"),))
    assert [node.op.type for node in after.nodes] == ["ScatterND"]


def test_an_assignment_to_a_slice_takes_no_launch_of_its_own() -> None:
    """As PyTorch writes x[:, 1:] = y: both are turned so that the slices are along the first axis, and turned back."""
    net = Net()
    x, y = net.add("Sigmoid", net.input("x", 2, 4, 3)), net.add("Relu", net.input("y", 2, 3, 3))
    turned = [net.add("Transpose", each, perm=(1, 0, 2)) for each in (x, y)]
    written = net.add("ScatterND", turned[0], np.arange(1, 4).reshape(-1, 1), turned[1])
    graph = net.finish(net.add("Transpose", written, perm=(1, 0, 2), name="z"))
    launched = planned_kernels(graph)
    assert "scatter" not in launched and launched.count("move") <= 1
    fed = feeds(graph)
    for device in ("cpu", "opencl"):
        with weft.load(graph, device, fallback="error") as session:
            (got,) = session.run(fed)
        want = 1 / (1 + np.exp(-fed["x"]))
        want[:, 1:] = np.maximum(fed["y"], 0)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
