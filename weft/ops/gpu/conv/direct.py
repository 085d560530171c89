"""Convolution by the direct kernel: any groups, up to three dimensions, four channels of a pixel by each work-item."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from weft.core.graph.layout import PACK
from weft.kernels.chooser import Algorithm, Candidate
from weft.kernels.special import register_family
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem, divisor, pieces

DIRECT = "convolutions by the direct kernel"
MOST_WIDE = 4
"""Most taps of a line that an item loads at once."""


class DirectTile(NamedTuple):
    """The only tile: there is nothing to choose."""


class DirectConv(Algorithm[ConvProblem, ConvPlan, DirectTile]):
    """The general kernel; weights beyond the range of one argument are passed in pieces."""

    name = "conv_direct"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse images that are not packed, and problems for tiled kernels."""
        if not problem.loads_vectors:
            return "it loads four channels of a pixel as one vector"
        if problem.ungrouped and "conv_gemm" not in problem.caps.without:
            return "tiles reuse more of what they load"
        return None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the only tile."""
        return [Candidate(DirectTile(), 1.0)]

    def launch(self, plan: ConvPlan, tile: DirectTile) -> None:
        """Launch one kernel for each piece of the weights."""
        k, p = plan.k, plan.problem
        window, out_group = p.constants, p.channels_out // p.group
        for first, count in pieces(p, p.channels_in * p.taps * PACK * p.weights.itemsize):
            packed = plan.filters(f"direct.{first}", first * PACK, min(count * PACK, p.channels_out - first * PACK))
            total = p.images * count * prod(p.window.outputs)
            k.launch(
                "conv_direct", reads={"x": plan.x, "w": packed, **plan.bias_vector()}, writes={"y": plan.y},
                ints={
                    **window, "FIRST": first, "COUNT": count, "TOTAL": total,
                    "CO": p.channels_out, "OUT_GROUP": out_group, "IN_GROUP": p.channels_in,
                },
                variant={"joint": p.group == 1 or out_group % PACK == 0, "wide": divisor(window["KW"], MOST_WIDE)},
                items=total,
            )


register_family(
    "conv_direct", DIRECT,
    cases=lambda: (
        conv_with((3, 9, 6, 5), (6, 3, 3, 3), group=3, strides=(2, 1)),
        conv_with((2, 5, 5, 6, 7), (5, 1, 1, 2, 3), group=5, strides=(2, 1, 2), pads=(0, 1, 0, 0, 0, 1)),
        conv_with((1, 6, 15), (6, 3, 4), group=2, dilations=(3,), pads=(3, 0), bias=False),
    ),
    seconds=0.4,
)
