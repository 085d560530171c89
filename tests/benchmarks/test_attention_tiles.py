"""What is expected of tiles of attention, beside what was measured."""

from __future__ import annotations

from math import exp, log

from benchmarks.attention_tiles import PROBLEMS, judged, recorded
from scripts.update_shipped_choices import CARDS


def test_estimates_choose_well_and_are_close() -> None:
    rows = judged(recorded(), CARDS["opencl"].caps)
    assert [problem for problem, *_ in rows] == list(PROBLEMS)
    assert exp(sum(log(took / best) for *_, took, best in rows) / len(rows)) < 1.05
    assert all(0.75 < expected / took < 1.33 for _, _, expected, took, _ in rows)
