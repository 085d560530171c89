"""Attention on GPUs, and the algorithms that compete for it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.graph.tensor import Tensor
from weft.kernels.algorithms import Chooser, Rivals
from weft.kernels.launch import DeviceCaps, GpuOp, KernelBuilder, gpu_op
from weft.ops.attention import Attention
from weft.ops.gpu.attention.matrix import MatrixAttention
from weft.ops.gpu.attention.problem import AttentionPlan, AttentionProblem
from weft.ops.gpu.attention.tiled import TiledAttention, why_not

ATTENTIONS = Chooser[AttentionProblem, AttentionPlan](
    Rivals("attention_matrix", (MatrixAttention(),), AttentionProblem.facts),
    Rivals("attention", (TiledAttention(),), AttentionProblem.facts),
)
"""Which of them computes an attention: matrix units where they can."""


@gpu_op(Attention)
class AttentionOnGpu(GpuOp):
    """Heads apart, side by side or packed: the kernel is told where they lie."""

    def why_not(
        self, op: Attention, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], caps: DeviceCaps
    ) -> str | None:
        """Refuse heads too large for registers or shared memory."""
        return why_not(caps, op.extents([t.shape for t in inputs[: op.count()] if t is not None]))

    def launches(
        self, op: Attention, k: KernelBuilder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """Launch what is chosen."""
        ATTENTIONS.launch(AttentionPlan.of(op, k, inputs, outputs[0]))
