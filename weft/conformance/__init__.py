"""The conformance kit: check any backend against the device contract.

    report = weft.conformance.run("acme")
    assert report.ok, report

On the command line this is `weft conformance acme`, and with pytest, where each check and each row is a test,
`pytest --pyargs weft.conformance --weft-backend acme`.
"""

from __future__ import annotations

from weft.conformance import checks
from weft.conformance.cases.table import Case, case, tolerance
from weft.conformance.kit import CHECKS, Check, Kit
from weft.conformance.report import ConformanceReport, Finding, Verdict
from weft.conformance.running import open_kit, run, run_model, select

__all__ = [
    "CHECKS", "Case", "Check", "ConformanceReport", "Finding", "Kit", "Verdict", "case", "checks", "open_kit", "run",
    "run_model", "select", "tolerance",
]
