"""`weft doctor`: whether everything is there, and whether each device computes the right thing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

import typer

from weft.cli.checks import FAIL, all_checks
from weft.cli.console import line, plain, table, working
from weft.cli.options import BackendPathOption, JsonOption


def doctor(
    backend_path: BackendPathOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check packages, loaders, drivers, compiler and cache, and run a small network on each device.

    Every failure comes with what to do about it. The exit status is 1 if something that is installed
    does not work; what is not installed is listed and is no failure.
    """
    with working("examining"):
        checks = all_checks()
    counts = Counter(check.status for check in checks)
    if as_json:
        print(json.dumps({"checks": [asdict(c) for c in checks], "counts": counts}, indent=2))
    else:
        table(("check", "", "found"), [(c.name, c.status, c.found) for c in checks])
        for check in checks:
            if check.fix:
                line(plain(f"{check.name}: {check.fix}"))
        line(", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    if counts[FAIL]:
        raise typer.Exit(1)
