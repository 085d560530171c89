"""Every tile of the depthwise convolutions gives the right numbers, however images lie, with steps behind it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.conv_problems import conv_problem, take, take_where_it_fits
from tests.helpers.convolutions import launched_as_on_the_cpu
from tests.helpers.op_rows import ROWS, assert_agree, reference
from tests.helpers.rows_together import as_it_is, check_rows
from weft.backends.gpu.lowering.target import Target
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Array, Layout
from weft.core.graph.op import op_types
from weft.kernels.chooser import Algorithm, Candidate
from weft.kernels.device_caps import DeviceCaps
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.grouped.depthwise import TILES, DepthwiseInLoops, DepthwiseInTiles, DepthwiseTile
from weft.ops.gpu.conv.grouped.depthwise_staged import DepthwiseStaged, StagedTile
from weft_conformance.cases.table import Case

SHAPES = [
    # batch, channels, height, width, kernel, stride, dilation, pad
    (2, 8, 7, 9, 3, 1, 1, 1),
    (1, 6, 10, 9, 3, 2, 1, 1),
    (1, 5, 11, 8, 5, 1, 2, 3),
]
STAGED = [
    StagedTile(1, 4, 8, 4),
    StagedTile(2, 7, 7, 7),
    StagedTile(4, 1, 4, 2),
]
"""A tile that is smaller than images, one that is larger, and one whose items load more than they have under way."""


def network(n: int, c: int, h: int, w: int, kernel: int, stride: int, dilation: int, pad: int) -> weft.Graph:
    """Return one convolution with bias, a residual and a Relu as a graph."""
    rng = np.random.default_rng(7)
    op = Conv(
        group=c, kernel_shape=(kernel,) * 2, strides=(stride,) * 2, dilations=(dilation,) * 2, pads=(pad,) * 4
    )
    nodes = [
        weft.Node("conv", op, ("x", "w", "b"), ("c",)),
        weft.Node("add", op_types()["Add"](), ("c", "residual"), ("a",)),
        weft.Node("relu", op_types()["Relu"](), ("a",), ("y",)),
    ]
    graph = weft.Graph("conv", ["x", "residual"], ["y"], nodes)
    graph.constants["w"] = rng.standard_normal((c, 1, kernel, kernel), np.float32)
    graph.constants["b"] = rng.standard_normal(c, np.float32)
    graph.specs = {k: weft.TensorSpec(v.shape, DType.FLOAT32) for k, v in graph.constants.items()}
    graph.specs["x"] = weft.TensorSpec((n, c, h, w), DType.FLOAT32)
    (graph.specs["residual"],) = op.infer([graph.specs[i] for i in "xwb"], [None] * 3)
    return graph


def _runs() -> list[Any]:
    """Return every tile on every device with each layout; llvmpipe has one of each kind in the short run."""
    every = [
        *product([DepthwiseInTiles()], TILES, ("opencl", "vulkan"), (Layout.NC4HW4, Layout.NHWC4)),
        *product([DepthwiseStaged()], STAGED, ("opencl", "vulkan"), (Layout.NC4HW4, Layout.NHWC4)),
    ]
    short = [max(TILES, key=lambda tile: tile.rows * tile.columns), STAGED[0]]
    return [
        pytest.param(
            *each,
            marks=[pytest.mark.long] * (each[2] == "vulkan" and each[1] not in short),
            id=f"{each[1]}-{each[2]}-{each[3].name}",
        )
        for each in every
    ]


@pytest.mark.covering
@pytest.mark.parametrize(("algorithm", "tile", "device", "layout"), _runs())
def test_every_tile_computes_the_convolution(
    algorithm: Algorithm[Any, Any, Any],
    device: str,
    tile: DepthwiseTile | StagedTile,
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take(monkeypatch, algorithm, tile)
    monkeypatch.setattr(Target, "packed_layout", layout)
    for shape in SHAPES:
        assert algorithm.name in launched_as_on_the_cpu(network(*shape), device)


@pytest.mark.covering
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
@pytest.mark.parametrize("kernel", [3, 15])
def test_weights_that_are_computed_lie_like_pixels(
    device: str, kernel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is, with channels last where images have them last, of tiles and of the kernel with loops."""
    monkeypatch.setattr(Target, "packed_layout", Layout.NHWC4)
    graph = network(1, 9, 15, 16, kernel, 1, 1, kernel // 2)
    graph.inputs.append("w")
    del graph.constants["w"]
    launched = launched_as_on_the_cpu(graph, device)
    assert ("conv_depthwise_tile" if kernel == 3 else "conv_depthwise") in launched


def _filters_each_channel(row: Case) -> bool:
    return row.op == "Conv" and row.inputs[1] is not None and row.attributes.get("group", 1) > 1


@pytest.mark.parametrize("device", ["opencl", pytest.param("vulkan", marks=pytest.mark.long)])
def test_rows_of_the_table_in_work_group_memory(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides, dilations, pads, sizes that tiles do not divide, windows with a loop, one dimension, three."""
    take_where_it_fits(monkeypatch, DepthwiseStaged(), StagedTile(2, 4, 8, 4))
    check_rows([row for row in ROWS if _filters_each_channel(row)], device, as_it_is, _agree)


def _agree(row: Case, actual: list[Array]) -> None:
    assert_agree(actual, reference(row.make_op(), row.arrays()), row.make_op())


def _default(kernel: int, caps: DeviceCaps, channels: int = 384) -> Candidate:
    """Return what computes a depthwise convolution of images of 14 x 14 without tuning."""
    problem = conv_problem((1, channels, 14, 14), (channels, 1, kernel, kernel), caps, dtype=DType.FLOAT32)
    decision = CONVOLUTIONS.decide(replace(problem, group=channels))
    return decision.candidates[decision.default]


def test_large_windows_are_staged_on_gpus() -> None:
    assert isinstance(_default(7, H200).algorithm, DepthwiseStaged)
    assert isinstance(_default(3, H200).algorithm, DepthwiseInTiles)
    assert isinstance(_default(7, replace(H200, software=True)).algorithm, DepthwiseInTiles)


def test_windows_of_very_many_taps_have_a_kernel_with_loops_where_staging_is_wrong() -> None:
    assert isinstance(_default(31, H200).algorithm, DepthwiseStaged)
    assert isinstance(_default(31, replace(H200, software=True)).algorithm, DepthwiseInLoops)
    without = replace(H200, without=frozenset({DepthwiseStaged.name}))
    assert isinstance(_default(31, without).algorithm, DepthwiseInLoops)
    assert isinstance(_default(7, without).algorithm, DepthwiseInTiles)


@pytest.mark.parametrize("memory", [16 << 10, 48 << 10])
def test_staged_tiles_fit_the_device(memory: int) -> None:
    caps = replace(H200, local_memory=memory, max_local_items=128, max_local_size=(64, 128, 64))
    for kernel, size in product((3, 5, 7, 31), (1, 7, 14, 56, 300)):
        problem = conv_problem((1, 40, size, size), (40, 1, kernel, kernel), caps, dtype=DType.FLOAT32)
        for each in DepthwiseStaged().candidates(replace(problem, group=40)):
            assert each.tile.items <= 64 and each.tile.shared_bytes(problem) <= memory
