"""The algorithms of convolutions. Add a new one as a file of its own, and a line here among its rivals.

docs/how-it-works.md ("Choosing a kernel") says where its template, self-test and cost belong.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from weft.kernels.chooser import Algorithm, Chooser, Rivals
from weft.ops.gpu.conv.depthwise import (
    DepthwiseInLoops,
    DepthwiseInTiles,
    facts_of_depthwise,
    why_not_depthwise,
)
from weft.ops.gpu.conv.depthwise_staged import DepthwiseStaged
from weft.ops.gpu.conv.direct import DirectConv
from weft.ops.gpu.conv.gemm import TiledConv
from weft.ops.gpu.conv.grouped import GroupedConv, facts_of_grouped, why_not_grouped
from weft.ops.gpu.conv.in_pieces import ConvInPieces
from weft.ops.gpu.conv.matrix import MatrixConv, facts_of_halves, why_not_halves
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem
from weft.ops.gpu.conv.split_floats import SplitConv, why_not_split
from weft.ops.gpu.conv.split_floats_wgmma import SplitWgmmaConv
from weft.ops.gpu.conv.unstaged import UnstagedConv
from weft.ops.gpu.conv.wgmma import WgmmaConv
from weft.ops.gpu.conv.wide import WideConv
from weft.ops.gpu.conv.winograd import WinogradConv
from weft.ops.gpu.conv.workgroup_gemm import GroupMatrixConv


def why_not_tiled(problem: ConvProblem) -> str | None:
    """Return why the portable kernels of ungrouped convolutions do not apply."""
    if not problem.ungrouped:
        return "it has groups or three dimensions"
    return "conv_gemm failed its self-test on this device" if TiledConv.name in problem.caps.without else None


def why_unfit(problem: ConvProblem, algorithm: Algorithm[ConvProblem, ConvPlan, Any]) -> str | None:
    """Return why an algorithm does not apply the steps of a problem's prologue."""
    if not problem.prologue_steps:
        return None
    if not algorithm.prologue:
        return "it loads vectors as they lie in memory"
    return "with steps as it loads, it failed its self-test" if algorithm.prologue in problem.caps.without else None


_caps = attrgetter("caps")
CONVOLUTIONS = Chooser[ConvProblem, ConvPlan](
    Rivals(
        "conv_matrix",
        (GroupMatrixConv(), WgmmaConv(), UnstagedConv(), MatrixConv()),
        facts_of_halves,
        why_not_halves,
        modelled=_caps,
    ),
    Rivals(
        "conv_split",
        (SplitWgmmaConv(), WinogradConv(), SplitConv(), TiledConv(splits_k=False), DirectConv()),
        ConvProblem.facts_by_channels,
        why_not_split,
        modelled=_caps,
    ),
    Rivals(
        "conv_gemm",
        (WinogradConv(), TiledConv(), WideConv(), ConvInPieces()),
        ConvProblem.facts_by_blocks,
        why_not_tiled,
        modelled=_caps,
    ),
    Rivals(
        "conv_depthwise",
        (DepthwiseInTiles(), DepthwiseStaged(), DepthwiseInLoops()),
        facts_of_depthwise,
        why_not_depthwise,
    ),
    Rivals("conv_grouped", (GroupedConv(),), facts_of_grouped, why_not_grouped),
    Rivals("conv_direct", (DirectConv(),)),
    why_unfit=why_unfit,
)
"""Chooses the algorithm of a convolution."""
