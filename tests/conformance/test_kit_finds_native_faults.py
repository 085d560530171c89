"""The kit's check of C backends finds each library that breaks one rule of the header."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.plugins import ROOT, needs_compiler, write
from weft.core.contract.backend_options import NO_OPTIONS
from weft.core.registry.backend_registry import registry
from weft.plugins.native import NativeCreator, load_library
from weft_conformance import ConformanceReport, Verdict, run
from weft_conformance.checks.native import tried
from weft_conformance.native.calls import Calls
from weft_conformance.native.memory import Library
from weft_conformance.native.rules import RULES, Trial, look

pytestmark = needs_compiler
SOURCE = (ROOT / "tests" / "helpers" / "native_backend.c").read_text()

COUNTED = "what is given back"
"""The rule that counts what its process holds, so it needs one of its own: what other tests free would hide a leak."""
FAULTS: dict[str, tuple[str, str]] = {
    "SIZE_IN_FIELD": ("the table", "ends inside a field"),
    "SIZE_TOO_LARGE": ("the table", "more than this version"),
    "VERSION_NOT_UTF8": ("the table", "is not UTF-8"),
    "CHANGES_TABLE": ("opening and closing", "make it static const"),
    "LONG_NAME": ("devices and options", "the name of device 0 does not end with a NUL"),
    "INFO_BEHIND": ("devices and options", "device_info wrote behind the end"),
    "HALF_SOFTWARE": ("devices and options", "gave 7 for software"),
    "ABSENT_WRITES": ("devices and options", "absent wrote a message beyond the 64 bytes"),
    "LONG_DOC": ("devices and options", "the doc of option 0 does not end with a NUL"),
    "DEFAULT_IS_TWO": ("devices and options", "the default of option 0 is 2"),
    "RETURNS_TWO": ("answers of supports", "returned 2, which is neither 1 nor 0"),
    "NO_REASON": ("answers of supports", "its reason is ''"),
    "NO_NUL": ("answers of supports", "without a NUL at its end"),
    "IGNORES_SIZE": ("answers of supports", "beyond the 64 bytes that it was given"),
    "NOT_UTF8": ("answers of supports", "that is not UTF-8"),
    "CHANGES_NODE": ("answers of supports", "it changed the node"),
    "TAKES_ANY_TYPE": ("element types of later versions", "of an element type that no header has, 99"),
    "OPENS_ONCE": ("opening and closing", "the device is in use"),
    "OPENS_BESIDE": ("opening and closing", "beside *device"),
    "SAME_BUFFER": ("buffers", "a buffer that it had returned before"),
    "UPLOADS_TO_START": ("buffers", "came back as others"),
    "DOWNLOADS_FROM_START": ("buffers", "on gave other bytes"),
    "KEEPS_SOURCE": ("buffers", "came back as others"),
    "WRITES_SOURCE": ("buffers", "upload wrote to its source"),
    "ROUNDS_UP": ("buffers", "download wrote beside the 1 bytes"),
    "HUGE_IS_THERE": ("buffers", "which no memory has"),
    "WRITES_BEHIND": ("runs", "execute wrote 0 bytes behind the end of the output"),
    "WRITES_BEFORE": ("runs", "bytes before the output"),
    "WRITES_INPUT": ("runs", "execute wrote to an input"),
    "NOT_ALL": ("runs", "1 of 102 numbers of output 0 differ"),
    "BOOL_IS_255": ("runs", "execute wrote 255 for a bool"),
    "CHANGES_TENSORS": ("runs", "execute changed what it was shown"),
    "CREATES_BESIDE": ("runs", "beside *state"),
    "WRONG_STATUS": ("runs", "create returned 1, which is a failure: it wrote no message"),
    "LATE_THREAD": ("runs", "the outputs were written after wait had returned"),
    "INDEXES": ("structures of later versions", "never index from one structure to the next"),
    "KEEPS_SHAPE": ("pointers of a call that is over", "when what create was shown is gone"),
    "KEEPS_CONSTANT": ("pointers of a call that is over", "when what create was shown is gone"),
    "KEEPS_TENSORS": ("pointers of a call that is over", "when what execute was shown is gone"),
    "WRITES_MESSAGE_LATE": ("runs", "the message of execute was written to after execute had returned"),
    "KEEPS_ADDRESSES": ("other memory in each run", "run 2, with tensors elsewhere"),
    "ALIGNED": ("addresses", "a multiple of the element's size alone"),
    "SHARES_STATE": ("states", "states at one time"),
    "SHORT_QUEUE": ("queued work", "of three runs"),
    "IDLE_FAILS": ("queued work", "there is nothing to wait for"),
    "THREAD_LOCAL": ("calls from any thread", "this thread has not opened the device"),
    "STATIC_SCRATCH": ("several devices", "while calls for another device, or about devices, were under way"),
    "COUNT_RESETS": ("several devices", "while calls for another device, or about devices, were under way"),
    "LEAKS_STATES": (COUNTED, "each round of create and destroy left"),
    "LEAKS_BUFFERS": (COUNTED, "each round of allocate and free left"),
    "LEAKS_IN_RUNS": (COUNTED, "each round of execute left"),
    "LEAKS_DEVICES": (COUNTED, "each round of open and close left"),
    "LEAVES_THREAD": (COUNTED, "1 threads"),
    "LEAVES_FILE": (COUNTED, "1 open files"),
}
"""Of each fault, by its macro in native_backend.c: the rule that must find it, and a piece of what is said."""
ON_HOST = {"ALIGNED", "STATIC_SCRATCH", "COUNT_RESETS", "INDEXES"}
OF_THE_PROCESS = {
    "CRASHES": ("states", "ended the process by SIGSEGV in or after execute"),
    "EXITS": ("states", "ended the process with status 3 in or after execute"),
    "CALLS_PYTHON": ("answers of supports", "supports called back into Python"),
}
"""Faults that spoil the process, or are heard in a process of the kit's own alone."""


def library(folder: Path, *macros: str) -> Path:
    options = [f"-D{macro}" for macro in macros]
    return write(folder / "acme_kept_backend.so", SOURCE, "-O0", "-pthread", "-ldl", *options)


def looked(file: Path, subject: str) -> tuple[str, str]:
    """Try a rule, in this process if it may be."""
    if subject == COUNTED:
        ((_, verdict, message),) = tried(str(file), 0, {}, [subject])
        return verdict, message
    creator = load_library(file).creator
    assert isinstance(creator, NativeCreator)
    calls = Calls(creator.table, lambda name: None)
    return look(Trial(Library(calls, 0, NO_OPTIONS, creator.address)), subject)


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_the_right_rule(fault: str, tmp_path: Path) -> None:
    subject, piece = FAULTS[fault]
    file = library(tmp_path, fault, *(["ON_HOST"] if fault in ON_HOST else []))
    verdict, message = looked(file, subject)
    assert verdict == "wrong" and piece in message, message


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("fault", OF_THE_PROCESS)
def test_a_fault_of_the_process_is_found_by_the_right_rule(fault: str, tmp_path: Path) -> None:
    subject, piece = OF_THE_PROCESS[fault]
    found = list(tried(str(library(tmp_path, fault)), 0, {}, [subject]))
    assert [rule for rule, *_ in found] == [subject]
    assert piece in found[0][2]


@pytest.mark.usefixtures("warm_children")
def test_a_call_that_does_not_return_is_named(tmp_path: Path) -> None:
    file = library(tmp_path, "HANGS")
    *_, (rule, verdict, message) = tried(str(file), 0, {}, ["answers of supports", "runs", "states"], patience=2)
    assert (rule, verdict) == ("runs", "ended")
    assert message == "did not return from wait within 2 seconds"


def report(folder: Path, only: Sequence[str], *macros: str) -> ConformanceReport:
    library(folder, *macros)
    registry.rescan([folder])
    try:
        return run("kept", only=only)
    finally:
        registry.rescan()


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("macros", [[], ["ON_HOST"]])
def test_a_right_library_keeps_every_rule(macros: list[str], tmp_path: Path) -> None:
    found = report(tmp_path, ["native", "order", "Relu"], *macros)
    assert found.ok, str(found)
    tried_here = [f for f in found.findings if f.check == "native"]
    assert [f.subject for f in tried_here] == list(RULES)
    refused = [f.subject for f in tried_here if f.verdict is Verdict.REFUSED]
    assert refused == (["buffers"] if macros else ["addresses"])


@pytest.mark.usefixtures("warm_children")
def test_after_a_crash_the_other_rules_are_tried_and_no_other_check(tmp_path: Path) -> None:
    found = report(tmp_path, ["native", "order"], "CRASHES")
    native = [f for f in found.findings if f.check == "native"]
    assert [f.subject for f in native] == list(RULES)
    assert [f.subject for f in native if f.verdict.is_bad] == ["states"]
    (order,) = (f for f in found.findings if f.check == "order")
    assert order.verdict is Verdict.NOTHING
    assert "SIGSEGV in or after execute; here that would end the kit" in order.message


def test_rules_without_a_planted_fault_are_none() -> None:
    assert {subject for subject, _ in FAULTS.values()} == set(RULES)
