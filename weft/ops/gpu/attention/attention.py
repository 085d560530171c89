"""Attention on GPUs, and the algorithms that compete for it."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np

from weft.core.graph.index_map import IndexMap
from weft.core.graph.layout import Shape
from weft.kernels.chooser import Chooser, Rivals
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.gpu_op import GpuOp, Inputs, Outputs, gpu_op
from weft.kernels.launch import KernelBuilder
from weft.ops.attention import Attention
from weft.ops.gpu.attention.matrix import MatrixAttention
from weft.ops.gpu.attention.problem import AttentionPlan, AttentionProblem
from weft.ops.gpu.attention.tiled import TiledAttention, tiled_rounds, why_not

SINGLE = np.finfo(np.float32)


def _is_normal(number: float) -> bool:
    """Tell whether fp32 holds a number with all its digits, or it is zero."""
    return not number or float(SINGLE.tiny) <= abs(number) <= float(SINGLE.max)


def _is_estimated(problem: AttentionProblem) -> bool:
    return not problem.caps.software


ATTENTIONS = Chooser[AttentionProblem, AttentionPlan](
    Rivals("attention_matrix", (MatrixAttention(),), AttentionProblem.facts, in_microseconds=_is_estimated),
    Rivals("attention", (TiledAttention(),), AttentionProblem.facts, in_microseconds=_is_estimated),
)
"""Chooses the algorithm of an attention: matrix units if they can compute it."""


@gpu_op(Attention)
class AttentionOnGpu(GpuOp):
    """Heads may be apart, side by side or packed: the kernel gets their offsets and steps."""

    stores_by_place = True

    def why_not(self, op: Attention, inputs: Inputs, outputs: Outputs, caps: DeviceCaps) -> str | None:
        """Refuse attention to nothing, heads too large for registers or work-group memory, and extreme caps."""
        if op.softcap and not all(map(_is_normal, (op.scale / op.softcap, op.softcap / log(2)))):
            return f"fp32 does not hold what a cap of {op.softcap:g} multiplies scores by"
        return why_not(caps, op.extents([t.shape for t in inputs[: op.count()] if t is not None]))

    def takes_place(
        self, op: Attention, position: int, shape: Shape, places: IndexMap, constant: Sequence[bool]
    ) -> bool:
        """Accept any mask, and Q, K, V and the result where the elements of a head, or the rows, lie side by side."""
        if position >= op.count():
            return True
        found = places.steps(shape)
        return found is not None and 1 in found[0][-2:] and (position >= 0 or not found[1])

    def rounds(self, op: Attention, inputs: Inputs, caps: DeviceCaps) -> int:
        """Return the rounds over blocks of keys: the kernel loads and multiplies a block in each."""
        each = op.extents([t.shape for t in inputs[: op.count()] if t is not None])
        return tiled_rounds(caps, each)

    def launches(self, op: Attention, k: KernelBuilder, inputs: Inputs, outputs: Outputs) -> None:
        ATTENTIONS.launch(AttentionPlan.of(op, k, inputs, outputs[0]))
