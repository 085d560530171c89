"""Gates: what a kernel makes of two values that it computes, and stores in place of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.graph.fused_op import Step
from weft.core.graph.tensor import Tensor

BESIDE = 0
"""The operand of a step that stands for the second of the two values."""


@dataclass(frozen=True, eq=False, slots=True)
class Gate:
    """Element-wise steps that make one value of two.

    The first of the two is the running value before the first step. An operand of a step is the running value, an
    earlier one, BESIDE, or the position of a scalar constant in `inputs`.
    """

    steps: Sequence[Step]
    inputs: Sequence[Tensor | None]
