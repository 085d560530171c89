"""Times of runs, host array to host array."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.graph.layout import Array
from weft.core.session.session import Session


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of the runs of a session: the first by itself, then the runs that count."""

    first: float
    runs: tuple[float, ...]
    saved: float | None = None
    """Microseconds that the session's own arrays save in a run, if that was measured."""

    @property
    def median(self) -> float:
        """Return the median of the runs that count."""
        return float(np.median(self.runs))

    @property
    def p90(self) -> float:
        """Return the time that nine runs in ten stay below."""
        return float(np.percentile(self.runs, 90))

    @property
    def best(self) -> float:
        """Return the shortest time."""
        return min(self.runs)

    def as_json(self) -> dict[str, Any]:
        """Return it as data."""
        facts = {"first_ms": self.first, "median_ms": self.median, "p90_ms": self.p90, "min_ms": self.best}
        saved = {} if self.saved is None else {"saved_by_arrays_us": self.saved}
        return {**facts, "runs_ms": list(self.runs), **saved}


def milliseconds(seconds: float) -> float:
    """Return seconds as milliseconds."""
    return seconds * 1e3


def measure(
    session: Session, arrays: Mapping[str, Array], iterations: int, warmup: int,
    outputs: Mapping[str, Array | None] | None = None,
) -> tuple[list[Array], Timing]:
    """Return the outputs and the times of `iterations` runs, after `warmup` that do not count.

    `outputs` are arrays for the outputs, if any. A state is empty before each run.

    With no warm-up the first run counts; it may be slower, where shapes are bound by it.
    """
    times: list[float] = []
    results: list[Array] = []
    for _ in range(warmup + max(1, iterations)):
        start = time.perf_counter()
        results = session.run(arrays, outputs=outputs)
        times.append(milliseconds(time.perf_counter() - start))
        if session.keeps_state:
            session.state.reset()
    return results, Timing(times[0], tuple(times[warmup:]))
