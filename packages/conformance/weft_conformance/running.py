"""`weft_conformance.run`: check a backend against the contract and return the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from weft.core.contract.backend import Precision
from weft.core.contract.backend_options import BackendOptions
from weft.core.contract.error_context import ends_program
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array
from weft.core.registry.backend_registry import registry
from weft.errors import ConfigError
from weft.plugins.native import NativeCreator
from weft_conformance import model as own_model
from weft_conformance.cases.table import Case
from weft_conformance.checks import table
from weft_conformance.kit import CHECKS, Check, Kit
from weft_conformance.report import ConformanceReport, Finding

Progress = Callable[[int, int], None]


def open_kit(
    name: str, precision: str | Precision = Precision.HIGH, backend_options: BackendOptions | None = None
) -> Kit:
    """Return the kit for a device: "acme", "vulkan:1"; NoDevice if it is not registered or not there.

    `backend_options` are those of `weft.load`, for this device.
    """
    try:
        wanted = Precision(precision)
    except ValueError:
        known = ", ".join(p.value for p in Precision)
        raise ConfigError(f"precision {precision!r} is not known", fix=f"use one of {known}") from None
    (choice,) = registry.choose(name)
    choice = choice.with_options(registry.take_options(backend_options).get(choice.creator.id, {}))
    kit = Kit(choice, wanted)
    if not isinstance(choice.creator, NativeCreator):  # has no notes, and the kit opens its device in a child first
        _take_notes(kit)
    return kit


def _take_notes(kit: Kit) -> None:
    """Take over the backend's notes on its configuration; the check `creator` reports what is wrong with them."""
    try:
        with kit.opened() as backend:
            notes: object = backend.notes()
    except BaseException as e:
        if ends_program(e):
            raise
        return
    for note in notes if isinstance(notes, Sequence) else ():
        kit.note(str(note))


def select(only: str | Sequence[str] = ()) -> tuple[list[Check], list[Case]]:
    """Return the checks and the rows of the op table that the words name; all of them without a word.

    A word is the name of a check, an op ("Softmax": its rows), or a part of a row's id; several may be joined
    by commas. ConfigError names the words that match nothing.
    """
    rows = table.all_rows()
    words = [w for given in ([only] if isinstance(only, str) else only) for w in _split(given, rows)]
    if not words:
        return list(CHECKS.values()), rows
    checks = [c for c in CHECKS.values() if c.name in words]
    chosen = rows if table.NAME in words else []
    unknown = []
    for word in (w for w in words if w not in CHECKS):
        fitting = _fitting(word, rows)
        chosen += [r for r in fitting if r not in chosen]
        unknown += [] if fitting else [word]
    if unknown:
        raise ConfigError(
            f"nothing is called {', '.join(map(repr, unknown))}",
            why=f"the checks are {', '.join(CHECKS)}",
            fix="name a check, an op, or a part of a row; weft conformance --list shows them",
        )
    if chosen and table.NAME not in words:
        checks.insert(0, CHECKS[table.NAME])
    return checks, chosen


def _split(given: str, rows: Sequence[Case]) -> list[str]:
    """Return the words of a list with commas; the ids of some rows have commas too."""
    if "," in given and _fitting(given, rows):
        return [given]
    return [w.strip() for w in given.split(",") if w.strip()]


def _fitting(word: str, rows: Sequence[Case]) -> list[Case]:
    return [r for r in rows if r.op == word] or [r for r in rows if word.lower() in r.id.lower()]


def run(
    name: str,
    *,
    only: str | Sequence[str] = (),
    rows: Sequence[Case] = (),
    precision: str | Precision = Precision.HIGH,
    progress: Progress | None = None,
    backend_options: BackendOptions | None = None,
    seed: int = 0,
    seconds: float = 0.0,
) -> ConformanceReport:
    """Return what the kit finds on a device, with some checks and rows (see `select`) or all.

    `rows` are extra rows, of a vendor's own ops, made with `weft_conformance.case`. `progress` is
    called with the number of checks and rows that are done, and of all. `backend_options` are those of `weft.load`.
    Random networks are drawn from `seed` on, for `seconds` if the usual number takes less.
    """
    checks, chosen = select(only)
    kit = open_kit(name, precision, backend_options)
    kit.seed, kit.seconds = seed, seconds
    if chosen and len(chosen) < len(table.all_rows()):
        left = [c for c in ("networks", "convolutions", "outputs", "large", "changes") if CHECKS[c] not in checks]
        if left:
            kit.note(f"only rows of the op table were looked at; ops are also run by the checks {', '.join(left)}")
    steps: list[Callable[[], list[Finding]]] = []
    for each in checks:
        if each.name == table.NAME:
            steps += [partial(table.look_at_row, kit, row) for row in chosen]
        else:
            steps.append(partial(kit.look, each))
    steps += [partial(table.look_at_row, kit, row) for row in rows]
    return _reported(kit, steps, progress)


def run_model(
    name: str,
    model: str | Path | Graph,
    inputs: Mapping[str, Array],
    *,
    precision: str | Precision = Precision.HIGH,
    progress: Progress | None = None,
    backend_options: BackendOptions | None = None,
) -> ConformanceReport:
    """Return what a device gets wrong of a network, given in a file or as a graph, for an array for each input.

    The check `layers` computes each node again from what the device made of its inputs, in two runs; the report's
    first wrong finding is the first wrong layer. The check `network` compares the outputs of the network as it is used
    with the CPU's. Nodes that the device refuses run on the CPU.
    """
    graph = own_model.read(model)
    kit = open_kit(name, precision, backend_options)
    return _reported(kit, [partial(kit.look, each) for each in own_model.looks(graph, inputs)], progress)


def _reported(
    kit: Kit, steps: Sequence[Callable[[], list[Finding]]], progress: Progress | None
) -> ConformanceReport:
    """Take all steps and return what they find."""
    findings: list[Finding] = []
    for done, step in enumerate(steps):
        if progress is not None:
            progress(done, len(steps))
        findings += step()
    return ConformanceReport(kit.device, kit.precision.value, tuple(findings), tuple(kit.notes))


