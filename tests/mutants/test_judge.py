"""What scripts.mutants says of faults in a small tree, and that a stopped run goes on where it was."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scripts.mutants.faults import Mutant, choose
from scripts.mutants.judge import NOT_TRIED, Judge

CODE = """\
def larger(values, low):
    return [v for v in values if v > low]

def unused(values):
    values.clear()

def unasked(values):
    return len(values)
"""
TESTS = """\
from weft import a

def test_larger():
    assert a.larger([1, 2], 1) == [2]

def test_unasked():
    a.unasked([])
"""


class Case(NamedTuple):
    """A tree, its mutants in the order of their lines, and where the judge keeps what it found."""

    tree: Path
    mutants: list[Mutant]
    folder: Path

    def judged(self, resume: bool, seconds: float = 600.0) -> dict[str, Any]:
        """Run the judge, which begins no mutant after some seconds; return what it wrote."""
        out = self.folder / "out.json"
        result = Judge(
            tree=self.tree, mutants=self.mutants, side="new", jobs=2, budget=10.0, file_limit=60.0,
            mutant_limit=60.0, end=time.monotonic() + seconds, skip="", divide="", folder=self.folder,
            out=out, resume=resume,
        ).run()
        assert json.loads(out.read_text()) == result
        return result


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    tree, folder = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("folder")
    for name, text in (("weft/__init__.py", ""), ("weft/a.py", CODE), ("tests/test_a.py", TESTS)):
        path = tree / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Case(tree, sorted(choose(tree, tree, 10, seed=3), key=lambda m: m["new"]["line"]), folder)


@pytest.fixture(scope="module")
def stopped(case: Case) -> dict[str, Any]:
    return case.judged(resume=False, seconds=-1.0)


@pytest.fixture(scope="module")
def resumed(case: Case, stopped: dict[str, Any]) -> dict[str, Any]:
    return case.judged(resume=True)


def test_a_mutant_is_caught_not_reached_or_survives(resumed: dict[str, Any]) -> None:
    assert resumed["verdicts"] == ["caught", "not reached", "survived"]
    assert resumed["tests"] == [1, 0, 1]


def test_a_run_without_time_tries_no_mutant(stopped: dict[str, Any]) -> None:
    assert stopped["verdicts"] == [NOT_TRIED, "not reached", NOT_TRIED]


def test_a_resumed_run_runs_no_file_or_mutant_again(case: Case, resumed: dict[str, Any]) -> None:
    (case.tree / "tests/test_a.py").write_text("")  # to run it again would find nothing
    assert case.judged(resume=True) == resumed


def test_verdicts_of_other_mutants_are_refused(case: Case, resumed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"out.json has verdicts of other mutants"):
        case._replace(mutants=case.mutants[1:]).judged(resume=True)
