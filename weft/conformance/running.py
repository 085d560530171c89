"""`weft.conformance.run`: hold a backend against the contract and return the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from weft.conformance.cases.table import Case
from weft.conformance.checks import table
from weft.conformance.kit import CHECKS, Check, Kit
from weft.conformance.report import ConformanceReport, Finding
from weft.core.backend import Precision
from weft.core.registry import registry
from weft.errors import ConfigError

Progress = Callable[[int, int], None]


def open_kit(name: str, precision: str | Precision = Precision.HIGH) -> Kit:
    """Return the kit for a device: "acme", "vulkan:1"; NoDevice if it is not registered or not there."""
    try:
        wanted = Precision(precision)
    except ValueError:
        known = ", ".join(p.value for p in Precision)
        raise ConfigError(f"precision {precision!r} is not known", fix=f"use one of {known}") from None
    (choice,) = registry.choose(name)
    kit = Kit(choice, wanted)
    with kit.opened() as backend:
        for note in backend.notes():
            kit.note(note)
    return kit


def select(only: str | Sequence[str] = ()) -> tuple[list[Check], list[Case]]:
    """Return the checks and the rows of the op table that the words name; all of them without a word.

    A word is the name of a check, an op ("Softmax": its rows), or a part of a row's id. ConfigError names
    the words that fit nothing.
    """
    words = [only] if isinstance(only, str) else list(only)
    rows = table.all_rows()
    if not [w for w in words if w]:
        return list(CHECKS.values()), rows
    checks = [c for c in CHECKS.values() if c.name in words]
    chosen = rows if table.NAME in words else []
    unknown = []
    for word in (w for w in words if w and w not in CHECKS):
        fitting = [r for r in rows if r.op == word] or [r for r in rows if word.lower() in r.id.lower()]
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


def run(
    name: str,
    *,
    only: str | Sequence[str] = (),
    rows: Sequence[Case] = (),
    precision: str | Precision = Precision.HIGH,
    progress: Progress | None = None,
) -> ConformanceReport:
    """Return what the kit finds on a device, with some checks and rows (see `select`) or all.

    `rows` are looked at besides: those of a vendor's own ops, made with `weft.conformance.case`. `progress` is
    called with the number of checks and rows that are done, and of all.
    """
    checks, chosen = select(only)
    kit = open_kit(name, precision)
    steps: list[Callable[[], list[Finding]]] = []
    for each in checks:
        if each.name == table.NAME:
            steps += [partial(table.look_at_row, kit, row) for row in chosen]
        else:
            steps.append(partial(kit.look, each))
    steps += [partial(table.look_at_row, kit, row) for row in rows]
    findings: list[Finding] = []
    for done, step in enumerate(steps):
        if progress is not None:
            progress(done, len(steps))
        findings += step()
    return ConformanceReport(kit.device, kit.precision.value, tuple(findings), tuple(kit.notes))


