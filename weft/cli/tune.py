"""`weft tune`: find the fastest kernels for a network on this machine's GPUs, and keep the choices."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from weft import config
from weft.cli.command import FOUND_WRONG, INTERRUPTED
from weft.cli.console import error, line, note, table, working
from weft.cli.inputs import Preparation, collect, shaped, without_state
from weft.cli.json_output import JsonOption, answer, prints_text
from weft.cli.model import read_model
from weft.cli.options import BackendPathOption, ModelArgument, load_flags
from weft.cli.parsing import device_orders, parse_precisions
from weft.cli.writing import check_writable
from weft.core.contract.backend import Precision
from weft.core.graph.layout import Array
from weft.core.registry.backend_registry import registry
from weft.errors import ConfigError
from weft.loading import load

if TYPE_CHECKING:
    from weft.backends.gpu.tuning.prospect import Prospect
    from weft.backends.gpu.tuning.tuner import Tuned
    from weft.backends.gpu.tuning_tables.tuning_table import TuningTable

NUMBERS = ("nodes", "default us", "best us", "gain")
_TRIVIAL = re.compile(r"\b\w+=(?:0|1|False)(?:, |(?=\)))")


@load_flags("device", "shapes", "backend_options", "limits", device="all", shapes="alone")
def tune(
    options: dict[str, Any],
    model: ModelArgument,
    precision: Annotated[str, typer.Option(help="high, normal, low, or several with commas.")] = "high",
    budget: Annotated[float, typer.Option(min=0.0, help="Seconds for each device and precision, at most.")] = 60.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also add what is known of this network to a table here.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Try again what was tried before.")] = False,
    backend_path: BackendPathOption = None,
    as_json: JsonOption = None,
) -> None:
    """Time the candidates of each kernel of a network on its devices, and keep the fastest that is right.

    Later loads on the same device and driver use the choices. Times are of one node on the device, by its
    own clock; `gain` is how many times faster the choice is than the default. What the budget or an interrupt
    leaves undone is left to the next call. The exit status is 1 if what was found cannot be kept, and 0 where no
    device has anything to tune.
    """
    if output is not None:
        _check(output)
    else:
        _check_cache()
    device, shape = options.pop("device"), options.pop("shapes")
    graph = without_state(read_model(model, options["limits"]), False)
    arrays, remarks = collect(*shaped(graph, shape), {}, Preparation())
    for remark in remarks:
        note(remark)
    if not config.tuning_enabled():
        note("loads will not use what is found: WEFT_TUNING=0 is set")
    tables: list[TuningTable] = []
    runs: list[dict[str, Any]] = []
    for names in device_orders(device):
        for each in parse_precisions(precision):
            found = _tune(model, names, each, arrays, (budget, again), output, options, prints_text(as_json))
            tables += found.tables
            runs.append(found.as_json())
    if not tables:
        note(_where_to_tune())
    why = dict.fromkeys(t.why_not_kept for t in tables if t.why_not_kept)
    for reason in why:
        note(f"nothing is kept for later loads: {reason}")
    answer(as_json, lambda: {"model": model, "runs": runs, "why_not_kept": list(why)})
    if why and output is None:
        _give_up("what was found is lost", "; ".join(why))


@dataclass
class _Found:
    """What tuning for one order of devices at one precision came to."""

    device: str
    precision: Precision
    tables: list[TuningTable] = field(default_factory=list)
    """Those of the GPUs among the devices, as they are kept in the cache."""
    prospects: list[Prospect] = field(default_factory=list)
    rows: list[Tuned] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    why_not: str = ""
    """Why there is nothing to tune."""

    def as_json(self) -> dict[str, Any]:
        """Return it as data."""
        return {
            "device": self.device,
            "precision": self.precision.value,
            "prospects": [asdict(each) for each in self.prospects],
            "problems": [{**asdict(each), "gain": each.gain} for each in self.rows],
            "tables": self.files,
            "why_not": self.why_not,
        }


def _check(output: Path) -> None:
    """Raise ConfigError if a table cannot be added there: before the work, not after it."""
    from weft.backends.gpu.tuning_tables.tuning_table import read_tables

    where, fix = f"--output {output}", "name another file"
    if not output.parent.is_dir():
        raise ConfigError(f"there is no folder {output.parent}", where=where, fix=f"make it, or {fix}")
    read_tables(output, fix)
    check_writable(output, "--output")


def _tune(
    model: Path, names: list[str], precision: Precision, arrays: Mapping[str, Array],
    effort: tuple[float, bool], output: Path | None, options: Mapping[str, Any], prints: bool,
) -> _Found:
    """Tune for one order of devices, print what was found if it is to be printed, and return it."""
    from weft.backends.gpu.tuning.prospect import prospects
    from weft.backends.gpu.tuning.tuner import by_runtime, tune_pipelines
    from weft.backends.gpu.tuning_tables.tuning_table import write_tables

    say = line if prints else _say_nothing
    done = _Found("+".join(names), precision)
    label = f"{done.device}, {precision.value}"
    try:
        with working(f"loading for {label}"):
            shapes = {name: array.shape for name, array in arrays.items()}
            session = load(model, names, precision=precision, shapes=shapes, wait="all", **options)
        with session:
            if session.optimized.tail is not None:  # so that stages which only a run plans are tuned, too
                session.run(arrays)
            ran_on = ", ".join(session.report.nodes_by_device)
            done.tables = [runtime.tuning for runtime, _ in by_runtime(session.pipelines)]
            done.prospects = [each for each in prospects(session.pipelines, again=effort[1]) if each.problems]
            if done.prospects:
                say(label, "bold")
            for each in done.prospects:
                say(_hope(each))
            with working(f"tuning for {label}") as progress:
                done.rows = tune_pipelines(session.pipelines, budget=effort[0], again=effort[1], progress=progress)
    except KeyboardInterrupt:
        _say_interrupted(done.tables, effort[1])
        raise typer.Exit(INTERRUPTED) from None
    if not done.rows:
        no_gpu = f"there is nothing to tune on {ran_on}: only GPUs choose"
        done.why_not = "there is nothing to choose from" if done.tables else no_gpu
        say(f"{label}: {done.why_not}")
        return done
    if prints:
        _print(done.rows)
    if output is not None:
        keys = {row.problem for row in done.rows}
        try:
            write_tables(output, {t.key: t.subset(keys) for t in done.tables})
        except OSError as e:
            _give_up(f"{output} cannot be written", e.strerror or str(e))
    done.files = [path for path in (*(t.file for t in done.tables), output) if path is not None]
    for path in done.files:
        say(f"table: {path}")
    return done


def _say_nothing(text: str, style: str = "") -> None:
    """Take the place of `line` where JSON does."""


def _where_to_tune() -> str:
    """Say which devices have something to tune."""
    from weft.backends.gpu.creator import GpuCreator

    gpus = {creator.id for creator in registry.creators() if isinstance(creator, GpuCreator)}
    names = [f"{d.id}:{d.index}" for d in registry.devices() if d.id in gpus]
    if not names:
        return "no device here has anything to tune: `weft doctor` says what is missing for OpenCL and Vulkan"
    return f"nothing was tuned; --device {' or '.join(names)} has kernels to choose"


def _give_up(what: str, why: str) -> NoReturn:
    """Say that nothing can be kept, and end with the status 1."""
    fix = "keep it in a file, with --output FILE, or name another folder in WEFT_CACHE_DIR"
    error(str(ConfigError(what, why=why, fix=fix)))
    raise typer.Exit(FOUND_WRONG)


def _check_cache() -> None:
    """Give up if nothing can be kept in the cache: before the work, not after it."""
    from weft.backends.gpu.tuning_tables.tuning_table import FOLDER

    what = "what `weft tune` finds could not be kept"
    if not config.cache_enabled():
        _give_up(what, "WEFT_CACHE=0 is set")
    folder = config.cache_dir() / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        _give_up(what, f"the folder {folder} cannot be written: {e.strerror or e}")


def _say_interrupted(tables: list[TuningTable], again: bool) -> None:
    on = "run the same command" + (" without --again" if again else "")
    for each in tables:
        if each.why_not_kept:
            note(f"interrupted; nothing is kept: {each.why_not_kept}")
        elif each.file:
            note(f"interrupted; what was tried so far is kept in {each.file}: {on} to go on")
    if not any(each.why_not_kept or each.file for each in tables):
        note("interrupted before anything was tried")


def _print(rows: list[Tuned]) -> None:
    shown = [
        (
            _short(row.problem),
            str(row.nodes),
            _number(row.default_us),
            _number(row.us),
            _number(row.gain, 2),
            "default" if row.choice == row.default else row.choice,
        )
        for row in rows
    ]
    table(("problem", "nodes", "default us", "best us", "gain", "choice"), shown, numbers=NUMBERS)
    line(_total(rows))
    skipped, tried = sum(r.skipped for r in rows), sum(r.tried for r in rows)
    line(f"candidates tried: {tried}" + (f"; {skipped} not, for lack of time: --budget" if skipped else ""))
    for row in rows:
        for text, why in row.failed.items():
            note(f"{_short(row.problem)}: {text} is out: {why}")


def _short(problem: str) -> str:
    return _TRIVIAL.sub("", problem).replace(", )", ")")


def _hope(prospect: Prospect) -> str:
    """Say what tuning can hope for."""
    open_ = prospect.problems - prospect.tuned
    if not open_:
        return f"tuned problems: {prospect.tuned}; none is open, so there is nothing to hope for without --again"
    said = f"open problems: {open_}, which take {prospect.us:.1f} us of a run; "
    if prospect.unknown_us >= prospect.us:
        return f"{said}how far such choices are from the best was never measured on such a device"
    of = f" for {prospect.us - prospect.unknown_us:.1f} us of it" if prospect.unknown_us else ""
    gain = f"{prospect.gain_us:.1f} us ({prospect.gain_us / prospect.us:.0%})"
    return f"{said}hope for about {gain}, as far as such choices{of} were from the best elsewhere"


def _total(rows: list[Tuned]) -> str:
    """Return the times of all nodes together, as far as they are known."""
    timed = [(r.nodes * r.default_us, r.nodes * r.us) for r in rows if r.default_us and r.us]
    if not timed:
        return "in total: none of the problems has times"
    default, best = (sum(times) for times in zip(*timed, strict=True))
    of = "" if len(timed) == len(rows) else f", of {len(timed)} of {len(rows)} problems"
    return f"in total{of}: {default:.1f} us by default, {best:.1f} us tuned, {default / best:.2f} times faster"


def _number(number: float | None, digits: int = 1) -> str:
    return "-" if number is None else f"{number:.{digits}f}"
