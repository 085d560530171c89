"""Softmax and log-softmax on GPUs, in NCHW."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.core.graph.layout import Shape
from weft.core.graph.tensor import TensorSpec
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.kernels.self_test_cases import one_node
from weft.kernels.special import register_family
from weft.ops.gpu.reduce import choose_group, walk_rounds
from weft.ops.gpu.teams import WITHOUT_TEAMS, choose_team
from weft.ops.shape import given
from weft.ops.softmax import AlongAxis, LogSoftmax, Softmax


@gpu_op(Softmax, LogSoftmax)
class SoftmaxOnGpu(GpuOp):
    """Softmax of lines of `length` elements, `inner` apart, in NCHW."""

    any_place = True
    computes_double = True

    def stores_wider(self, op: object, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Accept: the store converts to fp32."""
        return True

    def rounds(self, op: AlongAxis, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds of three passes, for the largest element, the sum, and the quotients."""
        lines, length, inner = _lines(op, given(inputs, 0).shape)
        return walk_rounds(caps, lines, length, inner == 1, 3)

    def launches(self, op: AlongAxis, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        """Launch one work-item, team or work-group a line."""
        x, y = given(inputs, 0), outputs[0]
        lines, length, inner = _lines(op, x.shape)
        log = isinstance(op, LogSoftmax)
        team = choose_team(k, (x, y), lines, length) if inner == 1 else None
        if team is not None:
            team.launch(k, "softmax_rows", {"x": x}, {"y": y}, lines=lines, length=length, variant={"log": log})
            return
        short, grid, local = choose_group(k, lines, length, inner == 1)
        k.launch(
            "softmax", reads={"x": x}, writes={"y": y}, ints={"LENGTH": length, "INNER": inner, "LINES": lines},
            variant={"log": log, "short": short}, grid=grid, local=local,
        )


def _lines(op: AlongAxis, shape: Shape) -> tuple[int, int, int]:
    """Return how many lines there are, their length, and the step within one."""
    axis = op.axis % max(len(shape), 1)
    length = prod(shape[axis:]) if op.flatten else prod(shape[axis : axis + 1])
    return prod(shape) // max(length, 1), length, 1 if op.flatten else prod(shape[axis + 1 :])


register_family(
    "softmax", "softmax",
    cases=lambda: (
        one_node(Softmax(axis=1), (2, 21, 9)),
        one_node(LogSoftmax(), (5, 300)),
        one_node(Softmax(axis=0), (70, 3)),
    ),
    forced=WITHOUT_TEAMS,
)
