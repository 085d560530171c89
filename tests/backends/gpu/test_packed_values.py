"""Nodes between values in blocks of channels: which may read and write those, and that all give the right numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, feeds
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs

GPUS = ("opencl", "vulkan")
Added = Callable[[Net, str], str]


def _op(kind: str, *constants: Any, **attributes: Any) -> Added:
    return lambda net, x: net.add(kind, x, *map(np.asarray, constants), **attributes)


def _resized(scales: list[float], region: list[float] | None = None) -> Added:
    mode = "half_pixel" if region is None else "tf_crop_and_resize"
    given = np.array(region or [], np.float32), np.array(scales, np.float32)
    return _op("Resize", *given, coordinate_transformation_mode=mode)


def _mask_as_numbers(net: Net, x: str) -> str:
    """Return a value and a mask of it as floats, added: the conversion and the sum become one node."""
    return net.add("Add", x, net.add("Cast", net.add("Greater", x, np.array(0.1, np.float32)), to=DType.FLOAT32))


def _whole_numbers(net: Net, x: str) -> str:
    """Return a value scaled by what is left of it without fractions, by way of integers."""
    whole = net.add("Cast", net.add("Mul", x, np.array(9, np.float32)), to=DType.INT32)
    return net.add("Mul", x, net.add("Cast", whole, to=DType.FLOAT32))


WHOLE_BLOCKS = {
    "the last": _op("Gather", [4, 5, 6, 7], axis=1),
    "the first": _op("Gather", [0, 1, 2, 3], axis=1),
    "from the end": _op("Gather", [-4, -3, -2, -1], axis=1),
    "all": _op("Gather", list(range(8)), axis=1),
    "by a slice": _op("Slice", [4], [8], [1]),
}
OTHERS = {
    "some of a block": _op("Gather", [1, 2, 3, 4], axis=1),
    "backwards": _op("Gather", [7, 6, 5, 4], axis=1),
    "one in two": _op("Gather", [0, 2, 4, 6], axis=1),
    "rows": _op("Gather", [1, 2], axis=2),
    "channels moved up": _op("Pad", [0, 1, 0, 0, 0, -1, 0, 0], np.float32(0)),
    "channels moved down by a block": _op("Pad", [0, -4, 0, 0, 0, 4, 0, 0], np.float32(2)),
    "images moved": _op("Pad", [1, 0, 0, 0, -1, 0, 0, 0], np.float32(0)),
    "channels and a border": _op("Pad", [0, 1, 1, 0, 0, -1, 0, 2], np.float32(0)),
    "channels and a border, reflected": _op("Pad", [0, 1, 1, 0, 0, -1, 0, 2], mode="reflect"),
    "channels by a scale": _resized([1, 1.1, 2, 2]),
    "channels of a region": _resized([1, 2, 1, 1], [0, 0.5, 0, 0, 1, 1, 1, 1]),
    "a mask as numbers": _mask_as_numbers,
    "whole numbers": _whole_numbers,
}


def _between(added: Added) -> Graph:
    """Return an op between two pools, which want blocks, while a third node reads its input."""
    net = Net()
    v = net.pool(net.input("x", 2, 8, 6, 5))
    y = net.pool(added(net, v))
    return net.finish(y, net.add("AveragePool", v, kernel_shape=(2, 2)))


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("case", [*WHOLE_BLOCKS, *OTHERS])
def test_a_node_between_packed_values_is_right(case: str, device: str) -> None:
    graph = _between({**WHOLE_BLOCKS, **OTHERS}[case])
    fed = feeds(graph)
    with weft.load(graph, device, fallback="error") as session:
        assert set(session.report.placement.values()) == {device}
        got = session.run(fed)
    for found, want in zip(got, outputs(graph, fed), strict=True):
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", WHOLE_BLOCKS)
def test_whole_blocks_of_channels_are_not_moved(case: str) -> None:
    graph = _between(WHOLE_BLOCKS[case])
    with weft.load(graph, "opencl", fallback="error") as session:
        assert not {"gather", "move", "move_wide", "block_copy"} & set(kernels(session))


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
def test_a_number_for_each_channel_of_one_pixel_is_read_in_blocks(device: str) -> None:
    """Its shape is that of the image, in whose layout it does not lie."""
    net = Net()
    mean = net.add("GlobalAveragePool", net.input("x", 1, 8, 4, 3))
    scaled = net.add("Mul", net.add("Sigmoid", mean), net.random(1, 8, 1, 1))
    graph = net.finish(net.conv(net.add("Add", scaled, net.random(1, 8, 1, 1)), 4, 3, pads=(1,) * 4))
    fed = feeds(graph)
    with weft.load(graph, device, fallback="error") as session:
        np.testing.assert_allclose(session.run(fed)[0], outputs(graph, fed)[0], 1e-4, 1e-5)
