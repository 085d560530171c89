"""Sums of a value and the first channels of an image: before and after, what stays, and launches on GPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds, kinds
from tests.helpers.rewrites import assert_same
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft.core.passes import find_pass, run_passes

rewrite = find_pass("pad_partial_sums")
SHAPE = (2, 13, 5, 7)


def slices(net: Net, x: str, at: int, end: int | None = None) -> list[str]:
    """Return the channels of x up to `at`, and those from there on, perhaps up to `end`."""
    axis, last = np.array([1]), net.shape(x)[1] if end is None else end
    ranges = ((0, at), (at, last))
    return [net.add("Slice", x, np.array([first]), np.array([stop]), axis) for first, stop in ranges]


def widened(at: int = 6, *, split: bool = False, swapped: bool = False, dtype: DType = DType.FLOAT32) -> Graph:
    """Return an image to whose first channels another image is added."""
    net = Net()
    image, s = net.input("x", 2, 3, 5, 7, dtype=dtype), net.input("s", SHAPE[0], at, *SHAPE[2:], dtype=dtype)
    x = net.add("Conv", image, net.random(SHAPE[1], 3, 1, 1).astype(dtype.numpy))
    if split:
        first = net.add("Split", x, np.array([at, SHAPE[1] - at]), axis=1, outputs=2)
        rest = f"{first}.1"
    else:
        first, rest = slices(net, x, at)
    return net.finish(net.add("Concat", net.add("Add", *((s, first) if swapped else (first, s))), rest, axis=1))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("at", [1, 4, 6])
def test_a_value_is_padded_and_added(at: int, split: bool, swapped: bool) -> None:
    graph = widened(at, split=split, swapped=swapped)
    after = rewrite(graph)
    assert kinds(after) == ["Conv", "Pad", "Add"]
    assert_same(graph, after, 0)
    assert rewrite(after) is after
    assert kinds(run_passes(graph)) == ["Conv", "Pad", "Add"]


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_each_float_type_is_found(dtype: DType) -> None:
    graph = widened(dtype=dtype)
    assert kinds(rewrite(graph)) == ["Conv", "Pad", "Add"]
    assert_same(graph, rewrite(graph), 0)


def _the_last_channels(net: Net, x: str) -> tuple[str, ...]:
    first, rest = slices(net, x, 6)
    return (net.add("Concat", first, net.add("Add", rest, net.input("s", 2, 7, 5, 7)), axis=1),)


def _parts_in_another_order(net: Net, x: str) -> tuple[str, ...]:
    first, rest = slices(net, x, 6)
    return (net.add("Concat", net.add("Add", rest, net.input("s", 2, 7, 5, 7)), first, axis=1),)


def _not_all_of_the_rest(net: Net, x: str) -> tuple[str, ...]:
    first, rest = slices(net, x, 6, 12)
    return (net.add("Concat", net.add("Add", first, net.input("s", 2, 6, 5, 7)), rest, axis=1),)


def _parts_of_two_values(net: Net, x: str) -> tuple[str, ...]:
    first, _ = slices(net, x, 6)
    _, rest = slices(net, net.input("z", *SHAPE), 6)
    return (net.add("Concat", net.add("Add", first, net.input("s", 2, 6, 5, 7)), rest, axis=1),)


def _a_number_of_each_channel(net: Net, x: str) -> tuple[str, ...]:
    first, rest = slices(net, x, 6)
    return (net.add("Concat", net.add("Add", first, net.input("s", 6, 1, 1)), rest, axis=1),)


def _a_part_that_is_read(net: Net, x: str) -> tuple[str, ...]:
    first, rest = slices(net, x, 6)
    return net.add("Concat", net.add("Add", first, net.input("s", 2, 6, 5, 7)), rest, axis=1), rest


def _the_sum_is_read(net: Net, x: str) -> tuple[str, ...]:
    first, rest = slices(net, x, 6)
    total = net.add("Add", first, net.input("s", 2, 6, 5, 7))
    return net.add("Concat", total, rest, axis=1), total


def _along_another_axis(net: Net, x: str) -> tuple[str, ...]:
    first, rest = (net.add("Slice", x, np.array([a]), np.array([b]), np.array([2])) for a, b in ((0, 2), (2, 5)))
    return (net.add("Concat", net.add("Add", first, net.input("s", 2, 13, 2, 7)), rest, axis=2),)


STAYS = [
    _the_last_channels,
    _parts_in_another_order,
    _not_all_of_the_rest,
    _parts_of_two_values,
    _a_number_of_each_channel,
    _a_part_that_is_read,
    _the_sum_is_read,
    _along_another_axis,
]


@pytest.mark.parametrize("build", STAYS)
def test_what_is_nearly_such_a_sum_stays(build: Callable[[Net, str], tuple[str, ...]]) -> None:
    net = Net()
    graph = net.finish(*build(net, net.conv(net.input("x", 2, 3, 5, 7), SHAPE[1])))
    assert rewrite(graph) is graph


def test_what_is_no_convolution_stays_divided() -> None:
    net = Net()
    first, rest = slices(net, net.add("Relu", net.input("x", *SHAPE)), 6)
    graph = net.finish(net.add("Concat", net.add("Add", first, net.input("s", 2, 6, 5, 7)), rest, axis=1))
    assert rewrite(graph) is graph


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_a_residual_of_fewer_channels_takes_one_launch(device: str, precision: str) -> None:
    """Of numbers of channels that are no multiple of four; the convolution adds as it stores."""
    net = Net()
    s = net.conv(net.input("x", 2, 3, 9, 7), 6, 3)
    x = net.conv(net.add("Relu", s), 13)
    first, rest = slices(net, x, 6)
    graph = net.finish(net.conv(net.add("Concat", net.add("Add", first, s), rest, axis=1), 4, 3))
    told = planned_kernels(graph, precision)
    assert told.count("pad") == 1 and not {"move", "elementwise", "elementwise_c4"} & set(told)
    assert told.count("relayout") <= 2, "of the input and the output"
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        (got,) = session.run(feeds(graph))
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-2 if precision == "low" else 1e-5)
