"""The faults that scripts.mutants puts in, and that a plain test finds one."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.mutants.faults import Finder, apply, choose

BEFORE = """\
LIMIT = 3

def first(values, low):
    if values and not low:
        return [v + 1 for v in values if v < LIMIT]
    values.clear()
    return None
"""
AFTER = '"""Moved."""\n\nclass Box:\n' + "".join(f"    {line}\n" for line in BEFORE.splitlines()[2:])


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    for name, file, text in (("old", "a.py", BEFORE), ("new", "core/b.py", AFTER)):
        path = tmp_path / name / "weft" / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "old", tmp_path / "new"


def test_only_lines_inside_functions_are_changed() -> None:
    finder = Finder(BEFORE)
    found = {(c.kind, finder.text(c.span), c.put) for c in finder.changes()}
    assert found == {
        ("branch turned", "values and not low", "not (values and not low)"),
        ("and, or", " and ", " or "),
        ("not dropped", "not low", "low"),
        ("nothing returned", "return [v + 1 for v in values if v < LIMIT]", "return None"),
        ("sign", " + ", " - "),
        ("constant", "1", "2"),
        ("comparison", " < ", " <= "),
        ("call dropped", "values.clear()", "pass"),
    }


def test_both_trees_get_the_same_fault_at_its_own_place(trees: tuple[Path, Path]) -> None:
    old, new = trees
    mutants = choose(old, new, 10, seed=1)
    assert {m["text"] for m in mutants} == {
        "if values and not low:",
        "return [v + 1 for v in values if v < LIMIT]",
        "values.clear()",
    }
    for m in mutants:
        assert (m["old"]["path"], m["new"]["path"]) == ("weft/a.py", "weft/core/b.py")
        before, after = apply(BEFORE, m, m["old"]), apply(AFTER, m, m["new"])
        assert before != BEFORE
        assert [line.strip() for line in before.splitlines()[2:]] == [
            line.strip() for line in after.splitlines()[3:]
        ]


def test_the_same_seed_chooses_the_same(trees: tuple[Path, Path]) -> None:
    assert choose(*trees, 2, seed=7) == choose(*trees, 2, seed=7)


def test_a_line_that_changed_is_told(trees: tuple[Path, Path]) -> None:
    mutant = choose(*trees, 1, seed=1)[0]
    with pytest.raises(ValueError, match="not the line that was chosen"):
        apply(BEFORE.replace("values", "items"), mutant, mutant["old"])
