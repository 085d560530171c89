"""Convolution by the direct kernel: any groups, up to three dimensions; an item computes four channels of a pixel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

from weft.core.graph.layout import PACK, Layout
from weft.kernels.algorithms import Algorithm, Candidate
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem, pieces


class DirectTile(NamedTuple):
    """The one way there is: nothing is divided."""


class DirectConv(Algorithm[ConvProblem, ConvPlan, DirectTile]):
    """The general kernel; weights beyond a kernel argument's range go in pieces."""

    name = "conv_direct"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Return why another kernel is needed."""
        if problem.pooled or problem.planar:
            return "it loads pixels of four channels as they lie"
        if problem.ungrouped and "conv_gemm" not in problem.caps.without:
            return "tiles reuse more of what they load"
        return None

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the one there is."""
        return [Candidate(DirectTile(), 1.0)]

    def launch(self, plan: ConvPlan, tile: DirectTile) -> None:
        """Launch one kernel for each piece of the weights."""
        k, p, weight = plan.k, plan.problem, plan.weight
        for first, count in pieces(p, p.channels_in * p.taps * PACK * weight.dtype.itemsize):
            part = weight[first * PACK : (first + count) * PACK]
            packed = k.constant(f"direct.{first}", partial(part.reshape, 1, len(part), -1), Layout.NC4HW4)
            total = p.images * count * prod(p.window.outputs)
            grid, local = k.for_items(total)
            k.launch(
                "conv_direct",
                reads={"x": plan.x, "w": packed, **plan.bias_vector()},
                writes={"y": plan.y},
                ints={
                    **p.constants, "FIRST": first, "COUNT": count, "TOTAL": total,
                    "CO": p.channels_out, "OUT_GROUP": p.channels_out // p.group, "IN_GROUP": p.channels_in,
                },
                grid=grid,
                local=local,
            )  # fmt: skip
