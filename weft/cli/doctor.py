"""`weft doctor`: whether everything is there, and whether each device computes the right thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import typer

from weft.cli.checks import FAIL, Check, all_checks
from weft.cli.command import FOUND_WRONG
from weft.cli.console import line, plain, table, working
from weft.cli.json_output import JsonOption, answer
from weft.cli.options import BackendPathOption


def doctor(
    backend_path: BackendPathOption = None,
    as_json: JsonOption = None,
) -> None:
    """Check packages, loaders, drivers, compiler and cache, and run a small network on each device.

    Every failure comes with what to do about it. The exit status is 1 if something that is installed
    does not work; what is not installed is listed and is no failure.
    """
    with working("examining"):
        checks = all_checks()
    counts = Counter(check.status for check in checks)
    answer(as_json, lambda: {"checks": [asdict(c) for c in checks], "counts": counts}, lambda: _print(checks))
    if counts[FAIL]:
        raise typer.Exit(FOUND_WRONG)


def _print(checks: Sequence[Check]) -> None:
    table(("check", "", "found"), [(c.name, c.status, c.found) for c in checks])
    for check in checks:
        if check.fix:
            line(plain(f"{check.name}: {check.fix}"))
    counts = Counter(check.status for check in checks)
    line(", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
