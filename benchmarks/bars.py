"""The bars that Weft must reach on a real GPU, and the table of where it stands.

A time counts only with a right output. If Weft's row has a larger error than its precision allows, or no error, its bar
is not reached; a peer's row like that does not count. Where rounding to fp16 takes PyTorch itself further off than
that, Weft may be as far off as PyTorch. ncnn's networks have no weights, so there is nothing to check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.measure import Row

APIS = ("vulkan", "opencl")
RUNTIMES = ("ncnn vulkan", "tinygrad opencl", "mnn opencl")
MNN = {
    ("resnet50", 1): 3.94, ("mobilenet_v2", 1): 1.34, ("squeezenet1_1", 1): 0.59,
    ("resnet50", 32): 26.8, ("mobilenet_v2", 32): 4.3, ("squeezenet1_1", 32): 6.2,
}
"""MNN 3.6.1's OpenCL on an H200 with these networks, ms from host to host, fp32; measured earlier, not in the run."""
ACCURACY = {"fp32": 1e-5, "normal": 1e-5, "fp16": 1e-2}
"""The largest error by norm of each precision."""
MOST_ROUNDING = 5e-2
"""The largest error of PyTorch in fp16 that counts as rounding."""
UNCHECKED = ("ncnn vulkan",)
"""Peers whose outputs cannot be checked."""
GEMM_BARS = {1024: {"vulkan": 0.6, "opencl": 0.8}, 4096: {"vulkan": 0.45, "opencl": 0.9}}
DEVICE_BARS = {
    "fp16": {"vulkan": 0.6, "opencl": 0.8},
    "fp32": {"vulkan": 0.7, "opencl": 0.7},
    "normal": {"vulkan": 1.0, "opencl": 1.0},
}
"""At batch 32 against PyTorch; its fp32 is what normal is compared with."""
HEADERS = ("bar", "network", "precision", "weft", "peer", "its time", "ratio", "at least", "met")


@dataclass(frozen=True)
class Bar:
    """One comparison: times in ms (in us for products), or errors for the bars of accuracy."""

    bar: str
    network: str
    precision: str
    weft: float | None
    peer: str
    its: float | None
    needed: float
    wrong: str = ""
    """What is wrong with the output that Weft's time is of."""

    @property
    def ratio(self) -> float | None:
        """Return how many times faster Weft is than the peer; None where either was not measured."""
        return self.its / self.weft if self.weft and self.its else None

    @property
    def met(self) -> bool | None:
        """Tell whether the bar is reached; never with a wrong output; None if it was not measured."""
        if self.wrong:
            return False
        return None if self.ratio is None else self.ratio >= self.needed

    def found(self) -> dict[str, Any]:
        """Return everything, for the JSON file."""
        return asdict(self) | {"ratio": self.ratio, "met": self.met}


def complaint(who: str, precision: str, error: float | None, allowed: float = 0.0) -> str:
    """Return what is wrong with the output that a time is of; nothing if its error is known and small enough.

    `allowed` is the error that is small enough whatever the precision says.
    """
    if who in UNCHECKED:
        return ""
    if error is None:
        return "no error known"
    return "" if error <= max(ACCURACY.get(precision, math.inf), allowed) else f"error {error:.1e}"  # NaN is not


def wrong_rows(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Yield every row whose time does not count, and why."""
    theirs: dict[tuple[str, int], float] = {}
    for row in rows:
        if row.who.startswith("torch") and row.precision == "fp16" and row.error is not None:
            at = row.network, row.batch
            theirs[at] = max(theirs.get(at, 0.0), min(row.error, MOST_ROUNDING))  # NaN is neither
    for row in rows:
        ours = row.who.startswith("weft") and row.precision == "fp16"
        why = complaint(row.who, row.precision, row.error, theirs.get((row.network, row.batch), 0.0) if ours else 0.0)
        if why:
            yield row, why


def bars(rows: Sequence[Row], gemm: Sequence[dict[str, Any]]) -> list[Bar]:
    """Return every bar in the order of the task; those of networks that have no rows are left out."""
    names = list(dict.fromkeys(row.network for row in rows))
    found = _Rows(rows)
    return [
        *(b for n in names for b in _runtimes(found, n)),
        *(b for n in names for b in _torch_at_batch_1(found, n)),
        *(b for n in names for b in _torch_at_batch_32(found, n)),
        *_products(gemm),
        *_accuracy(rows),
        *_accuracy_of_products(gemm),
    ]


class _Rows:
    """Finds the fastest of some rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._wrong = {id(row): why for row, why in wrong_rows(rows)}

    def peer(
        self, network: str, batch: int, who: Callable[[str], bool], precisions: Sequence[str], time: str
    ) -> tuple[str, float | None]:
        """Return who is fastest with a right output, and the time; `time` is "host" or "device"."""
        times = [
            (value, f"{row.who} {row.precision}")
            for value, row in self._timed(network, batch, who, precisions, time)
            if id(row) not in self._wrong
        ]
        value, name = min(times, default=(None, "-"))
        return name, value

    def weft(self, network: str, batch: int, api: str, precision: str, time: str) -> tuple[float | None, str]:
        """Return Weft's time, and what is wrong with its output."""
        times = self._timed(network, batch, lambda w: w == f"weft {api}", [precision], time)
        value, row = min(times, key=lambda pair: pair[0], default=(None, None))
        return value, self._wrong.get(id(row), "")

    def _timed(
        self, network: str, batch: int, who: Callable[[str], bool], precisions: Sequence[str], time: str
    ) -> list[tuple[float, Row]]:
        return [
            (value, row)
            for row in self._rows
            if (row.network, row.batch) == (network, batch) and who(row.who) and row.precision in precisions
            for value in [_time(row, time)]
            if value is not None
        ]


def _time(row: Row, time: str) -> float | None:
    if time == "host":
        return row.host_ms
    known = [t for t in (row.device_ms, row.host_ms) if t is not None]
    # A run contains its work on the device, so a whole run is the bound where taking the times slowed it down.
    return None if row.device_ms is None else min(known)


def _runtimes(rows: _Rows, network: str) -> Iterator[Bar]:
    """Against the best runtime on OpenCL or Vulkan: fp16 against whatever is fastest, the others against its fp32."""
    for batch, needed in ((1, {"vulkan": 3.0, "opencl": 2.0}), (32, {"vulkan": 3.0, "opencl": 3.0})):
        for precision, theirs in (("fp32", ["fp32"]), ("normal", ["fp32"]), ("fp16", ["fp32", "fp16"])):
            name, its = rows.peer(network, batch, lambda w: w in RUNTIMES, theirs, "host")
            known = MNN.get((network, batch))
            if known is not None and its is not None and known < its:  # alone it proves nothing about this run
                name, its = "mnn opencl fp32, before", known
            for api in APIS:
                ours, wrong = rows.weft(network, batch, api, precision, "host")
                title = f"{api} x{batch}, host to host, best runtime"
                yield Bar(title, network, precision, ours, name, its, needed[api], wrong)


def _torch_at_batch_1(rows: _Rows, network: str) -> Iterator[Bar]:
    for precision in ("fp32", "fp16"):
        name, its = rows.peer(network, 1, _is_graph, [precision], "host")
        for api in APIS:
            if api == "opencl" and not (precision == "fp16" and network in ("resnet50", "squeezenet1_1")):
                continue
            ours, wrong = rows.weft(network, 1, api, precision, "host")
            yield Bar(f"{api} x1, host to host, CUDA graph", network, precision, ours, name, its, 1.0, wrong)


def _torch_at_batch_32(rows: _Rows, network: str) -> Iterator[Bar]:
    for precision, needed in DEVICE_BARS.items():
        theirs = "fp16" if precision == "fp16" else "fp32"
        name, its = rows.peer(network, 32, _is_graph, [theirs], "device")
        for api in APIS:
            ours, wrong = rows.weft(network, 32, api, precision, "device")
            yield Bar(f"{api} x32, device, CUDA graph", network, precision, ours, name, its, needed[api], wrong)


def _is_graph(who: str) -> bool:
    return who.startswith(("torch graph", "torch compile"))


def _products(gemm: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    found = {(entry["size"], entry["who"]): (entry["us"], _complaint_of_product(entry)) for entry in gemm}
    for size, needed in GEMM_BARS.items():
        its, its_wrong = found.get((size, "cublas"), (None, ""))
        for api in APIS:
            if gemm:
                ours, wrong = found.get((size, f"weft {api}"), (None, ""))
                title = f"{api} product, us a launch"
                yield Bar(title, str(size), "fp16", ours, "cublas", None if its_wrong else its, needed[api], wrong)


def _complaint_of_product(entry: dict[str, Any]) -> str:
    return complaint(entry["who"], entry["precision"], entry["error"])


def _accuracy(rows: Sequence[Row]) -> Iterator[Bar]:
    """Yield the largest error of each API and precision; the ratio is what is allowed over what there is."""
    for api in APIS:
        for precision in ACCURACY:
            errors = [
                (f"{r.network} x{r.batch}", r.error)
                for r in rows
                if r.who == f"weft {api}" and r.precision == precision
            ]
            yield from _worst(f"{api} error by norm", precision, errors)


def _accuracy_of_products(gemm: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    for api in APIS:
        errors = [(str(e["size"]), e["error"]) for e in gemm if e["who"] == f"weft {api}"]
        yield from _worst(f"{api} product, error by norm", "fp16", errors)


def _worst(title: str, precision: str, errors: Sequence[tuple[str, float | None]]) -> Iterator[Bar]:
    """Yield the bar of the largest error, if there is one: none known, and NaN, are the largest."""
    if errors:
        name, error = max(errors, key=lambda pair: math.inf if pair[1] is None or math.isnan(pair[1]) else pair[1])
        shown, wrong = None if error is None else error or 1e-30, complaint("weft", precision, error)
        yield Bar(title, name, precision, shown, "allowed", ACCURACY[precision], 1.0, wrong)


def table(every: Sequence[Bar]) -> str:
    """Return the bars as a table of Markdown."""
    lines = ["| " + " | ".join(HEADERS) + " |", "|---" * len(HEADERS) + "|"]
    for b in every:
        ratio = "-" if b.ratio is None else f"{b.ratio:.2f}"
        met = {None: "not measured", True: "yes", False: f"NO, {b.wrong}" if b.wrong else "NO"}[b.met]
        cells = (b.bar, b.network, b.precision, _number(b.weft), b.peer, _number(b.its), ratio, f"{b.needed:g}", met)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1e}" if value < 1e-2 else f"{value:.3f}"
