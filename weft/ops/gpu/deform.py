"""DeformConv and Col2Im on GPUs: an item sums up one element of the output."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder, nested_rounds
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.deform import Col2Im, DeformConv
from weft.ops.gpu.integers import INTEGERS
from weft.ops.shape import given, ints


@gpu_op(DeformConv)
class DeformConvOnGpu(GpuOp):
    """A direct convolution, in NCHW."""

    computes_double = True

    def rounds(self, op: DeformConv, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the number of products that make an output."""
        channels, *kernel = given(inputs, 1).shape[1:]
        return nested_rounds(prod(kernel), channels)

    def launches(self, op: DeformConv, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item an output."""
        x, w, offset, bias, mask = (*inputs, None, None)[:5]
        y = outputs[0]
        assert x is not None and w is not None and offset is not None
        window = op.window(x.shape, w.shape)
        sizes = {
            "TOTAL": prod(y.shape),
            "C": w.shape[1],
            "CHANNELS_IN": x.shape[1],
            "CHANNELS_OUT": w.shape[0],
            "OUT_C": w.shape[0] // op.group,
            "OFF_C": x.shape[1] // op.offset_group,
            "GROUPS_OFF": op.offset_group,
        }
        names = {"KH KW": window.kernel, "H W": window.inputs, "OH OW": window.outputs}
        names |= {"STRIDE_Y STRIDE_X": window.strides, "DILATION_Y DILATION_X": window.dilations}
        names |= {"PAD_Y PAD_X": window.begin}
        for pair, values in names.items():
            sizes |= dict(zip(pair.split(), values, strict=True))
        optional = {name: t for name, t in (("bias", bias), ("mask", mask)) if t is not None}
        k.launch(
            "deform_conv", reads={"x": x, "w": w, "offset": offset, **optional}, writes={"y": y}, ints=sizes,
            items=sizes["TOTAL"],
        )


@gpu_op(Col2Im)
class Col2ImOnGpu(GpuOp):
    """Each pixel looks for the windows that it lies in."""

    integers = INTEGERS
    computes_double = True

    def why_not(self, op: Col2Im, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse shapes that are computed at run time."""
        known = all(t is not None and t.constant is not None for t in inputs[1:])
        return None if known else "its image_shape or block_shape is computed at run time"

    def rounds(self, op: Col2Im, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the number of taps."""
        block = inputs[2]
        assert block is not None and block.constant is not None
        return nested_rounds(*ints(block.constant))

    def launches(self, op: Col2Im, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item a pixel."""
        x, image, block = inputs[0], inputs[1], inputs[2]
        assert x is not None and image is not None and image.constant is not None
        assert block is not None and block.constant is not None
        sizes, kernel = ints(image.constant), ints(block.constant)
        window = op.window(x.shape, sizes, kernel)
        numbers = {"TOTAL": prod(outputs[0].shape), "TAPS": prod(kernel), "WINDOWS": prod(window.outputs)}
        letters = {"I": window.inputs, "K": window.kernel, "O": window.outputs, "S": window.strides}
        for letter, values in {**letters, "D": window.dilations, "P": window.begin}.items():
            numbers |= {f"{letter}{d}": value for d, value in enumerate(values)}
        k.launch(
            "col2im", reads={"x": x}, writes={"y": outputs[0]}, ints=numbers, variant={"rank": window.rank},
            items=numbers["TOTAL"],
        )
register_family(
    "deform_conv", "convolutions with offsets",
    cases=lambda: (
        one_node(
            DeformConv(offset_group=2, pads=(1, 0, 0, 1)), (1, 4, 5, 4), (3, 4, 2, 2), (1, 16, 5, 4), (3,),
            (1, 8, 5, 4), constants=(1, 3),
        ),
    ),
)
register_family(
    "col2im", "sums of windows",
    cases=lambda: (
        one_node(Col2Im(strides=(2, 1)), (2, 12, 6), np.array([5, 4]), np.array([2, 2]), constants=(1, 2)),
    ),
)
