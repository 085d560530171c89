"""Softmax and log-softmax on GPUs, in NCHW."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.core.graph.tensor import Tensor, TensorSpec
from weft.kernels.launch import GpuOp, KernelBuilder, gpu_op
from weft.ops.gpu.reduce import choose_group
from weft.ops.gpu.teams import choose_team
from weft.ops.softmax import AlongAxis, LogSoftmax, Softmax


@gpu_op(Softmax, LogSoftmax)
class SoftmaxOnGpu(GpuOp):
    """Softmax of lines of `length` elements, `inner` apart, in NCHW."""

    def stores_wider(self, op: object, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Accept: the store converts to fp32."""
        return True

    def launches(
        self, op: AlongAxis, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch one work-item, team or work-group a line."""
        x, y = inputs[0], outputs[0]
        assert x is not None
        axis = op.axis % max(len(x.shape), 1)
        length = prod(x.shape[axis:]) if op.flatten else prod(x.shape[axis : axis + 1])
        inner = 1 if op.flatten else prod(x.shape[axis + 1 :])
        lines = prod(x.shape) // max(length, 1)
        log = isinstance(op, LogSoftmax)
        team = choose_team(k, lines, length) if inner == 1 else None
        if team is not None:
            team.launch(
                k, "softmax_rows", {"x": x}, {"y": y}, lines=lines, length=length, variant={"log": log}
            )
            return
        short, grid, local = choose_group(k, lines, length, inner == 1)
        k.launch(
            "softmax",
            reads={"x": x},
            writes={"y": y},
            ints={"LENGTH": length, "INNER": inner, "LINES": lines},
            variant={"log": log, "short": short},
            grid=grid,
            local=local,
        )
