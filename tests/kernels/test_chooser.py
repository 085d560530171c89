"""The chooser: who is asked, what is taken, and what it says of the rest; and that all algorithms keep the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

import weft
from benchmarks.cards import OF_WORKGROUPS
from tests.helpers.cards import H200
from tests.helpers.conv_problems import conv_problem
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu.device.profiles import PROFILES
from weft.core.graph.dtypes import DType
from weft.errors import ExecutionError
from weft.kernels.chooser import (
    NEVER,
    Algorithm,
    Candidate,
    Chooser,
    Decision,
    Rivals,
    candidates_of,
)
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.launch import KernelBuilder
from weft.kernels.matrix_shapes import HALVES, WARPGROUP_HALVES
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.gemm.tiles import TiledConv
from weft.ops.gpu.conv.problem import ConvPlan, ConvProblem


@dataclass(frozen=True)
class Halving:
    """A plan whose problem is a number."""

    k: KernelBuilder
    problem: int


class Fixed(Algorithm[int, Halving, str]):
    """Takes even numbers up to a largest one; notes what it launches."""

    def __init__(self, name: str, cost: float, largest: int = 100) -> None:
        self.name, self._cost, self._largest, self.launched = name, cost, largest, list[str]()

    def why_not(self, problem: int) -> str | None:
        return None if problem <= self._largest else f"{problem} is more than {self._largest}"

    def candidates(self, problem: int) -> Sequence[Candidate]:
        return [] if problem % 2 else [Candidate(f"{self.name}{k}", self._cost + k) for k in range(2)]

    def launch(self, plan: Halving, tile: str) -> None:
        self.launched.append(tile)


class Taking(KernelBuilder):
    """Takes a candidate by its text, if it is offered."""

    add = constant = scratch = shares_memory = lambda self, *_, **__: pytest.fail("nothing is launched")  # type: ignore[assignment]

    def __init__(self, text: str = "") -> None:
        self._text = text

    def choose(self, decision: Decision) -> Candidate:
        return decision.candidates.get(self._text) or super().choose(decision)


def odd_numbers(problem: int) -> str | None:
    return None if problem % 2 == 0 else "it is odd"


def test_the_cheapest_that_fits_is_taken_and_the_others_are_offered() -> None:
    dear, cheap, small = Fixed("dear", 3.0), Fixed("cheap", 1.0), Fixed("small", 0.5, largest=4)
    chooser = Chooser[int, Halving](Rivals("numbers", (dear, cheap, small), lambda n: {"n": n}))
    decision = chooser.decide(6)
    assert decision.texts == ("'cheap0'", "'cheap1'", "'dear0'", "'dear1'") and decision.default == "'cheap0'"
    assert decision.facts == {"n": 6} and decision.refused == (("small", "6 is more than 4"),)
    chooser.launch(Halving(Taking(), 6))
    chooser.launch(Halving(Taking("'dear1'"), 6))
    chooser.launch(Halving(Taking("'small0'"), 6))
    chooser.launch(Halving(Taking(), 4))
    assert (cheap.launched, dear.launched, small.launched) == (["cheap0", "cheap0"], ["dear1"], ["small0"])


def test_the_first_rivals_of_which_one_fits_decide() -> None:
    even, any_ = Fixed("even", 5.0, largest=10), Fixed("any", 1.0)
    chooser = Chooser[int, Halving](Rivals("even", (even,), why_not=odd_numbers), Rivals("any", (any_,)))
    assert chooser.decide(8).name == "even" and chooser.decide(8).unasked == ("any",)
    assert list(chooser.decide(8).lines())[-1] == "any: not asked, since 'even' comes first"
    assert chooser.decide(12).refused == (("even", "12 is more than 10"),)
    with pytest.raises(ExecutionError, match="even: it is odd; any: the device has no room"):
        chooser.decide(9)


def test_a_decision_says_who_was_asked_what_each_costs_and_what_is_taken() -> None:
    never = Decision("n", {}, {"a": Candidate("a", 1.0), "b": Candidate("b", NEVER)})
    assert str(never) == "a, cost 1.00, taken\nb, for tuning"
    chooser = Chooser[int, Halving](Rivals("none", (), why_not=lambda _: "why"), Rivals("r", (Fixed("x", 2.0),)))
    lines = list(chooser.decide(2).lines(taken="'x1'"))
    assert lines == ["none: no, why", "x: 'x0', cost 2.00", "x: 'x1', cost 3.00, taken: tuning found it best"]


def test_a_problem_is_decided_once() -> None:
    asked: list[int] = []
    chooser = Chooser[int, Halving](Rivals("r", (Fixed("x", 1.0),), why_not=lambda n: asked.append(n)))  # type: ignore[func-returns-value]
    assert chooser.decide(2) is chooser.decide(2) and asked == [2]


def test_estimates_do_not_outdo_the_one_that_is_expected_to_be_best() -> None:
    made = candidates_of(["b", "a", "c", "b"], {"a": 1.0, "b": 2.0, "c": 6.0}.__getitem__, base=0.5)
    assert made == [Candidate("b", 0.5), Candidate("a", 0.5), Candidate("c", 1.5)]


# -- convolutions ------------------------------------------------------------------------------------------------

OPENCL = replace(H200, channels_last=True, shuffles=True, matrices=(HALVES, WARPGROUP_HALVES))
VULKAN = replace(H200, channels_last=True, shuffles=True, matrices=(HALVES, *OF_WORKGROUPS))
DEVICES = {
    "opencl": OPENCL, "vulkan": VULKAN, "plain": replace(H200, matrices=()),
    "software": DeviceCaps(software=True), "smallest": PROFILES["smallest"].apply(VULKAN), "least": DeviceCaps(),
}
SHAPES = [((n, ci, s, s), (co, ci, k, k)) for n in (1, 32) for ci, co, s, k in (
    (3, 64, 56, 7), (64, 64, 56, 3), (512, 512, 7, 3), (256, 1024, 14, 1), (8, 8, 5, 1), (2048, 4096, 1, 1),
)]


def problems(caps: DeviceCaps) -> list[ConvProblem]:
    """Return convolutions in both types."""
    made = [conv_problem(x, w, caps) for x, w in SHAPES]
    made += [conv_problem(x, w, caps, dtype=DType.FLOAT32, split_products=s) for x, w in SHAPES for s in (False, True)]
    return made


@pytest.mark.parametrize("device", DEVICES)
def test_algorithms_keep_the_rules(device: str) -> None:
    """The first candidate is the cheapest, nothing is offered twice, and each decision can be told."""
    for problem in problems(DEVICES[device]):
        decision = CONVOLUTIONS.decide(problem)
        for rivals in CONVOLUTIONS.rivals:
            if rivals.why_not(problem) is None:
                for algorithm in rivals.algorithms:
                    offered = algorithm.candidates(problem) if algorithm.why_not(problem) is None else []
                    costs, tiles = [each.cost for each in offered], [each.tile for each in offered]
                    assert costs == [] or (min(costs) == costs[0] > 0 and len(set(tiles)) == len(tiles))
        assert str(decision).count(", taken") == 1


def test_a_new_algorithm_is_one_more_line() -> None:
    class Magic(Algorithm[ConvProblem, ConvPlan, Any]):
        name = "magic"

        def why_not(self, problem: ConvProblem) -> str | None:
            return None if problem.pointwise else "it has taps"

        def candidates(self, problem: ConvProblem) -> Sequence[Candidate]:
            return [Candidate("spell", 0.01)]

        def launch(self, plan: ConvPlan, tile: Any) -> None:
            TiledConv().launch(plan, TiledConv().candidates(plan.problem)[0].tile)

    with_it = Chooser(*(replace(r, algorithms=(*r.algorithms, Magic())) for r in CONVOLUTIONS.rivals))
    taps, pointwise = (conv_problem((1, 64, 8, 8), (64, 64, k, k), H200) for k in (3, 1))
    assert with_it.decide(pointwise).default == "'spell'" and "magic: 'spell', cost 0.01, taken" in str(
        with_it.decide(pointwise)
    )
    assert with_it.decide(taps).default == CONVOLUTIONS.decide(taps).default
    assert "magic: no, it has taps" in str(with_it.decide(taps))


def test_what_the_device_cannot_do_is_said() -> None:
    problem = conv_problem((32, 64, 56, 56), (64, 64, 3, 3), DEVICES["plain"], dtype=DType.FLOAT32)
    text = str(CONVOLUTIONS.decide(problem))
    assert text.startswith(
        "conv_int8: no, its image and its weights are not both stored as integers of eight bits\n"
        "conv_matrix: no, the device has no matrix units, or they failed their self-test\n"
        "conv_split: no, the precision or the device does not let"
    )
    assert "conv_winograd: WinogradTile" in text
    assert "conv_gemm in pieces: no, its weights are one kernel argument" in text


def test_pools_stay_apart_where_the_kernel_that_takes_them_is_wrong() -> None:
    net = Net()
    pooled = net.add("MaxPool", net.input("x", 1, 16, 9, 9), kernel_shape=(3, 3), strides=(2, 2))
    graph = net.finish(net.conv(pooled, 8, 1))
    for wrong, expected in ((set[str](), ["conv_gemm"]), ({"conv_gemm"}, ["pool", "conv_direct"])):
        with null_gpu() as device:
            device.caps = replace(device.caps, without=frozenset(wrong))
            with weft.load(graph, "null", fallback="error") as session:
                (pipeline,) = session.pipelines
                labels = [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]
        assert [k for label in labels if (k := label.rpartition("/")[2]) != "relayout"] == expected
