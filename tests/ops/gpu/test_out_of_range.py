"""Numbers in the data that a GPU cannot refuse: kernels touch nothing outside of their operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers.nets import Net
from tests.helpers.op_rows import GPUS, run
from weft.core.graph.dtypes import DType
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft.errors import WeftError
from weft.ops.boxes import RoiAlign

Row = tuple[dict[str, Any], tuple[Array, ...], list[int]]
"""Attributes, inputs, and the elements that come out."""
FAR = 1 << 32
"""Indices beyond it have low words that look like places inside."""
FLOATS, WHOLE = np.arange(5, dtype=np.float32), np.arange(5, dtype=np.int64)
PLACES, NEAREST = np.array([FAR, FAR + 3, 1 - FAR, 5, -6, -1]), [4, 4, 0, 4, 0, 4]
TARGETS, NEW = np.array([FAR + 1, -FAR, 5, -6, 2, -1]), np.array([70, 71, 72, 73, 8, 9], np.float32)
READS: dict[str, Row] = {
    "Gather": ({}, (FLOATS, PLACES), NEAREST),
    "Gather of integers": ({}, (WHOLE, PLACES), NEAREST),
    "GatherElements": ({}, (FLOATS, PLACES), NEAREST),
    "GatherElements of integers": ({}, (WHOLE, PLACES), NEAREST),
    "GatherND": ({}, (FLOATS, PLACES[:, None]), NEAREST),
    "ReverseSequence": (
        {},
        (np.arange(6.0, dtype=np.float32).reshape(3, 2), np.array([FAR + 2, -FAR])),
        [4, 1, 4, 3, 4, 5],
    ),
    "MaxRoiPool": (
        {"pooled_shape": (1, 1)},
        (np.array([1, 2], np.float32).reshape(2, 1, 1, 1), np.array([[1e10] + [0] * 4, [-9] + [0] * 4], np.float32)),
        [2, 1],
    ),
}
WRITES: dict[str, Row] = {
    "ScatterElements": ({}, (FLOATS, TARGETS, NEW), [0, 1, 8, 3, 9]),
    "ScatterElements added": ({"reduction": "add"}, (FLOATS, TARGETS, NEW), [0, 1, 10, 3, 13]),
    "ScatterND": ({}, (FLOATS, TARGETS[:, None], NEW), [0, 1, 8, 3, 9]),
    "ScatterND added": ({"reduction": "add"}, (FLOATS, TARGETS[:, None], NEW), [0, 1, 10, 3, 13]),
    "MaxUnpool": (
        {"kernel_shape": (2, 1)},
        (np.array([7, 8], np.float32).reshape(1, 2, 1, 1), np.array([FAR + 1, 2]).reshape(1, 2, 1, 1)),
        [0, 0, 8, 0],
    ),
}
CASES = {**READS, **WRITES}


def build(names: list[str]) -> tuple[Net, dict[str, Array]]:
    """Return a network of the cases, and what it is fed."""
    net, fed = Net(), dict[str, Array]()
    for name in names:
        attributes, arrays, _ = CASES[name]
        inputs = []
        for array in arrays:
            inputs.append(net.input(f"x{len(fed)}", *array.shape, dtype=DType.of(array.dtype)))
            fed[inputs[-1]] = array
        net.graph.outputs.append(net.add(name.partition(" ")[0], *inputs, **attributes))
    return net, fed


@pytest.mark.parametrize("device", GPUS)
def test_reads_take_the_nearest_and_writes_are_left_out(device: str) -> None:
    net, fed = build([*CASES])
    for name, found in zip(CASES, run(net.graph, fed, device), strict=True):
        np.testing.assert_array_equal(found.reshape(-1), np.ravel(CASES[name][2]), name)


@pytest.mark.parametrize("name", CASES)
def test_the_cpu_says_so(name: str) -> None:
    net, fed = build([name])
    with pytest.raises(WeftError, match=f"node 'n_{name.partition(' ')[0].lower()}0'.*\n.*why: .*[0-9]{{2}}"):
        run(net.graph, fed, "cpu")


@pytest.mark.parametrize("name", ["CumSum", "CumProd"])
def test_an_axis_that_a_run_computes_is_an_index_too(name: str) -> None:
    net = Net()
    graph = net.finish(net.add(name, net.input("x", 3), net.input("axis", dtype=DType.INT64)))
    with pytest.raises(IndexError, match="axis 2 does not exist in an input of rank 1"):
        outputs(graph, {"x": FLOATS[:3], "axis": np.array(2)})


def test_a_region_of_no_image_is_an_index_too() -> None:
    net = Net()
    inputs = net.input("x", 2, 1, 4, 4), net.input("rois", 1, 5)
    graph = net.finish(net.add("MaxRoiPool", *inputs, pooled_shape=(1, 1)))
    feeds = {"x": np.zeros((2, 1, 4, 4), np.float32), "rois": np.array([[-0.75, 0, 0, 3, 3]], np.float32)}
    with pytest.raises(IndexError, match=r"region 0 is of image -0\.75, and X holds 2 images"):
        outputs(graph, feeds)


@pytest.mark.parametrize("device", GPUS)
def test_rois_of_an_image_out_of_range_read_the_nearest(device: str) -> None:
    net = Net()
    op = RoiAlign(sampling_ratio=1)
    inputs = net.input("x", 2, 1, 4, 4), net.input("rois", 3, 4), net.input("images", 3, dtype=DType.INT64)
    net.graph.outputs = [net.add(op, *inputs)]
    x = np.stack([np.zeros((1, 4, 4)), np.ones((1, 4, 4))]).astype(np.float32)
    rois = np.tile(np.array([1, 1, 3, 3], np.float32), (3, 1))
    feeds = {"x": x, "rois": rois, "images": np.array([FAR, -1, 1])}
    (y,) = run(net.graph, feeds, device)
    np.testing.assert_array_equal(y.reshape(-1), [1, 0, 1])
