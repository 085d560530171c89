"""Commands that packages add by entry points, and the command whose package is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.cli import Cli

MODULE = """
import typer
def greet(name: str, loud: bool = typer.Option(False, help="As loud as it goes.")) -> None:
    "Greet somebody."
    print(f"hello {name}" + "!" * loud)
NOTHING = 3
"""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def install(site: Path, monkeypatch: pytest.MonkeyPatch, announced: str) -> None:
    """Write a package into a folder, as pip installs it."""
    folder = site / "acme_commands-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-commands\nVersion: 1.2\n")
    (folder / "entry_points.txt").write_text(f"[weft.commands]\n{announced}\n")
    (site / "acme_commands.py").write_text(MODULE)
    monkeypatch.syspath_prepend(site)


def test_a_package_adds_a_command(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "greet = acme_commands:greet")
    assert cli("greet", "you", "--loud").out == "hello you!\n"
    assert "Greet somebody." in cli("--help").out
    assert "As loud as it goes." in cli("greet", "--help").out


@pytest.mark.parametrize(
    ("announced", "why"),
    [
        ("greet = acme_nothing:greet", "acme_nothing:greet cannot be imported"),
        ("greet = acme_commands:NOTHING", "acme_commands:NOTHING is 3, which is no function"),
        ("run = acme_commands:greet", "another command is called run"),
    ],
)
def test_what_is_no_command_is_skipped_with_the_reason(
    announced: str, why: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(tmp_path, monkeypatch, announced)
    assert "No such command 'greet'" in cli("greet", status=2).err
    name = announced.split()[0]
    assert f"entry point {name} (package acme-commands 1.2) adds no command: {why}" in caplog.text


def test_the_command_of_a_package_that_is_missing_says_how_to_get_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.plugins.packages.entry_points", lambda group: [])
    said = cli("conformance", "cpu", status=2).err
    assert "the command conformance is not installed" in said
    assert "pip install ./packages/conformance" in said
    assert "conformance" not in cli("--help").out
