"""Convolution on GPUs: what of it they take, and how images lie."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.core.graph.dtypes import DType
from weft.core.graph.layout import PACK
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.launch import DeviceCaps, GpuOp, KernelBuilder, Placement, gpu_op
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.problem import ConvPlan

SAVED = 1 << 26
"""Products up to which an image that need not be packed is worth more than matrix units: split products save at most
2 us of so many on an H200 (60 TFLOP/s instead of 30), those of fp16 hardly more where there are so few; the launch that
packs takes 5 to 6."""


@gpu_op(Conv)
class ConvOnGpu(GpuOp):
    """What computes it is chosen in `algorithms`."""

    placement = Placement.CHANNELS
    splits_constants = True

    def why_not(
        self, op: Conv, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Refuse weights that are computed at run time."""
        if any(t is not None and t.constant is None for t in inputs[1:]):
            return "the convolution's weights or bias are computed at run time; GPU kernels pack them beforehand"
        return None

    def rounds(self, op: Conv, inputs: Sequence[Tensor | None]) -> int:
        """Return the taps of an output; the tiled kernel takes sixteen and more at a time."""
        w = inputs[1]
        assert w is not None
        taps = prod(w.shape[1:])
        return taps // 8 if op.group == 1 and len(w.shape) <= 4 else 2 * taps

    def reads_planar(
        self, op: Conv, inputs: Sequence[TensorSpec | None], output: TensorSpec, caps: DeviceCaps, split_products: bool
    ) -> bool:
        """Accept an image of up to four channels where the portable GEMM runs, or would hardly be slower.

        Kernels on matrix units, which run fp16 and split fp32, load whole blocks of channels: for little work they are
        not worth it. Winograd's method is only for more channels.
        """
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
        if op.group != 1 or len(x.dims) > 4 or x.dims[1] > PACK or caps.without & {"conv_planar", "conv_gemm"}:
            return False
        on_units = split_products or (caps.matrix_units and x.dtype is DType.FLOAT16)
        return not on_units or prod(output.dims) * prod(w.dims[2:]) * PACK <= SAVED

    def launches(self, op: Conv, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Launch what is chosen."""
        x, w, bias = (*inputs, None)[:3]
        assert x is not None and w is not None and w.constant is not None
        window, shift = op.window(x.shape, w.shape), None if bias is None else bias.constant
        CONVOLUTIONS.launch(ConvPlan.of(k, window, x, outputs[0], w.constant, shift, group=op.group))
