"""Convolutions of floats on GPUs in NCHW, one element a work-item. They run float64, which no other kernel takes."""

from __future__ import annotations

from math import prod

from weft.core.graph.tensor import Tensor
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder, nested_rounds
from weft.kernels.self_test_cases import noise64, one_node
from weft.kernels.special import register_family
from weft.ops.conv import PlanarConv, PlanarConvTranspose
from weft.ops.gpu.conv.problem import window_constants
from weft.ops.shape import given, optional
from weft.ops.window import Window


@gpu_op(PlanarConv)
class PlanarConvOnGpu(GpuOp):
    """An item sums up the products of one output."""

    computes_double = True

    def rounds(self, op: PlanarConv, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the products that make a sum."""
        return nested_rounds(*given(inputs, 1).shape[1:])

    def launches(self, op: PlanarConv, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, w = given(inputs, 0), given(inputs, 1)
        _launch(k, "planar_conv", inputs, outputs[0], op.window(x.shape, w.shape), op.group)


@gpu_op(PlanarConvTranspose)
class PlanarConvTransposeOnGpu(GpuOp):
    """An item gathers the products that reach one output."""

    computes_double = True

    def rounds(self, op: PlanarConvTranspose, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the taps, and for each the channels of a group."""
        channels, _, *kernel = given(inputs, 1).shape
        return nested_rounds(*kernel, channels // op.group)

    def launches(self, op: PlanarConvTranspose, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        x, w = given(inputs, 0), given(inputs, 1)
        _launch(k, "planar_conv_transpose", inputs, outputs[0], op.window(x.shape, w.shape), op.group)


def _launch(k: KernelBuilder, template: str, inputs: Inputs, y: Tensor, window: Window, group: int) -> None:
    x, w, bias = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
    channels, total = {"CI": x.shape[1], "CO": y.shape[1]}, prod(y.shape)
    groups = {"IN_GROUP": x.shape[1] // group, "OUT_GROUP": y.shape[1] // group}
    k.launch(
        template, reads={"x": x, "w": w, **({"b": bias} if bias is not None else {})}, writes={"y": y},
        ints={**window_constants(window), **channels, **groups, "TOTAL": total}, items=total,
    )


register_family(
    "planar_conv", "convolutions of float64",
    cases=lambda: (
        one_node(
            PlanarConv(group=2, strides=(2, 1), pads=(1, 0, 2, 1)),
            noise64(2, 4, 7, 6), noise64(6, 2, 3, 2), noise64(6),
            tolerance=1e-14,
        ),
        one_node(
            PlanarConvTranspose(group=2, strides=(2, 1)), noise64(2, 4, 3, 5), noise64(4, 3, 3, 2), noise64(6),
            tolerance=1e-14,
        ),
    ),
    templates=("planar_conv", "planar_conv_transpose"), claimed=lambda caps: caps.doubles,
)
