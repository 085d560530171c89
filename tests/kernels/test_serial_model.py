"""The model of CPUs behind a GPU's API: choices by what was measured there, on recorded trials of three drivers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import fit_serial
from benchmarks.fit_serial import Timed, fit, held, mean
from tests.helpers.conv_problems import conv_problem
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Layout
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.rates import Rates
from weft.kernels.serial_model import TERMS, coefficients, microseconds, terms
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.problem import ConvProblem

CPU = DeviceCaps(1024, (1024, 1024, 64), local_memory=32 << 10, software=True, compute_units=2)
RATES = Rates(
    products=4e4, shared_vectors=1e4, cache_bytes=8e3, memory_bytes=4e3, barrier_us=0.05, between_us=3.0, api="opencl"
)


@pytest.fixture(scope="module")
def trials() -> list[Timed]:
    return held()


def problem(channels: int, out: int, side: int, taps: int, caps: DeviceCaps) -> ConvProblem:
    x, weight = (1, channels, side, side), (out, channels, taps, taps)
    return replace(conv_problem(x, weight, caps, dtype=DType.FLOAT32), layout=Layout.NC4HW4)


def test_the_data_are_what_the_trials_give(trials: list[Timed]) -> None:
    assert coefficients() == tuple(float(f"{c:.3g}") for c in fit(trials))


@pytest.mark.parametrize("driver", [each["driver"] for each in json.loads(fit_serial.TRIALS.read_text())])
def test_choices_on_a_driver_that_was_not_seen_are_nearer_to_the_best(trials: list[Timed], driver: str) -> None:
    own = [each for each in trials if each.driver == driver]
    unseen = fit([each for each in trials if each.driver != driver])
    by_rules = mean([each.excess(each.decision.default) for each in own])
    by_model = mean([each.excess(each.choice(unseen)) for each in own])
    assert len(own) > 30 and by_model - 1 < 0.6 * (by_rules - 1)


def test_a_cpu_that_was_not_measured_is_chosen_for_by_rules() -> None:
    small = problem(64, 64, 14, 3, CPU)
    decision = CONVOLUTIONS.decide(small)
    assert not decision.in_microseconds
    assert decision.default == "GemmTile(pixels=4, blocks=1, lx=8, ly=8, lz=1)"


def test_a_measured_one_takes_wide_tiles_where_channels_fill_them_and_winograd_where_it_saves_products() -> None:
    caps = replace(CPU, rates=RATES)
    pointwise, few, taps = (
        CONVOLUTIONS.decide(problem(*sizes, caps)) for sizes in ((64, 64, 28, 1), (64, 16, 28, 1), (64, 64, 28, 3))
    )
    assert all(each.in_microseconds for each in (pointwise, few, taps))
    assert "blocks=2" in pointwise.default and "blocks=1" in few.default
    assert taps.default.startswith("WinogradTile(")


def test_slow_launches_keep_winograd_away() -> None:
    slow = replace(CPU, rates=replace(RATES, between_us=1e4))
    assert CONVOLUTIONS.decide(problem(64, 64, 28, 3, slow)).default.startswith("GemmTile(")


def test_every_term_grows_with_what_the_device_lacks() -> None:
    decided = CONVOLUTIONS.decide(problem(64, 64, 28, 1, replace(CPU, rates=RATES)))
    candidate = decided.candidates["GemmTile(pixels=4, blocks=1, lx=8, ly=8, lz=2)"]
    assert candidate.algorithm is not None
    effort = candidate.algorithm.effort(problem(64, 64, 28, 1, CPU), candidate.tile)
    assert effort is not None and terms(effort, CPU) is None is microseconds(effort, CPU)
    slower = {
        "between_us": {"launches"}, "products": {"products", "staged"}, "shared_vectors": {"loads", "slices"},
        "barrier_us": {"turns"}, "cache_bytes": {"read"}, "memory_bytes": {"moved"},
    }
    before = terms(effort, replace(CPU, rates=RATES))
    assert before is not None and all(before)
    for name, affected in slower.items():
        value = getattr(RATES, name)
        changed = replace(RATES, **{name: value * 2 if name.endswith("_us") else value / 2})
        after = terms(effort, replace(CPU, rates=changed))
        assert after is not None
        assert {t for t, a, b in zip(TERMS, before, after, strict=True) if b == 2 * a} == affected
        assert all(b in (a, 2 * a) for a, b in zip(before, after, strict=True))
