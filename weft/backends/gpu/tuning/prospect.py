"""What tuning can hope for, before it begins: the time of the choices that are open, and how far such choices were off.

The sum of the nodes' times is measured. How many times longer untuned choices take than the best comes with the cost
model, from problems that it had not seen (`weft.kernels.cost_model.excess`). So this is what tuning gains on average
over networks, not a bound: a network whose shapes are unlike those may gain more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.backends.gpu.tuning.tuner import by_runtime, open_problems
from weft.core.session.pipeline import Pipeline
from weft.kernels.cost_model import excess


@dataclass(frozen=True, slots=True)
class Prospect:
    """What tuning some pipelines can hope for on one device; times are microseconds of one run."""

    device: str
    problems: int
    """Distinct problems that have several candidates."""
    tuned: int
    """Problems whose choice was tuned before."""
    us: float
    """The time of the others."""
    gain_us: float
    """How much of it tuning gains if choices are as far from the best as where that was measured."""
    unknown_us: float
    """How much of it takes choices of which that was never measured, such as all on software devices."""


def prospects(pipelines: Iterable[Pipeline], *, again: bool = False) -> list[Prospect]:
    """Return what tuning loaded pipelines can hope for, for each of their GPUs; it runs each pipeline once.

    With `again`, choices that were tuned before count as open.
    """
    out = []
    for runtime, group in by_runtime(pipelines):
        problems = open_problems(group)
        open_ = [problem for problem in problems if again or not problem.choice.made]
        us = gain = unknown = 0.0
        for problem in open_:
            took = problem.weight * 1e6
            times = None if runtime.device.caps.software else excess(problem.choice.decision.name)
            us += took
            gain += 0.0 if times is None else took * (1 - 1 / times)
            unknown += took if times is None else 0.0
        out.append(Prospect(group[0].device, len(problems), len(problems) - len(open_), us, gain, unknown))
    return out
