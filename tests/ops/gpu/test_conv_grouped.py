"""Every tile of convolutions in groups of whole blocks gives the right numbers, however images lie, with more steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.conv_problems import conv_problem, take
from tests.helpers.convolutions import launched_as_on_the_cpu
from weft.backends.gpu.lowering.target import Target
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Layout
from weft.core.graph.op import op_types
from weft.kernels.device_caps import DeviceCaps
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.grouped.blocks import TILES, GroupedConv, GroupedTile

SHAPES: list[tuple[int, int, tuple[int, ...], tuple[int, ...], int, int]] = [
    # images, groups, height and width, weights, stride, dilation
    (2, 3, (7, 9), (24, 8, 3, 3), 1, 1),
    (1, 2, (10, 9), (16, 36, 3, 3), 2, 1),
    (1, 2, (9, 8), (48, 8, 5, 5), 1, 2),
    (1, 2, (5, 3), (16, 68, 1, 1), 1, 1),
]


def network(
    images: int, groups: int, size: tuple[int, ...], weight: tuple[int, ...], stride: int, dilation: int
) -> weft.Graph:
    """Return one convolution with bias, a residual and a Relu as a graph."""
    rng = np.random.default_rng(7)
    pads = tuple(n // 2 * dilation for n in weight[2:]) * 2
    op = Conv(group=groups, kernel_shape=weight[2:], strides=(stride,) * 2, dilations=(dilation,) * 2, pads=pads)
    nodes = [
        weft.Node("conv", op, ("x", "w", "b"), ("c",)),
        weft.Node("add", op_types()["Add"](), ("c", "residual"), ("a",)),
        weft.Node("relu", op_types()["Relu"](), ("a",), ("y",)),
    ]
    graph = weft.Graph("conv", ["x", "residual"], ["y"], nodes)
    graph.constants["w"] = rng.standard_normal(weight, np.float32)
    graph.constants["b"] = rng.standard_normal(weight[0], np.float32)
    graph.specs = {k: weft.TensorSpec(v.shape, DType.FLOAT32) for k, v in graph.constants.items()}
    graph.specs["x"] = weft.TensorSpec((images, groups * weight[1], *size), DType.FLOAT32)
    (graph.specs["residual"],) = op.infer([graph.specs[i] for i in "xwb"], [None] * 3)
    return graph


def _runs() -> list[Any]:
    """Return every tile on every device with each layout; the short run has two, one of them in slices."""
    short = (GroupedTile(1, 2, 2, 2), GroupedTile(2, 2, 1, 1))
    every = product(TILES, ("opencl", "vulkan"), (Layout.NC4HW4, Layout.NHWC4))
    return [
        pytest.param(*each, marks=[pytest.mark.long] * (each[0] not in short)) for each in every
    ]


@pytest.mark.covering
@pytest.mark.parametrize(("tile", "device", "layout"), _runs(), ids=str)
def test_every_tile_computes_the_convolution(
    device: str, tile: GroupedTile, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, GroupedConv(), tile)
    monkeypatch.setattr(Target, "packed_layout", layout)
    for shape in SHAPES:
        assert "conv_grouped" in launched_as_on_the_cpu(network(*shape), device)


@pytest.mark.parametrize(
    ("weight", "group", "taken"),
    [
        ((64, 4, 3, 3), 16, "conv_grouped"),
        ((64, 8, 3, 3), 4, "conv_grouped"),
        ((60, 6, 3, 3), 10, "conv_direct"),
        ((24, 4, 3, 3), 4, "conv_direct"),
        ((64, 4, 3, 3, 3), 16, "conv_direct"),
        ((64, 1, 3, 3), 64, "conv_depthwise_tile"),
    ],
)
def test_groups_of_whole_blocks_are_taken(weight: tuple[int, ...], group: int, taken: str) -> None:
    image = (1, group * weight[1], *(14,) * (len(weight) - 2))
    problem = replace(conv_problem(image, weight, H200), group=group)
    first, *_ = CONVOLUTIONS.decide(problem).candidates.values()
    assert first.algorithm is not None and first.algorithm.name == taken


def default(device: DeviceCaps, images: int, channels: int, size: int, of_group: int) -> GroupedTile:
    """Return the tile of this kernel that is taken without tuning for 3 x 3 taps."""
    shape = (images, channels, size, size)
    problem = replace(conv_problem(shape, (channels, of_group, 3, 3), device), group=channels // of_group)
    tile = next(iter(GroupedConv().candidates(problem))).tile
    assert isinstance(tile, GroupedTile)
    return tile


def test_items_share_long_sums_of_small_images() -> None:
    few, many = default(H200, 1, 1024, 7, 32), default(H200, 32, 512, 56, 32)
    assert few.slices > many.slices


def test_a_cpu_does_not_divide_sums() -> None:
    assert default(replace(H200, software=True), 1, 1024, 7, 32).slices == 1
