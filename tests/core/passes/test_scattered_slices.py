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
from weft.core.graph.interpreter import outputs
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


def elements_along(axis: int, rows: list[int], dims: tuple[int, ...] = (2, 4, 3), **attributes: Any) -> Graph:
    """Return a network that writes these slices along an axis by a ScatterElements."""
    net = Net()
    shape = tuple(len(rows) if a == axis % len(dims) else size for a, size in enumerate(dims))
    places = np.broadcast_to(np.array(rows).reshape(-1, *[1] * (len(dims) - 1 - axis % len(dims))), shape)
    x, y = net.add("Relu", net.input("x", *dims)), net.input("y", *shape)
    return net.finish(net.add("ScatterElements", x, places.astype(np.int64), y, axis=axis, name="z", **attributes))


@pytest.mark.parametrize(
    ("axis", "rows", "made"),
    [
        (1, [1, 2], ["Relu", "Slice", "Slice", "Concat"]),
        (-1, [0], ["Relu", "Slice", "Concat"]),
        (0, [-1], ["Relu", "Slice", "Concat"]),
        (1, [0, 1, 2, 3], ["Relu", "Identity"]),
        (1, [2, 1], ["Relu", "ScatterElements"]),
        (1, [1, 1], ["Relu", "ScatterElements"]),
        (1, [3, 0], ["Relu", "ScatterElements"]),
        (1, [3, -4], ["Relu", "ScatterElements"]),
    ],
    ids=str,
)
def test_slices_that_are_written_by_elements(axis: int, rows: list[int], made: list[str]) -> None:
    assert kinds(elements_along(axis, rows)) == made


def test_sums_of_elements_and_parts_of_other_axes_stay() -> None:
    assert kinds(elements_along(1, [1], reduction="add"))[-1] == "ScatterElements"
    net = Net()
    x = net.input("x", 2, 4, 3)
    for number, places in enumerate((np.ones((2, 1, 2), np.int64), np.array([[[1, 1, 2]], [[1, 1, 1]]]))):
        net.add("ScatterElements", x, places, net.input(f"y{number}", *places.shape), axis=1, name=f"z{number}")
    assert kinds(net.finish("z0", "z1")) == ["ScatterElements", "ScatterElements"]


# -- rows of scatters --------------------------------------------------------------------------------------


def steps(spans: list[tuple[int, int]], *, kind: str = "ScatterElements", zeros: bool = True) -> tuple[Net, list[str]]:
    """Return a network that writes slices along axis 1 of (2, 6, 3), one after the other, and what each step makes."""
    net = Net()
    value: Any = np.zeros((2, 6, 3), np.float32) if zeros else net.add("Relu", net.input("x", 2, 6, 3))
    made = []
    for number, (start, end) in enumerate(spans):
        update = net.add("Sigmoid", net.input(f"y{number}", 2, end - start, 3))
        if kind == "ScatterElements":
            places = np.broadcast_to(np.arange(start, end).reshape(-1, 1), (2, end - start, 3))
            value = net.add(kind, value, places.astype(np.int64), update, axis=1, name=f"z{number}")
        else:
            places = elements((2, 6), 2, a1=(start, end))
            value = net.add(kind, value, places, update, name=f"z{number}")
        made.append(value)
    return net, made


@pytest.mark.parametrize("kind", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("spans", [[(k, k + 1) for k in range(6)], [(4, 6), (0, 2), (2, 4)]], ids=str)
def test_what_is_filled_step_by_step_is_one_concat(spans: list[tuple[int, int]], kind: str) -> None:
    net, made = steps(spans, kind=kind)
    assert kinds(net.finish(made[-1])) == ["Sigmoid"] * len(spans) + ["Concat"]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("spans", "slices"),
    [
        ([(1, 2), (3, 4)], 3),
        ([(0, 4), (1, 2)], 3),
        ([(1, 2), (0, 4)], 1),
        ([(0, 3), (2, 5), (4, 6)], 2),
        ([(2, 4), (0, 6)], 0),
        ([(2, 3), (2, 3)], 2),
    ],
    ids=str,
)
def test_later_slices_win_and_gaps_keep_the_data(spans: list[tuple[int, int]], slices: int, zeros: bool) -> None:
    net, made = steps(spans, zeros=zeros)
    found = kinds(net.finish(made[-1]))
    assert not any(kind.startswith("Scatter") for kind in found)
    assert zeros or found.count("Slice") == slices


def test_a_value_in_between_that_is_read_starts_a_row_of_its_own() -> None:
    net, made = steps([(k, k + 1) for k in range(6)])
    found = kinds(net.finish(net.add("Relu", made[2]), made[-1]))
    assert found.count("Concat") == 2 and not any(kind.startswith("Scatter") for kind in found)


def test_rows_along_several_axes_are_apart() -> None:
    net, made = steps([(0, 1), (2, 3)], zeros=False)
    places = np.ones((2, 6, 1), np.int64)
    last = net.add("ScatterElements", made[-1], places, net.input("w", 2, 6, 1), axis=2)
    assert kinds(net.finish(last)).count("Concat") == 2


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_recurrence_stores_each_step_where_it_belongs(device: str) -> None:
    """As PyTorch exports it: each step reads two slices and the step before, and is written to its place."""
    net, count = Net(), 5
    factors, added = (net.add("Sigmoid", net.input(name, 2, count, 8)) for name in "ab")
    state, whole = net.input("h", 2, 8), net.constant(np.zeros((2, count, 8), np.float32))
    for step in range(count):
        a, b = (net.add("Gather", value, np.asarray(step, np.int64), axis=1) for value in (factors, added))
        state = net.add("Add", net.add("Mul", a, state), b)
        places = np.full((2, 1, 8), step, np.int64)
        whole = net.add("ScatterElements", whole, places, net.add("Unsqueeze", state, np.array([1])), axis=1)
    graph = net.finish(net.add("Softmax", whole))
    told = planned_kernels(graph)
    assert "scatter" not in told and "move" not in told and len(told) <= 2 * count + 3
    fed = feeds(graph)
    with weft.load(graph, device, precision="high", fallback="error") as session:
        np.testing.assert_allclose(session.run(fed)[0], outputs(graph, fed)[0], rtol=1e-5, atol=1e-6)


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
