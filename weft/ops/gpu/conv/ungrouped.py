"""The algorithms of convolutions without groups, which `grouped/one_by_one.py` runs on each group of others."""

from __future__ import annotations

from operator import attrgetter

from weft.kernels.chooser import Rivals
from weft.ops.gpu.conv.direct import DirectConv
from weft.ops.gpu.conv.gemm.large_weights import ConvInPieces
from weft.ops.gpu.conv.gemm.tiles import TiledConv
from weft.ops.gpu.conv.gemm.wide_tiles import WideConv
from weft.ops.gpu.conv.matrix.split_floats import SplitConv, why_not_split
from weft.ops.gpu.conv.matrix.split_floats_wgmma import SplitWgmmaConv
from weft.ops.gpu.conv.matrix.staged import MatrixConv, facts_of_halves, why_not_halves
from weft.ops.gpu.conv.matrix.unstaged import UnstagedConv
from weft.ops.gpu.conv.matrix.wgmma import WgmmaConv
from weft.ops.gpu.conv.matrix.workgroup import GroupMatrixConv
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem
from weft.ops.gpu.conv.winograd import WinogradConv


def why_not_tiled(problem: ConvProblem) -> str | None:
    """Return why the portable kernels of ungrouped convolutions do not apply."""
    if not problem.ungrouped:
        return "it has groups or three dimensions"
    return "conv_gemm failed its self-test on this device" if TiledConv.name in problem.caps.without else None


_caps = attrgetter("caps")
ORDINARY: tuple[Rivals[ConvProblem, ConvPlan], ...] = (
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
)
