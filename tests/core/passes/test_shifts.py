"""What is added to channels before a convolution is part of its bias: before and after, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.helpers.nets import Net, kinds
from tests.helpers.rewrites import assert_same
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.passes import find_pass, run_passes

rewrite = find_pass("fold_shifts")


def shifted(
    *shifts: tuple[int, ...], swapped: bool = False, bias: bool = True, dtype: DType = DType.FLOAT32, **conv: Any
) -> Graph:
    """Return a convolution of 6 channels to which constants are added."""
    net, kind = Net(), dtype.numpy
    total = net.add("Relu", net.input("x", 2, 6, 8, 7, dtype=dtype))
    for shift in shifts:
        pair = (total, net.random(*shift).astype(kind))
        total = net.add("Add", *(pair[::-1] if swapped else pair))
    weight = net.random(4, 6 // conv.get("group", 1), 2, 3).astype(kind)
    given = (net.random(4).astype(kind),) if bias else ()
    return net.finish(net.add("Conv", total, weight, *given, **conv))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shifts", [((6, 1, 1),), ((1, 6, 1, 1),), ((),), ((1,), (6, 1, 1))], ids=str)
def test_what_is_added_to_channels_goes(shifts: tuple[tuple[int, ...], ...], bias: bool, swapped: bool) -> None:
    graph = shifted(*shifts, bias=bias, swapped=swapped)
    after = rewrite(graph)
    assert kinds(after) == ["Relu", "Conv"]
    assert_same(graph, after)
    assert rewrite(after) is after
    assert kinds(run_passes(graph)) == ["Relu", "Conv"]


@pytest.mark.parametrize(
    "conv", [{"group": 2}, {"strides": (2, 1)}, {"dilations": (2, 1)}, {"auto_pad": "VALID"}], ids=str
)
def test_each_kind_of_convolution_takes_it(conv: dict[str, Any]) -> None:
    graph = shifted((6, 1, 1), **conv)
    assert kinds(rewrite(graph)) == ["Relu", "Conv"]
    assert_same(graph, rewrite(graph))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_each_float_type_is_found(dtype: DType) -> None:
    graph = shifted((6, 1, 1), dtype=dtype)
    assert kinds(rewrite(graph)) == ["Relu", "Conv"]
    tolerance = {DType.FLOAT16: 1e-2, DType.BFLOAT16: 1e-1, DType.FLOAT64: 1e-14}[dtype]
    assert_same(graph, rewrite(graph), tolerance)


def _padded(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Conv", net.add("Add", x, net.random(6, 1, 1)), net.random(4, 6, 3, 3), pads=(1, 1, 1, 1)),)


def _padded_by_name(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Conv", net.add("Add", x, net.random(6, 1, 1)), net.random(4, 6, 3, 3), auto_pad="SAME_UPPER"),)


def _of_each_pixel(net: Net, x: str) -> tuple[str, ...]:
    return (net.conv(net.add("Add", x, net.random(8, 7)), 4, 1),)


def _a_computed_shift(net: Net, x: str) -> tuple[str, ...]:
    return (net.conv(net.add("Add", x, net.input("z", 6, 1, 1)), 4, 1),)


def _computed_weights(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Conv", net.add("Add", x, net.random(6, 1, 1)), net.input("w", 4, 6, 1, 1)),)


def _the_sum_is_read(net: Net, x: str) -> tuple[str, ...]:
    total = net.add("Add", x, net.random(6, 1, 1))
    return net.conv(total, 4, 1), total


def _a_broadcast_image(net: Net, x: str) -> tuple[str, ...]:
    return (net.conv(net.add("Add", net.input("z", 2, 1, 8, 7), net.random(6, 1, 1)), 4, 1),)


def _a_bias_that_is_not_finite(net: Net, x: str) -> tuple[str, ...]:
    weight = np.full((4, 6, 1, 1), 100, np.float32)
    return (net.add("Conv", net.add("Add", x, np.full((6, 1, 1), 3e38, np.float32)), weight),)


STAYS = [
    _padded,
    _padded_by_name,
    _of_each_pixel,
    _a_computed_shift,
    _computed_weights,
    _the_sum_is_read,
    _a_broadcast_image,
    _a_bias_that_is_not_finite,
]


@pytest.mark.parametrize("build", STAYS)
def test_what_no_bias_holds_stays(build: Callable[[Net, str], tuple[str, ...]]) -> None:
    net = Net()
    graph = net.finish(*build(net, net.add("Relu", net.input("x", 2, 6, 8, 7))))
    assert rewrite(graph) is graph
