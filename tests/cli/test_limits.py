"""`--limit`: what a model may cost, on every command that reads one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from weft.models import path

COMMANDS = {
    "run": ["-d", "cpu"],
    "bench": ["-d", "cpu"],
    "compare": ["-d", "cpu,opencl"],
    "inspect": [],
    "optimize": ["-d", "cpu", "-o", "saved.weft"],
    "tune": ["-d", "cpu", "-o", "table.json"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_keeps_to_the_limits(
    command: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli(command, path("shapes"), *COMMANDS[command], "--limit", "nodes=7", status=2).err
    assert "beyond the limit 'nodes'" in said and "--limit nodes=" in said


@pytest.mark.parametrize(
    ("given", "wrong"), [("nodes", "NAME"), ("nodes=x", "not a number"), ("nods=7", "no limit 'nods'")]
)
def test_limits_that_make_no_sense_are_refused(given: str, wrong: str, cli: Cli) -> None:
    said = cli("inspect", path("shapes"), "--limit", given, status=2).err
    assert wrong in said or ("=" in said and "--limit" in said)


def test_what_is_left_to_run_is_within_what_inspect_shows(cli: Cli) -> None:
    assert "fold_constants" in cli("inspect", path("shapes"), "--passes", "--limit", "folding_bytes=0").out
