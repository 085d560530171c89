"""`weft bench`: how long a network takes, devices side by side."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import weft
from weft.cli.console import line, note, table, working
from weft.cli.inputs import Preparation, collect
from weft.cli.measure import Timing, measure, milliseconds
from weft.cli.options import (
    BackendPathOption,
    DeviceOption,
    InputOption,
    IterationsOption,
    JsonOption,
    ModelArgument,
    ShapeOption,
    WarmupOption,
)
from weft.cli.results import largest_difference
from weft.cli.targets import device_orders, parse_pairs, parse_precisions, parse_shapes
from weft.core.backend import Precision
from weft.core.layout import Array
from weft.frontends.onnx import load as load_onnx
from weft.loading import load

NUMBERS = ("load ms", "first ms", "median ms", "p90 ms", "min ms", "difference")


def bench(
    model: ModelArgument,
    inputs: InputOption = None,
    device: DeviceOption = "all",
    precision: Annotated[str, typer.Option(help="high, normal, low, or several with commas.")] = "high",
    shape: ShapeOption = None,
    iterations: IterationsOption = 50,
    warmup: WarmupOption = 5,
    backend_path: BackendPathOption = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print what takes the time of one run.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Time a network on each device, from host array to host array.

    `load ms` is from the file to a session that is ready to run: reading, planning, compiling (or finding
    kernels in the cache) and uploading weights. `difference` is the largest from the first row's outputs.
    """
    with working(f"reading {model.name}"):
        graph = load_onnx(model)
    files = parse_pairs(inputs, "--input", "x=x.npy")
    arrays, remarks = collect(graph, files, parse_shapes(shape), Preparation())
    for remark in remarks:
        note(remark)
    rows: list[dict[str, Any]] = []
    reference: list[Array] | None = None
    for names in device_orders(device):
        for each in parse_precisions(precision):
            row, outputs = _time(model, names, each, arrays, (iterations, warmup))
            reference = outputs if reference is None else reference
            rows.append({**row, "difference": largest_difference(outputs, reference)})
            if profile:
                rows[-1]["events"] = _events(model, names, each, arrays, warmup)
    _print(model, rows, as_json)


def _time(
    model: Path, names: list[str], precision: Precision, arrays: Mapping[str, Array], times: tuple[int, int]
) -> tuple[dict[str, Any], list[Array]]:
    label = "+".join(names)
    shapes = {name: a.shape for name, a in arrays.items()}
    start = time.perf_counter()
    with working(f"preparing for {label}") as progress:
        session = load(model, names, precision=precision, shapes=shapes, progress=progress)
    loaded = milliseconds(time.perf_counter() - start)
    with session:
        outputs, timing = measure(session, arrays, *times)
        nodes = dict(session.report.nodes_by_device)
    row = {"device": label, "precision": precision.value, "nodes": nodes, "load_ms": loaded, **_times(timing)}
    return row, outputs


def _events(
    model: Path, names: list[str], precision: Precision, arrays: Mapping[str, Array], warmup: int
) -> list[dict[str, Any]]:
    """Return the events of one run of a session of its own, since taking times makes a run slower."""
    shapes = {name: a.shape for name, a in arrays.items()}
    with load(model, names, precision=precision, shapes=shapes, profile=True) as session:
        for _ in range(warmup + 1):
            session.run(arrays)
        return [{"device": e.device, "name": e.name, "us": e.seconds * 1e6} for e in session.profile.events]


def _times(timing: Timing) -> dict[str, Any]:
    return {
        "first_ms": timing.first,
        "median_ms": timing.median,
        "p90_ms": timing.p90,
        "min_ms": timing.best,
        "runs_ms": list(timing.runs),
    }


def _print(model: Path, rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        facts = {
            "model": str(model),
            "weft": weft.__version__,
            "python": platform.python_version(),
            "rows": rows,
        }
        print(json.dumps(facts, indent=2))
        return
    for row in rows:
        events = row.get("events", ())
        if events:
            line(f"{row['device']}, {row['precision']}: {sum(e['us'] for e in events):.1f} us in one run", "bold")
            shown = [(e["device"], e["name"], f"{e['us']:.1f}") for e in sorted(events, key=lambda e: -e["us"])]
            table(("device", "name", "us"), shown, numbers=("us",))
    columns = ("load_ms", "first_ms", "median_ms", "p90_ms", "min_ms")
    table(
        ("device", "precision", "nodes", *NUMBERS),
        [
            (
                row["device"],
                row["precision"],
                ", ".join(f"{d} {n}" for d, n in row["nodes"].items()),
                *(f"{row[c]:.3f}" for c in columns),
                f"{row['difference']:.1e}",
            )
            for row in rows
        ],
        numbers=NUMBERS,
    )
