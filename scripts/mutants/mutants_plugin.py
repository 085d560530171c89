"""A plugin for pytest: note which tests reach mutated lines, or run named tests in a given order.

It is loaded by its folder's path, not as a part of this package: the tree under test may be older than it.
MUTANTS names a file: {"note": where to write, "lines": {file: {line: [mutant]}}, "part": [k, of]} or {"only": [test]}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

JOB: dict[str, Any] = json.loads(Path(os.environ["MUTANTS"]).read_text())
LINES: dict[str, dict[int, list[int]]] = {
    path: {int(number): mutants for number, mutants in lines.items()}
    for path, lines in JOB.get("lines", {}).items()
}
_reached: set[int] = set()
_rows: dict[str, dict[str, Any]] = {}

# A shell has its background jobs ignore interrupts, and their children inherit that: tests that interrupt would fail.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of this job."""
    if "only" in JOB:
        place = {name: i for i, name in enumerate(JOB["only"])}
        items[:] = sorted(
            (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
        )
    else:
        k, parts = JOB["part"]
        items[:] = items[k::parts]


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the mutants that a test reaches."""
    _reached.clear()
    _watch_again()
    began = _processor_seconds()
    row: dict[str, Any] = {"passed": True}
    _rows[item.nodeid] = row
    yield
    row.update(seconds=_processor_seconds() - began, reached=sorted(_reached))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note that a test did not pass."""
    if not report.passed:
        _rows[report.nodeid]["passed"] = False


def pytest_sessionfinish(exitstatus: int) -> None:
    """Write what was noted, whole or not at all: a run that is resumed takes the file as it is."""
    LINES.clear()
    if "note" in JOB and exitstatus != pytest.ExitCode.INTERRUPTED:
        note = Path(JOB["note"])
        part = note.with_suffix(".part")
        part.write_text(json.dumps(_rows))
        part.replace(note)


def _processor_seconds() -> float:
    """Return this process's seconds and those of its ended children: unlike wall time, the same on a busy machine."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _note(path: str, number: int) -> None:
    if lines := LINES.get(path):
        _reached.update(lines.get(number, ()))


if not LINES:

    def _watch_again() -> None:
        """Nothing is noted."""

elif sys.version_info >= (3, 12):
    _monitoring = sys.monitoring

    def _on_line(code: CodeType, number: int, seen: Any = _monitoring.DISABLE) -> Any:
        if LINES:  # not while the interpreter ends
            _note(code.co_filename, number)
        return seen

    _monitoring.use_tool_id(_monitoring.COVERAGE_ID, "mutants")
    _monitoring.register_callback(_monitoring.COVERAGE_ID, _monitoring.events.LINE, _on_line)
    _monitoring.set_events(_monitoring.COVERAGE_ID, _monitoring.events.LINE)
    _watch_again = _monitoring.restart_events

else:

    def _inside(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            _note(frame.f_code.co_filename, frame.f_lineno)
        return _inside

    def _call(frame: FrameType, event: str, _: object, lines: dict[str, Any] = LINES) -> Any:
        return _inside if frame.f_code.co_filename in lines else None

    def _watch_again() -> None:
        sys.settrace(_call)
