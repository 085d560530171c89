"""Convolution in a few wide groups on GPUs: each group as a convolution without groups, in place.

The items of `conv_grouped` load weights and pixels from the cache for themselves: in narrow groups there is little to
share. In wide groups the kernels of ordinary convolutions use each number that they load many times, and run on matrix
units where there are any. A group's channels are whole blocks, so a launch reads them where they lie and writes its
results where they belong, for any number of images: the steps from image to image and from pixel to pixel are constants
of every kernel. So the kernels are those of ordinary convolutions, letter for letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from weft.core.graph.tensor import Tensor
from weft.errors import ExecutionError
from weft.kernels.chooser import NEVER, Algorithm, Candidate, Chooser, Decision
from weft.kernels.special import on_many_units, register_family
from weft.ops.gpu.conv.cases import conv_with
from weft.ops.gpu.conv.gemm.large_weights import ConvInPieces
from weft.ops.gpu.conv.problem import COMPUTED, ConvPlan, ConvProblem
from weft.ops.gpu.conv.ungrouped import ORDINARY
from weft.ops.gpu.packing import LateWeights, part_of

MOST_GROUPS = 16
"""With more groups, launches of almost no work take longer, one after the other, than `conv_grouped` does mostly."""
OFFERED = 8
"""Most ways to compute a group that are offered to tuning."""
OF_A_GROUP = Chooser[ConvProblem, ConvPlan](
    # A choice within a choice would not be timed with it.
    *(replace(r, algorithms=tuple(a for a in r.algorithms if not isinstance(a, ConvInPieces))) for r in ORDINARY)
)
"""Decides how a group is computed."""


@dataclass(frozen=True)
class GroupsApart:
    """The tile of another algorithm, with which each group is computed."""

    tile: Any


def of_a_group(problem: ConvProblem) -> ConvProblem:
    """Return the problem that each group is."""
    return replace(problem, group=1, channels_out=problem.channels_out // problem.group)


class ConvApart(Algorithm[ConvProblem, ConvPlan, GroupsApart]):
    """An ordinary convolution for each group, all with the same tile."""

    name = "conv_apart"

    def why_not(self, problem: ConvProblem) -> str | None:
        """Refuse many groups, what is computed at run time, and devices whose times nobody can estimate."""
        if self.name in problem.caps.without:
            return "its self-test failed on this device"
        if problem.caps.software:
            return "there is no estimate of its time on a CPU"
        if problem.group > MOST_GROUPS:
            return f"the launches of more than {MOST_GROUPS} groups take longer than their work"
        if problem.computed:
            return COMPUTED
        if problem.bias_computed:
            return "its bias is computed at run time, and it packs that beforehand"
        decided = _decided(problem)
        if decided is None:
            return "no kernel of convolutions without groups fits a group"
        return None if decided.in_microseconds else "there is no estimate of the time of a group on this device"

    def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
        """Return the fastest ways to compute a group, by the time of all groups one after the other.

        So a queue in order runs them. Where launches overlap, and in a chain, they run side by side: that takes less,
        by what one group leaves idle, but nobody has timed it. Each launch after the first also waits to be started.
        """
        decided, waits = _decided(problem), (problem.group - 1) * problem.caps.model.between_launches_us
        assert decided is not None, "`why_not` asks for it"
        every = decided.candidates.values()
        times = {each.tile: problem.group * each.weighed + waits for each in every if each.cost < NEVER}
        # The first is there by a rule of thumb, and others may be expected to be a little faster.
        least = next(iter(times.values()))
        return [Candidate(GroupsApart(tile), max(time, least)) for tile, time in islice(times.items(), OFFERED)]

    def launch(self, plan: ConvPlan, tile: GroupsApart) -> None:
        """Launch each group."""
        decided = _decided(plan.problem)
        assert decided is not None, "`why_not` asks for it"
        chosen = decided.candidates[repr(tile.tile)]
        assert chosen.algorithm is not None
        for number in range(plan.problem.group):
            chosen.algorithm.launch(_group(plan, number), chosen.tile)


def _decided(problem: ConvProblem) -> Decision | None:
    """Return how a group is computed, or None if no kernel fits."""
    try:
        return OF_A_GROUP.decide(of_a_group(problem))
    except ExecutionError:
        return None


def _group(plan: ConvPlan, number: int) -> ConvPlan:
    """Return the plan of one group, on the channels of the image and of the output that are its own."""
    p = plan.problem
    one, (images, _, *places) = of_a_group(p), plan.x.shape
    some = slice(number * one.channels_out, (number + 1) * one.channels_out)
    k, y = plan.k.for_channels(plan.y, number * one.blocks, one.channels_out)
    x = plan.k.from_block(plan.x, (images, p.channels_in, *places), number * p.blocks_in)
    assert not isinstance(plan.bias, (Tensor, LateWeights)), "`why_not` refuses it"
    bias = None if plan.bias is None else plan.bias[some]
    return replace(plan, k=k, problem=one, x=x, y=y, weights=part_of(plan.weight, some), bias=bias)


register_family(
    "conv_apart", "convolutions of each group by itself",
    cases=lambda: (
        conv_with(
            (2, 72, 9, 10), (40, 36, 3, 3), group=2, strides=(2, 1), pads=(1, 0, 1, 2),
            prefer="GroupsApart(tile=GemmTile(",
        ),
        conv_with((1, 60, 21), (48, 20, 1), group=3, bias=False, prefer="GroupsApart(tile=GemmTile("),
    ),
    templates=("conv_gemm",), whole=False, anywhere=True, fallback="convolutions in groups of whole blocks",
    forced=on_many_units, seconds=0.65,
)
