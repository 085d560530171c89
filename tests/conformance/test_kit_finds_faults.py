"""The kit finds each backend that breaks the contract in one place, and blames the right check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.helpers.fakes import Maker, registered
from tests.helpers.faults.answers import DecidesLate
from tests.helpers.faults.every_fault import FAULTS
from tests.helpers.faults.listing import Fault
from tests.helpers.run_length import is_long
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import Backend, BackendCreator, BackendInfo
from weft.core.contract.views import OptimizationViews, SubgraphView
from weft_conformance import CHECKS, ConformanceReport, Finding, Kit, Verdict, run

pytestmark = pytest.mark.usefixtures("passes_unchecked")  # tests/conformance/test_our_backends.py has them checked
WIDE = "wide-integers"
ROWS = ["Softmax", "Erf", "Relu", "MatMul", "Gather", "ReduceSum", "MaxPool", WIDE]
CHOSEN = [*(name for name in CHECKS if name != "table"), *ROWS]
"""Every check, and rows of a few ops."""
SLOW = {"table", "outputs", "support", "large", "threads", "leaks"}
"""Checks that take four fifths of the time: a fault is shown to those of them that must find it."""
QUICK = [name for name in CHOSEN if is_long() or name not in SLOW]
"""What shows in the short run how a refusal is judged."""
SHOWN = [pytest.param(False, id="to its check"), pytest.param(True, id="to all quick checks", marks=pytest.mark.long)]


def examine(made: type[Backend], only: Sequence[str] = CHOSEN) -> ConformanceReport:
    with registered(Maker(made)):
        return run("acme", only=only)


def end_when_found(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Have the check of a fault end where it says what the fault is: what it would find after that is not judged."""
    check = CHECKS[fault.check]

    def look(kit: Kit) -> Iterator[Finding]:
        for finding in check.look(kit):
            yield finding
            if finding.verdict.is_bad and fault.piece in str(finding):
                break

    monkeypatch.setitem(CHECKS, fault.check, replace(check, look=look))


def rows_of(fault: Fault) -> Sequence[str]:
    """Return the rows that a fault names, or those of the ops that it spoils, where it says which."""
    if rows := getattr(fault.made, "rows", ()):
        return (*rows,)
    ops = (*getattr(fault.made, "ops", ()),)
    return [row for row in ROWS if row in ops or (row == WIDE and "Add" in ops)] or ROWS


@pytest.mark.parametrize("to_all", SHOWN)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_the_right_check(name: str, to_all: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    if not is_long():
        end_when_found(monkeypatch, fault)
    shown = [c for c in CHECKS if (to_all and c not in SLOW) or c == fault.check != "table"]
    report = examine(fault.made, [*shown, *(rows_of(fault) if fault.check == "table" else ())])
    assert not report.ok
    bad = [f for f in report.findings if f.verdict.is_bad]
    found = [f for f in bad if f.check == fault.check]
    assert found, report
    assert any(fault.piece in str(f) for f in found), report
    assert {f.check for f in bad} <= {fault.check, *fault.others}, report


def test_a_right_backend_is_not_accused() -> None:
    """What it shows of checks that take most of the time, test_our_backends.py shows of the same backend."""
    left_out = set() if is_long() else {"outputs", "leaks"}
    report = examine(CpuBackend, [name for name in CHOSEN if name not in left_out])
    assert report.ok, str(report)
    assert set(report.checks) == set(CHECKS) - left_out


class FailsWithReason(CpuBackend):
    """Refuses an op only when it is to be optimised."""

    def OptimizeSubgraph(self, view: SubgraphView) -> OptimizationViews:
        views = OptimizationViews()
        softmax = [n for n in view.nodes if n.op.type == "Softmax"]
        if softmax:
            views.fail(view.part(softmax), "its compiler has no exponential function")
        return views.keep_rest(view)


def test_a_late_refusal_with_a_reason_is_right_and_noted() -> None:
    report = examine(FailsWithReason, QUICK)
    assert report.ok, report
    assert [f.message for f in report.findings if f.verdict is Verdict.REFUSED and f.check == "table"]
    assert any("Softmax is refused only after why_not took it" in note for note in report.notes)


def test_a_backend_that_decides_in_onCreate_alone_is_right_and_noted() -> None:
    report = examine(DecidesLate, QUICK)
    assert report.ok, report
    assert report.counts("resize")[Verdict.SUPPORTED] == len([f for f in report.findings if f.check == "resize"])
    assert any("Relu is refused only after why_not took it" in note for note in report.notes), report.notes


def test_a_callback_that_the_contract_does_not_have_is_noted() -> None:
    class Misspelt(CpuBackend):
        def onAquireBuffer(self, *_: object) -> bool:
            return True

        def onMapInput(self, *_: object) -> None:
            """Do what an earlier interface asked for."""

    report = examine(Misspelt, ["creator"])
    assert report.ok and report.notes == (
        "nothing calls onAquireBuffer, onMapInput of Misspelt: the contract has no such callback",
    )


class RefusesAll(CpuBackend):
    def why_not(self, inputs: object, outputs: object, op: object) -> str | None:
        return "this backend is on holiday"


def test_a_backend_that_refuses_all_is_not_wrong_and_supports_nothing() -> None:
    report = examine(RefusesAll)
    assert report.ok, report
    assert report.counts("order")[Verdict.REFUSED] == 1
    assert any("this backend is on holiday" in f.message for f in report.findings if f.check == "order")


def test_there_are_faults_for_every_check() -> None:
    # Those of C backends are in test_kit_finds_native_faults.py.
    assert {fault.check for fault in FAULTS.values()} | {"native"} == set(CHECKS)


class Talks(CpuBackend):
    def why_not(self, inputs: object, outputs: object, op: object) -> str | None:
        print("asked again")
        return None


def test_what_callbacks_print_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    with registered(Maker(Talks)):
        report = run("acme", only="support,creator")
    assert report.ok, report
    assert report.notes == ("why_not writes to stdout, which is the user's: 'asked again'",)
    assert "asked again" in capsys.readouterr().out


class NeverOpens(BackendCreator):
    def onCreate(self, info: BackendInfo) -> Backend:
        raise SystemExit("this device is not to be had")


def test_a_device_that_cannot_be_opened_is_wrong_in_every_check() -> None:
    with registered(NeverOpens()):
        report = run("acme", only=CHOSEN)
    assert set(report.checks) == set(CHECKS)
    assert report.counts()[Verdict.SUPPORTED] <= 3, report  # the creator says what devices there are
    assert any("not to be had" in f.message and "BackendCreator.onCreate" in f.message for f in report.wrong)


class Interrupted(CpuBackend):
    def why_not(self, inputs: object, outputs: object, op: object) -> str | None:
        raise KeyboardInterrupt


def test_the_user_ends_the_kit() -> None:
    with registered(Maker(Interrupted)), pytest.raises(KeyboardInterrupt):
        run("acme", only="support")


def test_an_internal_error_names_the_callback_and_what_it_returned() -> None:
    report = examine(FAULTS["OptimizesToNothing"].made, QUICK)
    assert all("OptimizeSubgraph" in f.message for f in report.wrong), report
