"""Batch norm that could not be folded, on GPUs: a multiply-add with one factor a channel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.layout import Array, Shape
from weft.core.tensor import Tensor
from weft.kernels.launch import DeviceCaps, GpuOp, KernelBuilder, Placement, gpu_op
from weft.ops.gpu.elementwise import launch_expression
from weft.ops.norm import BatchNormalization


@gpu_op(BatchNormalization)
class BatchNormOnGpu(GpuOp):
    """y = x * factor + shift, both computed once from the four parameters."""

    placement = Placement.EITHER

    def why_not(
        self, op: BatchNormalization, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Refuse parameters that are computed at run time."""
        if any(t is None or t.constant is None for t in inputs[1:5]):
            return "the parameters of BatchNormalization are computed at run time"
        return None

    def fits_channels(self, op: BatchNormalization, inputs: Sequence[Shape | None], output: Shape) -> bool:
        """Accept any tensor with spatial axes."""
        return len(output) >= 3

    def launches(
        self, op: BatchNormalization, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch the multiply-add."""
        y = outputs[0]
        scale, shift, mean, var = (np.asarray(t.constant, np.float64) for t in inputs[1:5] if t is not None)
        factor = scale / np.sqrt(var + op.epsilon)
        shape = (1, -1, *[1] * (len(y.shape) - 2))

        def operand(key: str, value: Array) -> Tensor:
            made = value.astype(np.float32).reshape(shape)
            return k.constant(key, lambda: made, y.layout)

        pair = [operand("factor", factor), operand("shift", shift - mean * factor)]
        launch_expression(k, "({0} * {1} + {2})", [inputs[0], *pair], y)
