"""Fits the model of CPUs behind a GPU's API (`weft.kernels.serial_model`) to trials of `weft tune` on several drivers.

    python -m benchmarks.fit_serial            # prints how far choices are from the best that was timed
    python -m benchmarks.fit_serial --write    # also writes weft/kernels/serial_model.json
    python -m benchmarks.fit_serial --add opencl:0,vulkan    # adds what `weft tune` found here, with the rates of now

`fit_serial.json` holds the trials of convolutions on each driver, and what `weft probe` measured there. One set of
coefficients serves all drivers, so a driver is judged by the model that has not seen it, too: that is what a new one
gets.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fit_costs import RULES, log_fit, problem_of
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.tuning.probe import measure
from weft.core.graph.layout import Layout
from weft.core.registry.backend_registry import registry
from weft.kernels.chooser import Decision
from weft.kernels.cost_model import WORTH
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.rates import Rates
from weft.kernels.serial_model import DATA, TERMS, terms
from weft.ops.gpu.conv.problem import ConvProblem

TRIALS = Path(__file__).with_suffix(".json")
RIVALS = "conv_gemm"
MEASURED = 6
"""How often a device is measured, for rates that go with the trials."""


@dataclass(frozen=True, eq=False)
class Timed:
    """A convolution that was timed on a CPU."""

    driver: str
    problem: ConvProblem
    us: Mapping[str, float]

    @cached_property
    def decision(self) -> Decision:
        """Return what a load decides without rates."""
        return RULES.decide(replace(self.problem, caps=replace(self.problem.caps, rates=None)))

    @cached_property
    def terms(self) -> dict[str, tuple[float, ...]]:
        """Return the terms of each candidate that has a time."""
        found = {}
        for text in self.us:
            candidate = self.decision.candidates.get(text)
            effort = None
            if candidate is not None and candidate.algorithm is not None:
                effort = candidate.algorithm.effort(self.problem, candidate.tile)
            made = None if effort is None else terms(effort, self.problem.caps)
            if made is not None:
                found[text] = made
        return found

    def choice(self, coefficients: Sequence[float]) -> str:
        """Return what the model takes, as the chooser does."""
        us = {text: float(np.dot(coefficients, each)) for text, each in self.terms.items()}
        usual = self.decision.default
        return usual if us.get(usual, np.inf) <= WORTH * min(us.values()) else min(us, key=us.__getitem__)

    def excess(self, text: str) -> float:
        """Return how many times longer a candidate takes than the best."""
        return self.us[text] / min(self.us.values())


def held() -> list[Timed]:
    """Return the timed convolutions with at least two candidates."""
    out = []
    for driver in json.loads(TRIALS.read_text()):
        caps_of = driver["caps"].items()
        limits: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in caps_of}
        caps = DeviceCaps(**limits, software=True, rates=Rates.from_dict(driver["rates"], driver["api"]))
        for key, us in driver["problems"].items():
            found = problem_of("opencl", key)
            assert found is not None
            each = Timed(driver["driver"], replace(found[1], caps=caps, layout=Layout.NC4HW4), us)
            if len(each.terms) > 1 and each.decision.default in us:
                out.append(each)
    return out


def fit(problems: Sequence[Timed]) -> tuple[float, ...]:
    """Return the coefficients that fit the trials best."""
    x, y, weights, starts = list[Sequence[float]](), list[float](), list[float](), list[int]()
    for each in problems:
        starts.append(len(y))
        for text, row in each.terms.items():
            x.append(row)
            y.append(log(each.us[text]))
            weights.append(each.excess(text) ** -2)
    return tuple(log_fit(np.array(x), np.array(y), np.array(weights), np.array(starts)).tolist())


def mean(values: Sequence[float]) -> float:
    """Return a geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def least_disturbed(runtime: GpuRuntime) -> Rates:
    """Return the best of several measurements of each rate: what else runs on the machine only slows one down."""
    every = [made.as_dict() for _ in range(MEASURED) if (made := measure(runtime)) is not None]
    best = {name: (min if name.endswith("_us") else max)(each[name] for each in every) for name in every[0]}
    return Rates.from_dict(best, runtime.device.info.id)


def add(devices: str) -> None:
    """Add the trials in the tuning tables of devices."""
    known = {(each["api"], each["driver"]): each for each in json.loads(TRIALS.read_text())} if TRIALS.exists() else {}
    for name in devices.split(","):
        choice = registry.choose(name)[0]
        assert isinstance(choice.creator, GpuCreator)
        runtime = choice.creator.runtime(choice.index)
        rates, info, caps = least_disturbed(runtime), runtime.device.info, runtime.device.caps
        limits = ("max_local_items", "max_local_size", "local_memory", "max_buffer_range", "max_allocation")
        problems: dict[str, Any] = {
            key: {text: t.us for text, t in entry.trials.items() if t.us is not None}
            for key, entry in sorted(runtime.tuning.entries().items())
            if key.startswith(f"{RIVALS}(")
        }
        known[info.id, info.driver] = {
            "api": info.id, "driver": info.driver, "rates": rates.as_dict(),
            "caps": {**{limit: getattr(caps, limit) for limit in limits}, "compute_units": caps.compute_units},
            "problems": problems,
        }
    TRIALS.write_text(json.dumps(list(known.values()), indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print how far choices are from the best, and write the model's data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write weft/kernels/serial_model.json")
    parser.add_argument("--add", metavar="DEVICES", help="add the trials in the tuning tables of these")
    options = parser.parse_args(arguments)
    if options.add:
        add(options.add)
    every = held()
    found = fit(every)
    print("  ".join(f"{name} {c:.3g}" for name, c in zip(TERMS, found, strict=True)))
    for driver in dict.fromkeys(each.driver for each in every):
        own, others = ([e for e in every if (e.driver == driver) is is_own] for is_own in (True, False))
        unseen = fit(others) if others else found
        told = {
            "by rules": [e.excess(e.decision.default) for e in own],
            "by the model": [e.excess(e.choice(found)) for e in own],
            "by one that has not seen it": [e.excess(e.choice(unseen)) for e in own],
        }
        print(f"{driver}, {len(own)} convolutions, times the best's:", end=" ")
        print(", ".join(f"{words} {mean(values):.3f}" for words, values in told.items()))
    if options.write:
        drivers = len({each.driver for each in every})
        content = {
            "fitted_on": f"{len(every)} convolutions timed by {drivers} drivers, by benchmarks/fit_serial.py",
            "times": {name: float(f"{c:.3g}") for name, c in zip(TERMS, found, strict=True)},
        }
        DATA.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
