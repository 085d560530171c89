"""A convolution of 1 x 1 taps that takes the maximum over a window as it loads: a max pool before it is no launch.

In a small network a launch takes longer than its work, and the loads of a pool are a fraction of that. Where there is
more work two launches are better: every group of the GEMM loads all of its windows, and each of several tiles of output
channels does so again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from weft.core.graph.layout import PACK, Array, Shape
from weft.core.graph.op import Constants, Op, OpClass
from weft.core.graph.op_class import op_dataclass
from weft.core.graph.tensor import TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.gemm.tiles import TiledConv
from weft.ops.gpu.conv.matrix.split_floats import SplitFigures
from weft.ops.gpu.conv.problem import ConvPlan, on_matrix_units
from weft.ops.pool import MaxPool
from weft.ops.window import Window

TAPS = 16
"""Most pixels of the pool's window: a work-item keeps all of them in registers."""


@op_dataclass
class PooledConv(Op):
    """A max pool and the convolution of its result as one op; only backends make it."""

    type: ClassVar[str] = "PooledConv"
    op_class: ClassVar[OpClass] = "reduction"
    by_image: ClassVar[bool] = True
    pool: MaxPool
    conv: Conv

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        pooled = self.pool.inferred(inputs[:1], constants[:1])[0]
        return self.conv.inferred([pooled, *inputs[1:]], [None, *constants[1:]])

    def reference(self, *inputs: Array | None) -> Array:
        return self.conv.reference(self.pool.reference(inputs[0])[0], *inputs[1:])

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return the operations of both."""
        x, (n, _, *places) = inputs[0] or (0, 0), outputs[0]
        return self.pool.flops(inputs[:1], [(n, x[1], *places)]) + self.conv.flops(inputs, outputs)


@dataclass(frozen=True)
class PooledFigures(AlgorithmFigures, section="conv_pooled"):
    """When a convolution should compute the pool that it reads."""

    vectors: int
    """It may read up to so many pixels of four channels for each unit."""
    channels: int
    """The most output channels that it may have."""


def pooling_pays(
    op: PooledConv, x: TensorSpec, weight: Shape, output: Shape, caps: DeviceCaps, split_products: bool
) -> bool:
    """Tell whether one launch for pool and convolution is faster.

    It is if the portable GEMM runs them, and there is little work and few channels.

    From `SplitFigures.least_products` on, kernels on matrix units are faster for fp16 and split fp32. They load vectors
    as they lie in memory, so they cannot pool.
    """
    pool = op.pool.window(x.dims)
    taps = op.conv.window((*x.dims[:2], *pool.outputs), weight)
    if TiledConv.name in caps.without:
        return False  # no fallback takes the maximum
    if op.conv.group != 1 or not taps.is_pointwise or op.pool.outputs > 1 or not _sees_pixels(pool):
        return False
    channels, blocks = output[1], -(-x.dims[1] // PACK)
    vectors = x.dims[0] * prod(pool.outputs) * blocks
    known, least = caps.model.of(PooledFigures), caps.model.of(SplitFigures).least_products
    portable = not on_matrix_units(caps, x.dtype, split_products) or vectors * PACK * channels < least
    return portable and channels <= known.channels and vectors <= known.vectors * caps.likely_units


def _sees_pixels(pool: Window) -> bool:
    """Tell whether a pool has work, its window is small, flat, without gaps, and sees a pixel wherever it is."""
    axes = zip(pool.inputs, pool.outputs, pool.kernel, pool.strides, pool.begin, strict=True)
    seen = all(begin < kernel and (o - 1) * stride - begin < i for i, o, kernel, stride, begin in axes)
    plain = pool.rank <= 2 and prod(pool.kernel) <= TAPS and prod(pool.dilations) == 1
    return seen and plain and not pool.is_pointwise


@gpu_op(PooledConv)
class PooledConvOnGpu(GpuOp):
    """The portable GEMM, which takes the maximum as it loads."""

    wanted_layout = WantedLayout.CHANNELS
    splits_constants = True

    def launches(self, op: PooledConv, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch the GEMM."""
        x, w, b = (*inputs, None)[:3]
        assert x is not None and w is not None and w.constant is not None
        bias, window = None if b is None else b.constant, op.pool.window(x.shape)
        CONVOLUTIONS.launch(ConvPlan.of(k, window, x, outputs[0], w.constant, bias, pooled=prod(window.kernel)))
