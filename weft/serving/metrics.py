"""What a server counted, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from threading import Lock

from weft.serving.pool import PoolReport

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of seconds."""


class RequestMetrics:
    """Counts the requests of all models by outcome, and the seconds that those took that succeeded."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._outcomes: dict[tuple[str, str, str], int] = {}
        self._seconds: dict[tuple[str, str], tuple[list[int], float]] = {}

    def count(self, model: str, version: str, outcome: str, seconds: float) -> None:
        """Count a request."""
        with self._lock:
            key = model, version, outcome
            self._outcomes[key] = self._outcomes.get(key, 0) + 1
            if outcome == "ok":
                counts, total = self._seconds.get((model, version), ([0] * (len(BUCKETS) + 1), 0.0))
                counts[bisect_left(BUCKETS, seconds)] += 1
                self._seconds[model, version] = counts, total + seconds

    def text(self, pools: Mapping[tuple[str, str], PoolReport]) -> str:
        """Return all metrics, with what the pools of models, by name and version, tell of themselves."""
        with self._lock:
            outcomes = dict(self._outcomes)
            seconds = {key: (list(counts), total) for key, (counts, total) in self._seconds.items()}
        page = _Page()
        page.begin("weft_requests_total", "counter", "Inference requests by outcome.")
        for (model, version, outcome), count in outcomes.items():
            page.add(count, model=model, version=version, outcome=outcome)
        page.begin("weft_request_seconds", "histogram", "Seconds of the requests that succeeded.")
        for (model, version), (counts, total) in seconds.items():
            below = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                below += count
                page.add(below, "_bucket", model=model, version=version, le=bound)
            page.add(total, "_sum", model=model, version=version)
            page.add(below, "_count", model=model, version=version)
        for name, kind, what, field in _OF_POOLS:
            page.begin(name, kind, what)
            for (model, version), report in pools.items():
                page.add(getattr(report, field), model=model, version=version)
        for name, kind, what, field in _OF_REPLICAS:
            page.begin(name, kind, what)
            for (model, version), report in pools.items():
                for k, replica in enumerate(report.replicas):
                    labels = {"model": model, "version": version, "device": replica.device, "replica": str(k)}
                    page.add(getattr(replica, field) if field else replica.state != "lost", **labels)
        return page.text


_OF_POOLS = (
    ("weft_waiting_requests", "gauge", "Requests in the queue.", "waiting"),
    ("weft_running_requests", "gauge", "Requests that replicas run.", "running"),
    ("weft_retried_requests_total", "counter", "Requests tried again because a replica died.", "retried"),
    ("weft_padded_rows_total", "counter", "Rows that filled up batches.", "padded_rows"),
)
_OF_REPLICAS = (
    ("weft_runs_total", "counter", "Runs of a replica, each of a batch.", "runs"),
    ("weft_rows_total", "counter", "Rows of requests in these runs.", "rows"),
    ("weft_busy_seconds_total", "counter", "Seconds of these runs.", "busy_seconds"),
    ("weft_gather_seconds_total", "counter", "The part of these in which batches were put together.", "gather_seconds"),
    ("weft_replacements_total", "counter", "How often a replica died and was loaded anew.", "replaced"),
    ("weft_replica_up", "gauge", "0 if a replica died and could not be loaded again.", ""),
)


class _Page:
    """Lines of the format."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._name = ""

    def begin(self, name: str, kind: str, what: str) -> None:
        self._name = name
        self._lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]

    def add(self, value: float, suffix: str = "", **labels: str) -> None:
        shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        self._lines.append(f"{self._name}{suffix}{{{shown}}} {float(value):.10g}")

    @property
    def text(self) -> str:
        return "\n".join([*self._lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
