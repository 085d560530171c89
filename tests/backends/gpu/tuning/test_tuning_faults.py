"""What fails while it is tuned: it is not used, is remembered, and costs nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers.timed_gpu import GEMM, TimedDevice, convolutions, timed_gpu
from tests.helpers.tuned_nets import TILES, slices, table_of, tune
from weft.backends.gpu.tuning.node_bench import NodeBench, difference
from weft.backends.gpu.tuning.tuner import PENDING
from weft.backends.gpu.tuning_tables.tuning_table import Entry, Trial
from weft.errors import CompileError, DeviceLost, OutOfMemory


def test_wrong_numbers_disqualify_and_are_remembered(device: TimedDevice) -> None:
    device.does.wrong = {2}
    (row,) = tune(convolutions())
    assert row.choice == repr(TILES[2])
    assert "wrong numbers: off by" in row.failed[repr(TILES[1])]
    ran = len(device.ran)
    (row,) = tune(convolutions())
    assert row.tried == 0 and repr(TILES[1]) in row.failed and row.choice == repr(TILES[2])
    assert 2 not in device.ran[ran:]
    device.does.wrong = set()
    (row,) = tune(convolutions(), again=True)
    assert (row.tried, row.choice) == (2, repr(TILES[1]))


def test_a_candidate_that_does_not_compile_is_remembered(device: TimedDevice) -> None:
    device.does.broken = {2, 4}
    (row,) = tune(convolutions())
    assert row.choice == row.default
    assert row.failed == {repr(TILES[k]): f"{2 * k} slices are refused" for k in (1, 2)}
    assert slices(convolutions()) == [1]
    trials = table_of(device).entries()[row.problem].trials
    assert trials[repr(TILES[1])].failed == "2 slices are refused"


def test_a_candidate_that_loses_the_device_is_never_tried_again(device: TimedDevice) -> None:
    device.does.deadly = {2}
    with pytest.raises(DeviceLost):
        tune(convolutions())
    assert device.gone
    device.gone, device.does.deadly = False, set()
    (row,) = tune(convolutions())
    assert row.failed == {repr(TILES[1]): "the device stopped answering"} and row.choice == repr(TILES[2])


def test_what_is_tried_is_noted_before_in_case_the_process_ends(
    device: TimedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = []

    def dies(recording: object) -> None:
        entries = table_of(device).entries()
        noted.append({text for e in entries.values() for text, t in e.trials.items() if t.failed == PENDING})

    monkeypatch.setattr(device, "wait", dies)
    tune(convolutions())
    assert set(map(repr, TILES[1:])) in noted


def test_an_interrupt_leaves_no_failure(device: TimedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("weft.backends.gpu.tuning.candidate_timing.difference", interrupted)
        tune(convolutions())
    assert [dict(entry.trials) for entry in table_of(device).entries().values()] == [{}]
    (row,) = tune(convolutions(), budget=0.0)
    assert (row.tried, row.skipped, row.failed) == (0, 2, {})
    (row,) = tune(convolutions())
    assert (row.tried, row.failed, row.choice) == (2, {}, repr(TILES[1]))


@pytest.mark.parametrize(
    ("got", "why"),
    [
        ([1.0, 2.0, 3.0], None),
        ([1.0, 2.0, 3.00001], None),
        ([1.0, 2.0, 3.001], "wrong numbers"),
        ([1.0, 2.0, np.nan], "not written, or not finite"),
    ],
)
def test_results_are_compared_with_those_of_the_default(got: list[float], why: str | None) -> None:
    said = difference([np.array(got, np.float32)], [np.array([1.0, 2.0, 3.0], np.float32)])
    assert said is None if why is None else why in (said or "")
    assert difference([np.array([1, 2])], [np.array([1, 3])]) is not None


@pytest.mark.parametrize(("got", "right"), [(np.inf, True), (-np.inf, False), (np.nan, False), (3.0, False)])
def test_what_is_infinite_by_the_default_is_so_by_a_candidate(got: float, right: bool) -> None:
    """What was not written is NaN."""
    said = difference([np.array([1.0, got], np.float32)], [np.array([1.0, np.inf], np.float32)])
    assert (said is None) == right


def test_a_default_that_writes_nothing_is_compared_with_nothing(
    device: TimedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeBench, "results", lambda self: [np.full(4, np.nan, np.float32)])
    (row,) = tune(convolutions())
    assert row.failed == {row.default: "the default cannot be compared with"} and row.us is None
    assert slices(convolutions()) == [1]


def test_a_choice_that_has_failed_since_is_not_used(device: TimedDevice) -> None:
    """Such as by the end of the process while it was tried again: the next that was timed is."""
    (row,) = tune(convolutions())
    table = table_of(device)
    digest = table.entries()[row.problem].trials[row.choice].digest
    table.note(row.problem, Entry(None, {row.choice: Trial(digest, failed=PENDING)}))
    table.save()
    with timed_gpu(name="later"):
        assert slices(convolutions(), on="later") == [4]


def test_an_interrupt_of_another_search_keeps_what_is_known(
    device: TimedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    (row,) = tune(convolutions())
    before = table_of(device).entries()[row.problem].trials
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("weft.backends.gpu.tuning.candidate_timing.difference", interrupted)
        tune(convolutions(), again=True)
    assert table_of(device).entries()[row.problem].trials == before
    with timed_gpu(name="later"):
        assert slices(convolutions(), on="later") == [2]


@pytest.mark.parametrize("kind", [OutOfMemory, CompileError])
def test_a_node_that_cannot_be_tried_does_not_end_the_search(
    device: TimedDevice, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    make = NodeBench.__init__

    def scarce(self: NodeBench, runtime: Any, op: Any, inputs: Any, outputs: Any, **options: Any) -> None:
        if any(t is not None and t.shape[-1] == 9 for t in inputs):
            raise kind("there is no room")
        make(self, runtime, op, inputs, outputs, **options)

    monkeypatch.setattr(NodeBench, "__init__", scarce)
    rows = tune(convolutions((8, 9)))
    assert sorted((row.tried, row.us, list(row.failed.values())) for row in rows if row.us) == [(2, 60.0, [])]
    assert [(row.tried, row.failed) for row in rows if not row.us] == [(0, {rows[0].default: "there is no room"})]


def test_a_finalist_that_does_not_build_again_keeps_its_time(
    device: TimedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a driver has no memory left for it."""
    tune(convolutions())
    monkeypatch.setenv("WEFT_TUNING", "0")
    compile_ = type(device).compile

    def full(self: TimedDevice, source: Any, values: Any) -> Any:
        if source.entry == GEMM and int(values["LZ"]) == 2:
            raise OutOfMemory("there is no room")
        return compile_(self, source, values)

    monkeypatch.setattr(type(device), "compile", full)
    (row,) = tune(convolutions())
    assert row.us == 60.0


def test_a_finalist_without_memory_keeps_its_time(device: TimedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(convolutions())
    plan, asked = NodeBench.plan, list[str]()

    def scarce(self: NodeBench, key: str, text: str) -> Any:
        asked.append(text)
        if asked.count(text) > 1:
            raise OutOfMemory("there is no room")
        return plan(self, key, text)

    monkeypatch.setattr(NodeBench, "plan", scarce)
    (row,) = tune(convolutions())
    assert (row.us, row.choice) == (60.0, repr(TILES[1])) and asked.count(repr(TILES[1])) == 2
