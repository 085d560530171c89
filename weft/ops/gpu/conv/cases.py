"""Self-test cases for the kernels of convolutions: one convolution each, with a bias."""

from __future__ import annotations

from weft.core.contract.session_config import Precision
from weft.core.graph.layout import Shape
from weft.kernels.special import SelfTestCase, one_node
from weft.ops.conv import Conv


def conv_case(x: Shape, weight: Shape, stride: int = 1, precision: Precision = Precision.LOW) -> SelfTestCase:
    """Return the case of images (n, ci, h, w) and weights (co, ci, kh, kw), padded by half of the kernel all around."""
    kernel = weight[2:]
    op = Conv(kernel_shape=kernel, strides=(stride,) * len(kernel), pads=tuple(k // 2 for k in kernel) * 2)
    return one_node(op, x, weight, weight[:1], constants=(1, 2), precision=precision)
