"""The kit as tests: each check is one, and each row of the op table. What is refused with a reason is skipped.

Run with `pytest --pyargs weft_conformance --weft-backend NAME`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from weft_conformance.checks import table
from weft_conformance.kit import Check, Kit
from weft_conformance.options import chosen, kit_of
from weft_conformance.report import Finding, Verdict


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each check and of each row that are chosen."""
    checks, rows = chosen(metafunc.config)
    each = [c for c in checks if c.name != table.NAME]
    each += [Check(row.id, "", "", partial(table.look_at_row, row=row)) for row in rows]
    metafunc.parametrize("check", each, ids=lambda c: c.name)


@pytest.fixture(scope="session")
def kit(request: pytest.FixtureRequest) -> Kit:
    """Return the kit for the device that the command line names."""
    return kit_of(request.config)


def test_conformance(kit: Kit, check: Check) -> None:
    """Do one check, or look at one row of the op table."""
    _conclude(kit.look(check))


def _conclude(findings: Sequence[Finding]) -> None:
    bad = [str(f) for f in findings if f.verdict.is_bad]
    if bad:
        pytest.fail("\n".join(bad), pytrace=False)
    if findings and all(f.verdict is Verdict.REFUSED for f in findings):
        pytest.skip(f"refused: {findings[0].message}")
