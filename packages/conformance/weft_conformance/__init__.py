"""The conformance kit: check any backend against the device contract.

    report = weft_conformance.run("acme")
    assert report.ok, report

On the command line this is `weft conformance acme`, and with pytest, where each check and each row is a test,
`pytest --pyargs weft_conformance --weft-backend acme`.
"""

from __future__ import annotations

from weft_conformance import checks
from weft_conformance.cases.table import Case, case, tolerance
from weft_conformance.kit import CHECKS, Check, Kit
from weft_conformance.report import ConformanceReport, Finding, Verdict
from weft_conformance.running import open_kit, run, run_model, select

__version__ = "0.1.0"
__all__ = [
    "CHECKS", "Case", "Check", "ConformanceReport", "Finding", "Kit", "Verdict", "case", "checks", "open_kit", "run",
    "run_model", "select", "tolerance",
]
