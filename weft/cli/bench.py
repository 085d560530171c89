"""`weft bench`: how long a network takes, devices side by side."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import weft
from weft.cli.console import line, note, table, working
from weft.cli.difference import Difference, difference, not_finite, tensors
from weft.cli.inputs import Preparation, collect, shaped, without_state
from weft.cli.json_output import JsonOption, JsonTarget, answer
from weft.cli.measure import measure, milliseconds
from weft.cli.model import read_model
from weft.cli.options import (
    BackendPathOption,
    InputOption,
    IterationsOption,
    ModelArgument,
    WarmupOption,
    load_flags,
)
from weft.cli.parsing import device_orders, parse_pairs, parse_precisions
from weft.cli.rates import Rates, measured
from weft.cli.results import precision_notes
from weft.cli.roofline import analysed, whole
from weft.cli.verdict import TimeVerdict, judge
from weft.core.contract.backend import Precision
from weft.core.contract.profile import SPAN
from weft.core.graph.layout import Array
from weft.core.session.session import Session
from weft.errors import InputError
from weft.kernels.device_model import Peaks, peaks_of
from weft.loading import load

RATES = (("flops", 1e6), ("bytes", 1e6), ("flops_per_s", 1e9), ("bytes_per_s", 1e9))
EVENT_NUMBERS = ("us", "MFLOP", "MB", "GFLOP/s", "GB/s", "roofline")
"""All but `us` belong to a node, which may have several events: its longest event shows them, over the time of all."""
NUMBERS = ("load ms", "first ms", "median ms", "p90 ms", "min ms", "difference")


@load_flags(
    "device", "memory", "shapes", "backend_options", "fusing", "winograd", "limits", "signature", "state", device="all"
)
def bench(
    options: dict[str, Any],
    model: ModelArgument,
    inputs: InputOption = None,
    precision: Annotated[str, typer.Option(help="high, normal, low, or several with commas.")] = "high",
    iterations: IterationsOption = 50,
    warmup: WarmupOption = 5,
    backend_path: BackendPathOption = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print what takes the time of one run.")] = False,
    as_json: JsonOption = None,
) -> None:
    """Time a network on each device, from host array to host array.

    `load ms` is from the file to a session that is ready to run: reading, planning, compiling (or finding
    kernels in the cache) and uploading weights. `difference` is the largest difference from the outputs of the
    first row; numbers that are not finite are counted.
    Notes below the table say where a precision was not granted; with --json each row has all notes of its run.
    After Ctrl-C the finished rows are printed.
    A profile sets each time against the node's operations and bytes: `roofline` is the share of what the
    device's datasheet allows, where the device is known. It ends with a verdict: what the network is bound by, its
    dearest nodes, and what could be saved, from times that are measured here.
    """
    device, shape = options.pop("device"), options.pop("shapes")
    graph = without_state(read_model(model, options["limits"], options["signature"]), options["state"])
    files = parse_pairs(inputs, "--input", "x=x.npy")
    arrays, remarks = collect(*shaped(graph, shape), files, Preparation())
    for remark in remarks:
        note(remark)
    work = _Work(model, arrays, iterations, warmup, options)
    order = [(names, each) for names in device_orders(device) for each in parse_precisions(precision)]
    rows: list[dict[str, Any]] = []
    try:
        for row in work.rows(order, profile=profile):
            rows.append(row)
    except KeyboardInterrupt:
        if rows:
            _answer(model, rows, as_json)
        raise
    _answer(model, rows, as_json)


@dataclass(frozen=True)
class _Work:
    """A network with its inputs, and how it is loaded and timed."""

    model: Path
    arrays: Mapping[str, Array]
    iterations: int
    warmup: int
    options: Mapping[str, Any]
    known: dict[tuple[str, Precision], Rates] = field(default_factory=dict)
    """What devices reach: each is measured once."""

    def _load(self, names: list[str], precision: Precision, **more: Any) -> Session:
        shapes = {name: a.shape for name, a in self.arrays.items()}
        return load(self.model, names, precision=precision, shapes=shapes, **more, **self.options)

    def rows(self, order: list[tuple[list[str], Precision]], *, profile: bool) -> Iterator[dict[str, Any]]:
        """Measure one device and precision after the other, and yield the row of each."""
        reference: list[Array] | None = None
        for names, each in order:
            row, outputs = self._time(names, each, profile=profile)
            reference = outputs if reference is None else reference
            row |= _apart(outputs, reference)
            if profile:
                row["events"], spans, row["untimed"] = self._events(names, each)
                row["verdict"] = self._verdict(row, spans, each)
            yield row

    def _verdict(self, row: Mapping[str, Any], spans: Mapping[str, float], precision: Precision) -> TimeVerdict:
        """Return what a row's network is bound by."""
        software = {f"{d.id}:{d.index}": d.software for d in weft.devices()}
        devices = dict.fromkeys(e["device"] for e in row["events"] if "node" in e)
        for device in devices:
            if (device, precision) not in self.known:
                with working(f"measuring what {device} reaches"):
                    found = measured(device, precision, self.options, software=software.get(device, True))
                self.known[device, precision] = found
        return judge(
            row["events"],
            {device: self.known[device, precision] for device in devices},
            run_us=row["median_ms"] * 1e3,
            saved_us=row["saved_by_arrays_us"],
            spans_us={device: seconds * 1e6 for device, seconds in spans.items()},
            software=[device for device in devices if software.get(device)],
        )

    def _time(self, names: list[str], precision: Precision, *, profile: bool) -> tuple[dict[str, Any], list[Array]]:
        label = "+".join(names)
        start = time.perf_counter()
        with working(f"preparing for {label}") as progress:
            session = self._load(names, precision, progress=progress, wait="all")
        loaded = milliseconds(time.perf_counter() - start)
        with session:
            outputs, timing = measure(session, self.arrays, self.iterations, self.warmup)
            if profile:
                timing = replace(timing, saved=self._saved(names, precision, session))
            report = session.report
        facts = {"nodes": dict(report.nodes_by_device), "notes": list(report.notes), "load_ms": loaded}
        row = {"device": label, "precision": precision.value, **facts, **timing.as_json()}
        return row, [*tensors(session.outputs, outputs).values()]

    def _saved(self, names: list[str], precision: Precision, session: Session) -> float:
        """Return the microseconds that a session's own arrays save in a run; 0 where that is not above the noise.

        A second session has them, and the two take turns, so that both see the same machine.
        """
        with self._load(names, precision, wait="all") as other:
            given = other.input_arrays()
            for name, array in given.items():
                array[...] = self.arrays[name]
            try:
                outputs = other.output_arrays()
            except InputError:  # their shapes follow from values
                outputs = None
            apart = list[float]()
            for _ in range(max(self.iterations, 1) + 1):
                usual = measure(session, self.arrays, 1, 0)[1].best
                apart.append(usual - measure(other, {**self.arrays, **given}, 1, 0, outputs=outputs)[1].best)
        saved = float(np.median(apart[1:]))
        noise = 2 * float(np.median(np.abs(np.subtract(apart[1:], saved)))) / len(apart[1:]) ** 0.5
        return saved * 1e3 if saved > noise else 0.0

    def _events(
        self, names: list[str], precision: Precision
    ) -> tuple[list[dict[str, Any]], dict[str, float], list[str]]:
        """Return the events of one run, each device's span, and the devices that tell no times.

        This takes a separate session, because taking times makes a run slower.
        """
        with self._load(names, precision, profile=True) as session:
            measure(session, self.arrays, 1, self.warmup)
            spans = {device: value for (device, name), value in session.profile.counters.items() if name == SPAN}
            return analysed(session.profile.events, _peaks(), precision), spans, session.profile.untimed


def _peaks() -> dict[str, Peaks]:
    """Return the peaks of the devices that are known, by their names as a profile has them."""
    found = {f"{d.id}:{d.index}": peaks_of(d.name) for d in weft.devices()}
    return {device: peaks for device, peaks in found.items() if peaks is not None}


def _apart(outputs: list[Array], reference: list[Array]) -> dict[str, Any]:
    """Return the difference, None in JSON where a number is finite in one run only, or shapes differ."""
    found = difference(outputs, reference)
    facts = {"not_finite": sum(map(not_finite, outputs)), "not_finite_unlike": found.unlike}
    return {"difference": found.largest if found.bound < math.inf else None, "other_shapes": found.shapes, **facts}


def _answer(model: Path, rows: list[dict[str, Any]], as_json: JsonTarget | None) -> None:
    def facts() -> dict[str, Any]:
        told = [{**r, "verdict": r["verdict"].as_json()} if "verdict" in r else r for r in rows]
        return {"model": model, "python": platform.python_version(), "rows": told}

    answer(as_json, facts, lambda: _print(rows))


def _print(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        _print_events(row)
    table(("device", "precision", "nodes", *NUMBERS), map(_cells, rows), numbers=NUMBERS)
    said = [text for row in rows for text in precision_notes(row["device"], row["precision"], row["notes"])]
    for text in dict.fromkeys(said):
        line(f"note: {text}")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row of the table."""
    nodes = ", ".join(f"{device} {count}" for device, count in row["nodes"].items())
    times = (f"{row[name]:.3f}" for name in ("load_ms", "first_ms", "median_ms", "p90_ms", "min_ms"))
    apart = Difference(row["difference"] or 0.0, row["not_finite"], row["not_finite_unlike"], row["other_shapes"])
    return row["device"], row["precision"], nodes, *times, apart.text(".1e")


def _print_events(row: dict[str, Any]) -> None:
    events = row.get("events", ())
    for device in row.get("untimed", ()):
        line(f"{device}, {row['precision']}: no profile, because the device tells no times of its work")
    if not events:
        return
    share = whole(events)
    bound = "" if share is None else f", {share:.0%} of the roofline by the device's datasheet"
    line(f"{row['device']}, {row['precision']}: {sum(e['us'] for e in events):.1f} us in one run{bound}", "bold")
    shown = [
        (e["device"], _name(e), f"{e['us']:.1f}", *(_rate(e, rate, unit) for rate, unit in RATES), _share(e))
        for e in sorted(events, key=lambda e: -e["us"])
    ]
    table(("device", "name", *EVENT_NUMBERS), shown, numbers=EVENT_NUMBERS)
    if any(e.get("launches", 1) > 1 for e in events):
        line("*: a node of several launches; the longest shows the node's work, and the rates over the time of all")
    for text in row["verdict"].lines():
        line(text)


def _name(event: dict[str, Any]) -> str:
    return f"{event['name']} *" if event.get("launches", 1) > 1 else str(event["name"])


def _rate(event: dict[str, Any], name: str, unit: float) -> str:
    return f"{event[name] / unit:.4g}" if event.get(name) else ""


def _share(event: dict[str, Any]) -> str:
    return f"{event['share']:.0%}" if event.get("share") is not None else ""
