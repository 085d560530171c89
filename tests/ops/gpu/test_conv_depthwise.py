"""Every tile of the depthwise convolution gives the right numbers, however images lie, with a step behind it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.conv_problems import take
from weft.backends.gpu.lowering.lower import Target
from weft.conformance.cases.table import tolerance
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Layout
from weft.core.graph.op import op_types
from weft.ops.conv import Conv
from weft.ops.gpu.conv import depthwise
from weft.ops.gpu.conv.depthwise import TILES, DepthwiseTile

SHAPES = [
    # batch, channels, height, width, kernel, stride, dilation, pad
    (2, 8, 7, 9, 3, 1, 1, 1),
    (1, 6, 10, 9, 3, 2, 1, 1),
    (1, 5, 11, 8, 5, 1, 2, 3),
]


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
    """Return every tile on every device with each layout; llvmpipe has the largest alone in the short run."""
    every = product(TILES, ("opencl", "vulkan"), (Layout.NC4HW4, Layout.NHWC4))
    largest = max(TILES, key=lambda tile: tile.rows * tile.columns)
    return [
        pytest.param(*each, marks=[pytest.mark.long] * (each[1] == "vulkan" and each[0] != largest)) for each in every
    ]


@pytest.mark.covering
@pytest.mark.parametrize(("tile", "device", "layout"), _runs(), ids=str)
def test_every_tile_computes_the_convolution(
    device: str, tile: DepthwiseTile, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, depthwise.DepthwiseInTiles(), tile)
    monkeypatch.setattr(Target, "packed_layout", layout)
    for shape in SHAPES:
        graph = network(*shape)
        inputs = [np.random.default_rng(1).standard_normal(graph.specs[i].dims, np.float32) for i in graph.inputs]
        (want,) = weft.load(graph, device="cpu").run(*inputs)
        with weft.load(graph, device=device, fallback="error") as session:
            (got,) = session.run(*inputs)
        np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))
