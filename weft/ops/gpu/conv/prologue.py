"""A pointwise convolution that applies element-wise steps to its image as it loads it: a prologue.

What comes before a convolution and is read by it alone need be no launch: a batch norm and a ReLU on values that others
read without them, or the scale of each channel in squeeze-and-excite. Each group of the GEMM that loads a vector
applies the steps again, so they must be cheap, and the output channels few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, cast

from weft.core.graph.fused_op import Step, pick_operands
from weft.core.graph.layout import Array, Shape
from weft.core.graph.op import Constants, Op, OpClass
from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.launch import (
    CONV_PROLOGUE,
    DeviceCaps,
    GpuOp,
    KernelBuilder,
    Prologue,
    WantedLayout,
    gpu_op,
)
from weft.ops.conv import Conv
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.gemm import TiledConv
from weft.ops.gpu.conv.problem import ConvPlan, on_matrix_units


@dataclass(frozen=True)
class PrologueConv(Op):
    """Element-wise steps on an image and the convolution of their result as one op; only backends make it.

    The convolution takes the first `arity` inputs. The steps read what lies behind these, the image, and each other's
    results, as those of a `Fused` node do.
    """

    type: ClassVar[str] = "PrologueConv"
    op_class: ClassVar[OpClass] = "reduction"
    conv: Conv
    arity: int
    steps: tuple[Step, ...]

    def infer(self, inputs: Sequence[TensorSpec | None], constants: Constants) -> tuple[TensorSpec, ...]:
        """Return the spec of the output: the steps change neither the shape nor the type."""
        return self.conv.inferred(inputs[: self.arity], [None, *constants[1 : self.arity]])

    def reference(self, *inputs: Array | None) -> Array:
        """Return the output."""
        made = list(inputs[:1])
        for number, step in enumerate(self.steps):
            made.append(cast(Array, step.op.reference(*pick_operands(step, number, inputs, made))))
        return self.conv.reference(made[-1], *inputs[1 : self.arity])

    def flops(self, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
        """Return the convolution's operations, and one for each element and step."""
        return self.conv.flops(inputs[: self.arity], outputs) + len(self.steps) * prod(inputs[0] or ())


def why_no_prologue(
    conv: Conv, x: TensorSpec, weight: Shape, caps: DeviceCaps, split_products: bool
) -> str | None:
    """Return why a convolution does not apply steps as it loads; None if it does, for less than a launch takes."""
    if {CONV_PROLOGUE, TiledConv.name} & caps.without:
        return "its kernels failed their self-test"
    if conv.group != 1 or len(x.dims) > 4 or not conv.window(x.dims, weight).is_pointwise:
        return "it is no plain 1 x 1 convolution"
    if on_matrix_units(caps, x.dtype, split_products):
        return "its kernels on matrix units load vectors as they lie in memory"
    if weight[0] > caps.model.prologue_channels:
        return f"its groups would apply the steps again for each few of its {weight[0]} output channels"
    return None


@gpu_op(PrologueConv)
class PrologueConvOnGpu(GpuOp):
    """The portable GEMM, which applies the steps as it loads."""

    wanted_layout = WantedLayout.CHANNELS
    splits_constants = True

    def launches(
        self, op: PrologueConv, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch the GEMM."""
        x, w, b = (*inputs[: op.arity], None)[:3]
        assert x is not None and w is not None and w.constant is not None
        bias, window = None if b is None else b.constant, op.conv.window(x.shape, w.shape)
        prologue = Prologue("x", op.steps, inputs)
        CONVOLUTIONS.launch(ConvPlan.of(k, window, x, outputs[0], w.constant, bias, prologue=prologue))
