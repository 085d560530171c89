"""The algorithms of convolutions. Add a new one as a file of its own, and a line among its rivals.

Those of convolutions without groups are in `ungrouped.py`, the others here. docs/internals/kernels.md ("Choosing a
kernel") says where its template, self-test and cost belong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.kernels.chooser import Algorithm, Chooser, Rivals
from weft.ops.gpu.conv.direct import DirectConv
from weft.ops.gpu.conv.grouped.blocks import GroupedConv, facts_of_grouped, why_not_grouped
from weft.ops.gpu.conv.grouped.depthwise import (
    DepthwiseInLoops,
    DepthwiseInTiles,
    facts_of_depthwise,
    why_not_depthwise,
)
from weft.ops.gpu.conv.grouped.depthwise_staged import DepthwiseStaged
from weft.ops.gpu.conv.grouped.one_by_one import ConvApart
from weft.ops.gpu.conv.integers.matrix import IntegerMatrixConv
from weft.ops.gpu.conv.integers.tiles import IntegerConv, why_not_of_integers
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem
from weft.ops.gpu.conv.ungrouped import ORDINARY


def why_unfit(problem: ConvProblem, algorithm: Algorithm[ConvProblem, ConvPlan, Any]) -> str | None:
    """Return why an algorithm does not apply the steps of a problem's prologue."""
    if not problem.prologue_steps:
        return None
    if not algorithm.prologue:
        return "it loads vectors as they lie in memory"
    return "with steps as it loads, it failed its self-test" if algorithm.prologue in problem.caps.without else None


def with_images(plan: ConvPlan, algorithm: Algorithm[ConvProblem, ConvPlan, Any]) -> ConvPlan:
    """Return the plan with the slices of volumes written as images, unless the algorithm reads them where they are."""
    if plan.stack is None or algorithm.reads_in_place(plan):
        return plan
    plan.stack.write()
    return replace(plan, stack=None)


CONVOLUTIONS = Chooser[ConvProblem, ConvPlan](
    Rivals(
        "conv_int8", (IntegerMatrixConv(), IntegerConv()), ConvProblem.facts_by_channels, why_not_of_integers,
        in_microseconds=lambda problem: not problem.caps.software,
    ),
    *ORDINARY,
    Rivals(
        "conv_depthwise",
        (DepthwiseInTiles(), DepthwiseStaged(), DepthwiseInLoops()),
        facts_of_depthwise,
        why_not_depthwise,
    ),
    Rivals(
        "conv_grouped",
        (GroupedConv(), ConvApart()),
        facts_of_grouped,
        why_not_grouped,
        in_microseconds=lambda problem: not problem.caps.software,
    ),
    Rivals("conv_direct", (DirectConv(),)),
    why_unfit=why_unfit,
    prepared=with_images,
)
"""Chooses the algorithm of a convolution."""
