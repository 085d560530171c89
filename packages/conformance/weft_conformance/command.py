"""The command `weft conformance`: check a backend against the device contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.command import FOUND_WRONG
from weft.cli.console import error, line, note, table, working
from weft.cli.inputs import Preparation, collect, shaped
from weft.cli.json_output import JsonOption, JsonTarget, answer
from weft.cli.model import read_model
from weft.cli.options import BackendOptionOption, InputOption, PrecisionOption, ShapeOption
from weft.cli.parsing import parse_backend_options, parse_pairs
from weft.core.contract.backend import Precision
from weft.core.contract.backend_options import BackendOptions
from weft.core.graph.limits import Limits
from weft.core.registry.backend_registry import registry
from weft.errors import ConfigError

if TYPE_CHECKING:
    from weft_conformance import ConformanceReport, Finding, Verdict

_NAME = 'A device: "acme", "vulkan:1"; or the file of a backend: acme_npu_backend.so'
SHOWN = 3
"""How many subjects are named where a check says the same of several."""

# Commands import the kit late: with its table of ops it takes longer to import than the command line to start.


def conformance(
    name: Annotated[str, typer.Argument(help=_NAME, show_default=False)] = "",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Checks, ops, or parts of rows' names, with commas; may be given several times."),
    ] = None,
    as_json: JsonOption = None,
    precision: PrecisionOption = Precision.HIGH,
    backend_path: Annotated[
        list[Path] | None,
        typer.Option(help="A folder with backends; takes the place of WEFT_DYNAMIC_BACKEND_PATHS."),
    ] = None,
    backend_option: BackendOptionOption = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the first random network; others follow.")] = 0,
    seconds: Annotated[
        float, typer.Option(min=0, help="Draw random networks for this long, and at least the usual number.")
    ] = 0.0,
    model: Annotated[
        Path | None,
        typer.Option(help="Check the backend on this model instead: layer by layer against the CPU, and as a whole."),
    ] = None,
    inputs: InputOption = None,
    shape: ShapeOption = None,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks.")] = False,
) -> None:
    """Check a backend against the device contract: count what it supports, refuses with a reason, and gets wrong.

    The exit status is 1 if anything is wrong or a reason is missing. With --model, the first layer that is wrong is
    named first.
    """
    if list_checks:
        _list(as_json)
        return
    if not name:
        raise ConfigError("no device was named", fix="weft conformance NAME; weft devices lists them")
    if name.endswith(".py") or ".so" in name:
        name = _device_in(Path(name))
    elif backend_path:
        registry.rescan([p.absolute() for p in backend_path])
    own = parse_backend_options(backend_option)
    if model is not None:
        report = _on_model(name, model, only, inputs, shape, precision, own)
    elif inputs or shape:
        raise ConfigError("--input and --shape are about a model", fix="name it: --model model.onnx")
    else:
        from weft_conformance import run

        with working(f"checking {name} against the contract") as progress:
            report = run(
                name, only=only or (), precision=precision, progress=progress, backend_options=own, seed=seed,
                seconds=seconds,
            )
    answer(as_json, report.to_json, lambda: _print(report))
    if not report.ok:
        raise typer.Exit(FOUND_WRONG)


def _on_model(
    name: str, model: Path, only: list[str] | None, inputs: list[str] | None, shape: list[str] | None,
    precision: Precision, own: BackendOptions,
) -> ConformanceReport:
    """Return what a device gets wrong of a model, with inputs from files or random ones."""
    from weft_conformance import run_model

    if only:
        raise ConfigError("--only names checks of the kit, and --model is one by itself", fix="leave one of them out")
    graph = read_model(model, Limits())
    arrays, remarks = collect(*shaped(graph, shape), parse_pairs(inputs, "--input", "x=x.npy"), Preparation())
    for remark in remarks:
        note(remark)
    with working(f"checking {name} on {model.name}") as progress:
        return run_model(name, graph, arrays, precision=precision, progress=progress, backend_options=own)


def _device_in(file: Path) -> str:
    """Return the id of the backend in a file; ConfigError if there is none that can be used."""
    if not file.is_file():
        raise ConfigError(
            f"{file} cannot be checked against the contract",
            why="there is no such file",
            fix="check the path, or name a registered device: weft devices lists them",
        )
    registry.rescan([file.absolute().parent])
    origin = str(file.resolve())
    found = next((id_ for id_, known in registry.origins().items() if known == origin), None)
    if found is None:
        name = "it is not named <vendor>_<name>_backend.so or .py, vendor and name of letters and digits"
        raise ConfigError(
            f"{file} holds no backend that can be used",
            why=registry.failures.get(origin, name),
            fix="mend the file; docs/add-a-backend.md says what it must export",
        )
    return found


def _list(as_json: JsonTarget | None) -> None:
    from weft_conformance import CHECKS

    rows = [(c.name, c.rows, c.description) for c in CHECKS.values()]
    facts = [dict(zip(("name", "rows", "description"), row, strict=True)) for row in rows]
    answer(as_json, lambda: {"checks": facts}, lambda: table(("check", "rows", "what it looks at"), rows))


def _alike(report: ConformanceReport) -> Iterable[Sequence[Finding]]:
    """Return the bad findings; if one check says the same of several rows, they are one."""
    groups: dict[tuple[str, Verdict, str], list[Finding]] = {}
    for f in report.findings:
        if f.verdict.is_bad:
            groups.setdefault((f.check, f.verdict, f.message.replace(f.subject, "")), []).append(f)
    return groups.values()


def _print(report: ConformanceReport) -> None:
    from weft_conformance import Verdict

    columns = [v for v in Verdict if v is not Verdict.NOTHING or report.counts()[v]]
    headers = [v.value for v in columns]
    rows = [(check, *(str(report.counts(check)[v]) for v in columns)) for check in report.checks]
    rows.append(("in all", *(str(report.counts()[v]) for v in columns)))
    table(("check", *headers), rows, numbers=headers)
    for text in report.notes:
        note(f"note: {text}")
    for alike in _alike(report):
        first, *others = alike
        text = str(first)
        if others:
            text += f"\n  and so for {len(others)} more: {', '.join(f.subject for f in others[:SHOWN])}"
        error(text + (" ..." if len(others) > SHOWN else ""))
    verdict = "keeps the contract" if report.ok else "does not keep the contract"
    line(f"{report.device}, precision {report.precision}: {verdict} in what was tried", "bold")
