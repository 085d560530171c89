"""Self-test cases for the kernels of convolutions: one convolution each."""

from __future__ import annotations

import numpy as np

from weft.core.contract.session_config import Precision
from weft.core.graph.dtypes import DType
from weft.core.graph.fused_op import RUNNING, Step
from weft.core.graph.layout import Shape
from weft.core.graph.quantisation import Grid
from weft.kernels.self_test_cases import SelfTestCase, indices, noise, one_node, several_nodes
from weft.ops.conv import Conv, ConvTranspose
from weft.ops.quantize import FakeQuantize
from weft.ops.unary import Relu

RELU = Step(Relu(), (RUNNING,))
"""The step that cases fuse."""


def conv_case(x: Shape, weight: Shape, stride: int = 1, precision: Precision = Precision.LOW) -> SelfTestCase:
    """Return the case of images (n, ci, h, w), weights (co, ci, kh, kw) and a bias, padded by half of the kernel."""
    kernel = weight[2:]
    op = Conv(kernel_shape=kernel, strides=(stride,) * len(kernel), pads=tuple(k // 2 for k in kernel) * 2)
    return one_node(op, x, weight, weight[:1], constants=(1, 2), precision=precision)


def conv_with(
    x: Shape, w: Shape, *, bias: bool = True, prefer: str = "", precision: Precision = Precision.HIGH, **attrs: object
) -> SelfTestCase:
    """Return the case of a convolution with these attributes; `prefer` as in `SelfTestCase`."""
    op = Conv(kernel_shape=w[2:], **attrs)  # type: ignore[arg-type]
    given = (x, w, w[:1]) if bias else (x, w)
    return one_node(op, *given, constants=(1, 2)[: len(given) - 1], prefer=prefer, precision=precision)


def quantised_conv(x: Shape, w: Shape, **attributes: object) -> SelfTestCase:
    """Return the case of a convolution of an image that is rounded to integers, by weights that were such."""
    co, taps = w[0], 4
    scales = 0.01 * np.arange(1, co + 1, dtype=np.float32)
    grid = Grid.of(DType.INT8, scales, None, 0)
    weights = (indices(w, 255) - 127).astype(np.float32) * scales.reshape(-1, *[1] * (taps - 1))
    return several_nodes(
        f"Conv of integers {x} with {w}",
        [
            (FakeQuantize(scale=0.05, zero=99), ("x",), "a"),
            (Conv(kernel_shape=w[2:], **attributes), ("a", "w", "b"), "y"),  # type: ignore[arg-type]
        ],
        {"x": 2 * noise(*x)}, {"w": weights, "b": noise(co)}, grids={"w": grid},
    )


def transposed_case(
    x: Shape, w: Shape, *, precision: Precision = Precision.HIGH, prefer: str = "", **attributes: object
) -> SelfTestCase:
    """Return the case of a transposed convolution without groups, with a bias; `prefer` as in `SelfTestCase`."""
    op = ConvTranspose(**attributes)  # type: ignore[arg-type]
    return one_node(op, x, w, (w[1],), constants=(1, 2), precision=precision, prefer=prefer)
