"""docs/contract.md: each row names files that exist, and tests that bear its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if re.match(r"\| [MAF]\d+ \|", line)
]
BY_PAGES = {"M15", "F1", "F3", "F4", "F5", "F10", "F11"}
"""Rows that pages, front ends and commands show, whose tests bear the names of these."""


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_row_is_there_once() -> None:
    want = [f"M{n}" for n in range(1, 17)] + [f"A{n}" for n in range(1, 23)] + [f"F{n}" for n in range(1, 12)]
    assert [row[0].strip("| ") for row in ROWS] == want


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| "))
def test_what_a_row_names_is_there(row: list[str]) -> None:
    number, _, places, tests = (cell.strip("| ") for cell in row)
    assert named(places) or places == "not yet"
    for name in named(places):
        assert (ROOT / name).exists(), name
    found = set()
    for name in named(tests):
        text = (ROOT / name).read_text(encoding="utf-8")
        found |= set(re.findall(r"def test_([MAF]\d+)_", text))
    assert number in found or number in BY_PAGES or number == "A7" or places == "not yet"


def test_the_page_names_each_test_file_that_bears_a_row() -> None:
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if re.search(r"^def test_([MAF]\d+|4)_", file.read_text(encoding="utf-8"), re.M):
            name = str(file.relative_to(ROOT))
            assert name in PAGE, f"docs/contract.md does not name {name}"
