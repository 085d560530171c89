"""`weft tune`: find the fastest kernels for a network on this machine's GPUs, and keep the choices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft import config
from weft.cli.console import line, note, table, working
from weft.cli.inputs import Preparation, collect
from weft.cli.options import BackendPathOption, DeviceOption, ModelArgument, ShapeOption
from weft.cli.targets import device_orders, parse_precisions, parse_shapes
from weft.core.backend import Precision
from weft.core.layout import Shape
from weft.frontends.onnx import load as load_onnx
from weft.loading import load

if TYPE_CHECKING:
    from weft.backends.gpu.tuning import Tuned

NUMBERS = ("nodes", "default us", "best us", "gain")
_TRIVIAL = re.compile(r"\b\w+=(?:0|1|False)(?:, |(?=\)))")


def tune(
    model: ModelArgument,
    device: DeviceOption = "all",
    precision: Annotated[str, typer.Option(help="high, normal, low, or several with commas.")] = "high",
    shape: ShapeOption = None,
    budget: Annotated[float, typer.Option(min=0.0, help="Seconds for each device and precision, at most.")] = 60.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also add what is known of this network to a table here.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Try again what was tried before.")] = False,
    backend_path: BackendPathOption = None,
) -> None:
    """Time the candidates of each kernel of a network on its devices, and keep the fastest that is right.

    Later loads on the same device and driver use the choices. Times are of one node on the device, by its
    own clock; `gain` is how many times faster the choice is than the default.
    """
    from weft.backends.gpu.tuning_table import read_tables

    if output is not None:
        read_tables(output)  # a file that is no table is found before the work, not after it
    with working(f"reading {model.name}"):
        graph = load_onnx(model)
    arrays, remarks = collect(graph, {}, parse_shapes(shape), Preparation())
    for remark in remarks:
        note(remark)
    if not config.tuning_enabled():
        note("loads will not use what is found: WEFT_TUNING=0 is set")
    shapes = {name: a.shape for name, a in arrays.items()}
    for names in device_orders(device):
        for each in parse_precisions(precision):
            _tune(model, names, each, shapes, (budget, again), output)


def _tune(
    model: Path,
    names: list[str],
    precision: Precision,
    shapes: dict[str, Shape],
    effort: tuple[float, bool],
    output: Path | None,
) -> None:
    from weft.backends.gpu.tuning import by_runtime, tune_pipelines
    from weft.backends.gpu.tuning_table import write_tables

    label = f"{'+'.join(names)}, {precision.value}"
    with working(f"tuning for {label}") as progress, load(model, names, precision=precision, shapes=shapes) as session:
        rows = tune_pipelines(session.pipelines, budget=effort[0], again=effort[1], progress=progress)
        found = [runtime.tuning for runtime, _ in by_runtime(session.pipelines)]
    if not rows:
        line(f"{label}: there is nothing to choose from")
        return
    keys = {row.problem for row in rows}
    if output is not None:
        write_tables(output, {t.key: t.subset(keys) for t in found})
    line(label, "bold")
    _print(rows)
    for path in (*(t.path for t in found), output):
        if path is not None:
            line(f"table: {path}")
    if any(t.path is None for t in found):
        note("nothing is kept for later loads: WEFT_CACHE=0 is set")


def _print(rows: list[Tuned]) -> None:
    shown = [
        (
            _TRIVIAL.sub("", row.problem).replace(", )", ")"),
            str(row.nodes),
            _number(row.default_us),
            _number(row.us),
            f"{row.gain:.2f}",
            "default" if row.choice == row.default else row.choice,
        )
        for row in rows
    ]
    table(("problem", "nodes", "default us", "best us", "gain", "choice"), shown, numbers=NUMBERS)
    measured = [r for r in rows if r.default_us is not None and r.us is not None]
    default = sum(r.nodes * (r.default_us or 0.0) for r in measured)
    best = sum(r.nodes * (r.us or 0.0) for r in measured)
    gain = default / best if best else 1.0
    line(f"in total: {default:.1f} us by default, {best:.1f} us tuned, {gain:.2f} times faster")
    skipped, tried = sum(r.skipped for r in rows), sum(r.tried for r in rows)
    line(f"candidates tried: {tried}" + (f"; {skipped} not, for lack of time: --budget" if skipped else ""))
    for row in rows:
        for text, why in row.failed.items():
            note(f"{text} is out: {why}")


def _number(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f}"
