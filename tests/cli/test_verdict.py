"""The verdict at the end of `weft bench --profile`: what takes a run's time, and what could be saved."""

from __future__ import annotations

import pytest

from weft.cli.rates import Rates, measured
from weft.cli.verdict import judge
from weft.core.contract.backend import Precision

RATES = {"gpu:0": Rates(bandwidth=1e12, flops=1e13, launch=5e-6)}


def event(node: str, us: float, flops: float = 0.0, nbytes: float = 0.0) -> dict[str, object]:
    return {"device": "gpu:0", "name": f"{node}/kernel", "node": node, "us": us, "flops": flops, "bytes": nbytes}


COPY = {"device": "gpu:0", "name": "upload x", "us": 400.0}


@pytest.mark.parametrize(
    ("events", "run_us", "saved_us", "span_us", "bound"),
    [
        ([event("a", 300, 2e9, 1e6), event("b", 20, 1e3, 4e6)], 350, 0, 320, "arithmetic"),
        ([event("a", 90, 2e8, 1e7), event("b", 300, 1e8, 2e8)], 400, 0, 390, "bandwidth"),
        ([event(str(k), 6, 1e3, 1e3) for k in range(40)], 300, 0, 280, "launches"),
        ([event("a", 50, 5e8, 1e6)], 900, 0, 800, "launches"),  # gaps
        ([COPY, event("a", 300, 2e9, 1e6)], 720, 0, 300, "transfers"),
        ([event("a", 300, 2e9, 1e6)], 900, 500, 300, "transfers"),
        ([{**COPY, "name": "chain of 7"}, event("a", 100, 2e8, 1e6)], 520, 0, 100, "unknown"),  # whatever it did
        ([event("a", 300, 2e9, 1e6)], 900, 0, 300, "host"),
    ],
)
def test_what_takes_most_is_what_binds(
    events: list[dict[str, object]], run_us: float, saved_us: float, span_us: float, bound: str
) -> None:
    verdict = judge(events, RATES, run_us=run_us, saved_us=saved_us, spans_us={"gpu:0": span_us})
    assert verdict.bound == bound, verdict
    assert sum(verdict.us.values()) == pytest.approx(run_us)
    assert verdict.lines()[0].startswith(f"bound by {bound}: ")
    assert not verdict.remarks


def test_the_dearest_say_what_they_would_take() -> None:
    again = {**event("c", 30), "name": "c/second"}
    del again["flops"], again["bytes"]  # a node's work is told once
    events = [event("a", 1), event("b", 90, 2e8, 1e7), event("c", 250, 2e9, 1e6), again, event("d", 40, 0, 1e7)]
    verdict = judge(events, RATES, run_us=500, saved_us=12.5, spans_us={})
    assert [group.name for group in verdict.dearest] == ["c", "b", "d"]
    first = verdict.dearest[0]
    assert (first.us, first.launches, first.bound) == (280, 2, "arithmetic")
    assert first.least_us == pytest.approx(200)
    shown = verdict.lines()
    assert "c: 280.0 us in 2 launches, arithmetic, 200.0 us at the device's rates" in shown[1]
    assert "12.5 us by arrays of the session, 5.0 us by each of 5 launches less, 180.0 us if the dearest" in shown[-1]
    assert verdict.as_json()["dearest"][0]["bound"] == "arithmetic"


def test_what_is_not_known_is_said() -> None:
    rates = {"gpu:0": Rates(None, None, None)}
    verdict = judge([event("a", 300, 2e9, 1e6)], rates, run_us=200, saved_us=0, spans_us={}, software=["gpu:0"])
    assert verdict.bound == "unknown" and "nothing measurable by arrays" in "".join(verdict.lines())
    for remark in ("gpu:0 is a CPU", "ran no product", "ran no copy", "ran no chain", "made the run slower"):
        assert remark in " ".join(verdict.remarks)


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_every_device_has_rates(device: str) -> None:
    rates = measured(device, Precision.HIGH, {}, software=True)
    assert rates.bandwidth and rates.flops and rates.launch
