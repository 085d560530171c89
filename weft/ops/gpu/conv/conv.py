"""Convolution on GPUs: which convolutions they run, and in which layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from weft.core.graph.layout import PACK
from weft.core.graph.tensor import TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.device_model import AlgorithmFigures
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, WantedLayout, gpu_op
from weft.kernels.launch import KernelBuilder, nested_rounds
from weft.kernels.self_test_cases import noise, several_nodes
from weft.kernels.special import register_family
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.integers.weights import integers_of, why_not_integers
from weft.ops.gpu.conv.problem import ConvPlan, on_matrix_units, why_not_computed, why_not_empty
from weft.ops.gpu.conv.volumes.slices import VolumeConv
from weft.ops.gpu.packing import weights_of
from weft.ops.shape import given, optional
from weft.ops.unary import Relu


@dataclass(frozen=True)
class PlanarFigures(AlgorithmFigures, section="conv_planar"):
    """When an image is read as NCHW."""

    most_products: int
    """Up to so many products, reading an image as NCHW beats packing it for matrix units."""


@gpu_op(Conv)
class ConvOnGpu(GpuOp):
    """`algorithms` chooses the kernel."""

    wanted_layout = WantedLayout.CHANNELS
    splits_constants = True
    laid_inputs = 1

    def why_not(self, op: Conv, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse an input of no elements, and weights that a run computes and that exceed a kernel argument packed."""
        return why_not_empty(inputs[0]) or why_not_computed(inputs[1], caps)

    def rounds(self, op: Conv, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds of the GEMM, which takes four channels at a time, or of loops over channels and taps."""
        w = given(inputs, 1)
        channels, *kernel = w.shape[1:]
        if op.group == 1 and (len(w.shape) <= 4 or w.constant is not None):
            return nested_rounds(-(-channels // PACK) * prod(kernel), PACK)
        return nested_rounds(channels, prod(kernel[:-1]), kernel[-1])

    def reads_planar(
        self, op: Conv, inputs: Sequence[TensorSpec | None], output: TensorSpec, caps: DeviceCaps, split_products: bool
    ) -> bool:
        """Accept an image of up to four channels where the portable GEMM runs, or would hardly be slower.

        Kernels on matrix units, which run fp16 and split fp32, load whole blocks of channels: for little work they save
        less than the launch that packs them. Winograd's method is only for more channels.
        """
        x, w = given(inputs, 0), given(inputs, 1)
        if op.group != 1 or len(x.dims) > 4 or x.dims[1] > PACK or caps.without & {"conv_planar", "conv_gemm"}:
            return False
        if w.grid is not None and caps.dot8:
            return False  # in blocks of channels it may be integers
        if not on_matrix_units(caps, x.dtype, split_products):
            return True
        return prod(output.dims) * prod(w.dims[2:]) * PACK <= caps.model.of(PlanarFigures).most_products

    def takes_integers(
        self, op: Conv, inputs: Inputs, outputs: Outputs, read: Sequence[bool], caps: DeviceCaps
    ) -> bool:
        """Accept an image of integers, but not floats beside it: depthwise, or with weights that are integers, too."""
        x, w = given(inputs, 0), given(inputs, 1)
        if not read[0] or len(x.shape) > 4 or w.constant is None:
            return False
        if op.group > 1:
            return op.group == x.shape[1] == w.shape[0]
        return why_not_integers(w, optional(inputs, 2), 0, caps) is None

    def launches(self, op: Conv, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch the algorithm that the chooser takes."""
        x, w, bias = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
        window, shift = op.window(x.shape, w.shape), None if bias is None else weights_of(bias)
        if x.quantised is not None and op.group == 1:
            assert w.constant is not None
            integers = integers_of(w, w.constant, x.quantised, 0)
            made = ConvPlan.of(k, window, x, outputs[0], integers.late, shift, integers=integers)
            CONVOLUTIONS.launch(made)
            return
        volumes = VolumeConv.of(k, window, x, weights_of(w), shift, outputs[0], op.group)
        if volumes is None or not volumes.launch():
            CONVOLUTIONS.launch(ConvPlan.of(k, window, x, outputs[0], weights_of(w), shift, group=op.group))


register_family(
    "conv_planar", "convolutions of images of few channels in place",
    cases=lambda: (
        several_nodes(
            "Conv of (1, 3, 23, 21) with (8, 3, 5, 5)",
            [
                (Conv(kernel_shape=(5, 5), strides=(2, 2), pads=(2, 2, 2, 2)), ("x", "w"), "y"),
                (Relu(), ("y",), "z"),
            ],
            {"x": noise(1, 3, 23, 21)},
            {"w": noise(8, 3, 5, 5)},
        ),
    ),
    templates=("conv_gemm",), whole=False, fallback="conversions of layouts before them", seconds=0.45,
)
