"""Tuning: the fastest candidate that is right is found, kept, and used for exactly its problem."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.nets import feeds
from tests.helpers.timed_gpu import GEMM, TimedDevice, convolutions, timed_gpu
from tests.helpers.tuned_nets import TILES, slices, table_of, three_tiles, ticking, tune
from weft.backends.gpu.creator import GpuCreator
from weft.backends.gpu.tuning import tuner
from weft.backends.gpu.tuning.tuner import PENDING, tune_pipelines
from weft.backends.gpu.tuning_tables.choice import Choice
from weft.backends.gpu.tuning_tables.tuning_table import Entry, Trial, TuningTable
from weft.core.graph.interpreter import outputs
from weft.core.host.disk_cache import DiskCache
from weft.core.registry.backend_registry import registry
from weft.errors import ConfigError
from weft.kernels import template
from weft.kernels.chooser import Candidate, Decision, forget_decisions
from weft.ops.gpu.conv.gemm import tiles as gemm
from weft.ops.gpu.conv.gemm.tiles import GemmTile

# -- choosing ------------------------------------------------------------------------------------------------


def test_the_candidate_with_the_shortest_time_is_chosen_and_used(device: TimedDevice) -> None:
    assert slices(convolutions()) == [1]
    (row,) = tune(convolutions())
    assert (row.nodes, row.tried, row.skipped, row.failed) == (1, 2, 0, {})
    assert (row.default, row.choice) == (repr(TILES[0]), repr(TILES[1]))
    assert (row.default_us, row.us) == (100.0, 60.0) and row.gain == pytest.approx(100 / 60)
    assert slices(convolutions()) == [2]
    with weft.load(convolutions(), device="null", fallback="error") as session:
        assert "null: 1 kernels tuned for this device" in session.report.notes


def test_nothing_is_left_on_the_device(device: TimedDevice) -> None:
    tune(convolutions((8, 9)))
    stats = device.stats
    assert (stats.live_buffers, stats.live_bytes, stats.live_recordings) == (0, 0, 0)


def test_the_choice_is_on_disk_for_the_next_process(device: TimedDevice) -> None:
    (row,) = tune(convolutions())
    entry = table_of(device).entries()[row.problem]
    assert entry.choice == repr(TILES[1])
    assert {text: t.us for text, t in entry.trials.items()} == dict(
        zip(map(repr, TILES), (100.0, 60.0, 80.0), strict=True)
    )
    with timed_gpu(name="later") as later:
        assert slices(convolutions(), on="later") == [2]
        assert [k.slices for k in later.compiled if k.entry == GEMM] == [2], "the default is not built"


def test_a_candidate_that_is_hardly_faster_does_not_replace_the_default(device: TimedDevice) -> None:
    device.does.microseconds = {1: 100.0, 2: 99.0, 4: 99.5}
    (row,) = tune(convolutions())
    assert row.choice == row.default
    assert slices(convolutions()) == [1]


def test_equal_problems_are_tuned_once(device: TimedDevice) -> None:
    rows = tune(convolutions((8, 8, 9)))
    assert sorted((r.nodes, r.tried) for r in rows) == [(1, 2), (2, 2)]
    assert rows[0].nodes == 2, "what takes most of the time comes first"


def test_nothing_is_compared_before_the_clock_is_up(
    device: TimedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.does.cold = 100
    (row,) = tune(convolutions())
    assert row.default_us == 500.0, "or the test would prove nothing"
    monkeypatch.setattr(tuner, "STEADY", 1.0)
    device.does.cold = 100
    (row,) = tune(convolutions(), again=True, clock=ticking(1e-3))
    assert (row.default_us, row.us, row.choice) == (100.0, 60.0, repr(TILES[1]))


def stored(device: TimedDevice, problem: str, choice: str | None, **us: float | str) -> None:
    """Put other times (or failures) of some tiles, named t0 to t2, into the table on disk."""
    table = table_of(device)
    trials = dict(table.entries()[problem].trials)
    for name, value in us.items():
        text = repr(TILES[int(name[1:])])
        failed = value if isinstance(value, str) else None
        trials[text] = Trial(trials[text].digest, None if failed else float(value), failed)
    table.note(problem, Entry(choice, trials))
    table.save()


def test_the_fastest_are_timed_again_in_turn(device: TimedDevice) -> None:
    (row,) = tune(convolutions())
    stored(device, row.problem, repr(TILES[2]), t1=300.0)
    with timed_gpu(name="later") as later:
        (row,) = tune(convolutions(), on="later")
    assert (row.tried, row.us, row.choice) == (0, 60.0, repr(TILES[1]))
    assert later.ran.count(2) > 10 and later.ran.count(1) > 10


def test_a_default_that_was_noted_as_failed_is_timed_anew(device: TimedDevice) -> None:
    (row,) = tune(convolutions())
    stored(device, row.problem, None, t0=PENDING)
    with timed_gpu(name="later"):
        (row,) = tune(convolutions(), on="later")
    assert (row.default_us, row.us, row.choice) == (100.0, 60.0, repr(TILES[1]))


def test_the_budget_binds_the_last_rounds_too(device: TimedDevice) -> None:
    tune(convolutions())
    ran = len(device.ran)
    times = iter([0.0, 0.0, 0.0])
    tune(convolutions(), budget=1.0, clock=lambda: next(times, 2.0))
    assert device.ran[ran:].count(2) == 1, "by the session; no round began"


def test_a_slow_candidate_is_run_twice(device: TimedDevice) -> None:
    """Not once: the first run of a kernel also loads it."""
    device.does.microseconds[4] = 10000.0
    tune(convolutions())
    assert device.ran.count(4) == 2 and device.ran.count(2) > 10


# -- exact matches only --------------------------------------------------------------------------------------


def test_another_driver_uses_nothing_of_it(device: TimedDevice) -> None:
    tune(convolutions())
    with timed_gpu("1.1", name="updated"):
        assert slices(convolutions(), on="updated") == [1]


def test_another_shape_type_or_epilogue_uses_nothing_of_it(device: TimedDevice) -> None:
    tune(convolutions())
    assert slices(convolutions((9,))) == [1]
    assert slices(convolutions(relu=False)) == [1]
    assert slices(convolutions(), precision="low") == [1]
    assert slices(convolutions()) == [2]


def test_another_source_uses_nothing_of_it(device: TimedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(convolutions())
    render = template.render

    def changed(*request: object) -> object:
        source = render(*request)  # type: ignore[arg-type]
        return replace(source, code=replace(source.code, end=source.code.end + "// a change\n"))

    monkeypatch.setattr("weft.backends.gpu.lowering.launches.builder.render", changed)
    assert slices(convolutions()) == [1]
    (row,) = tune(convolutions())
    assert row.tried == 2, "what is known of the old source does not count"
    assert slices(convolutions()) == [2]


def test_a_choice_that_is_not_offered_any_more_gives_way_to_the_next(
    device: TimedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(convolutions())
    monkeypatch.setattr(gemm, "TILES", (TILES[0], TILES[2]))
    forget_decisions()
    assert slices(convolutions()) == [4]
    monkeypatch.setattr(gemm, "TILES", (TILES[0], GemmTile(4, 2, 8, 8, 1)))
    forget_decisions()
    assert slices(convolutions()) == [1]


def test_sessions_without_weights_are_not_tuned(device: TimedDevice) -> None:
    with (
        weft.load(convolutions(), "null", fallback="error", memory="limit") as session,
        pytest.raises(ConfigError, match="cannot be tuned"),
    ):
        tune_pipelines(session.pipelines)


def test_tables_can_be_turned_off(device: TimedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(convolutions())
    monkeypatch.setenv("WEFT_TUNING", "0")
    assert slices(convolutions()) == [1]


# -- the budget ----------------------------------------------------------------------------------------------


def test_what_the_budget_does_not_suffice_for_is_said_and_done_the_next_time(device: TimedDevice) -> None:
    graph = convolutions((8, 9, 10))
    rows = tune(graph, budget=0.0, clock=ticking(1.0))
    assert [(r.tried, r.skipped, r.choice == r.default, r.gain) for r in rows] == [(0, 2, True, None)] * 3
    rows = tune(graph, budget=20.0, clock=ticking(1.0))
    done = sum(r.tried for r in rows)
    assert done > 0 < sum(r.skipped for r in rows) == 6 - done
    rows = tune(graph, budget=0.0, clock=ticking(1.0))
    assert (sum(r.tried for r in rows), sum(r.skipped for r in rows)) == (0, 6 - done), "what is left does not grow"
    rows = tune(graph)
    assert sum(r.tried for r in rows) == 6 - done and not any(r.skipped for r in rows)
    assert slices(graph) == [2, 2, 2]


def test_what_is_known_of_another_source_is_left_to_be_tried(
    device: TimedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(convolutions())
    (row,) = tune(convolutions(), budget=0.0)
    assert (row.skipped, row.us) == (0, 60.0)
    (row,) = tune(convolutions(), budget=0.0, again=True)
    assert (row.skipped, row.us) == (2, 60.0)
    monkeypatch.setattr(Choice, "digest", "other")
    (row,) = tune(convolutions(), budget=0.0)
    assert (row.skipped, row.us, row.gain) == (2, None, None)


def test_every_problem_gets_its_few_first(device: TimedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "thread_count", lambda _: 1)
    rows = tune(convolutions((8, 9, 10)))
    assert [(r.tried, r.skipped) for r in rows] == [(2, 0)] * 3
    default = device.computed[0][1]
    tried = [each for each in dict.fromkeys(device.computed) if each[1] != default]
    first, second = ({problem for problem, _ in part} for part in (tried[:3], tried[3:]))
    assert len(tried) == 6 and len(first) == 3 and first == second


def test_what_the_op_names_first_and_what_is_estimated_best_come_in_turn() -> None:
    guessed = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    decision = Decision("rivals", {}, {text: Candidate(text, cost) for text, cost in guessed.items()})
    named: Any = [SimpleNamespace(text=text) for text in guessed]
    ordered = tuner._most_promising_first(named, decision)
    assert [v.text for v in ordered] == ["a", "d", "b", "c"]


@pytest.mark.parametrize("budget", range(1, 30, 2))
def test_a_short_search_loses_nothing(device: TimedDevice, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    monkeypatch.setattr(tuner, "thread_count", lambda _: 1)
    tune(graph := convolutions((8, 9)))
    tune(graph, again=True, budget=float(budget), clock=ticking(1.0))
    assert slices(graph) == [2, 2]


def test_progress_reaches_its_end(device: TimedDevice) -> None:
    seen: list[tuple[int, int]] = []
    tune(convolutions((8, 9)), progress=lambda *at: seen.append(at))
    assert seen == [(k, 4) for k in range(1, 5)]


# -- on disk -------------------------------------------------------------------------------------------------


def test_without_a_cache_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    three_tiles(monkeypatch)
    monkeypatch.setenv("WEFT_CACHE", "0")
    with timed_gpu():
        (row,) = tune(convolutions())
        assert row.choice == repr(TILES[1]) and slices(convolutions()) == [2], "this process knows"
    assert list(tmp_path.iterdir()) == []


# -- on devices ----------------------------------------------------------------------------------------------


@pytest.mark.alike
@pytest.mark.parametrize("name", ["opencl", "vulkan"])
def test_a_network_is_tuned_on_a_device_and_stays_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    three_tiles(monkeypatch)
    creator = registry.find(name)
    assert isinstance(creator, GpuCreator)
    runtime = creator.runtime(0)
    monkeypatch.setattr(runtime, "tuning", TuningTable(runtime.device.info))
    graph = convolutions((5, 6))
    before = (runtime.device.stats.live_buffers, runtime.device.stats.live_recordings)
    rows = tune(graph, on=name)
    assert [(r.nodes, r.tried, r.skipped, r.failed) for r in rows] == [(1, 2, 0, {})] * 2
    assert all(r.us is not None and r.us > 0 for r in rows)
    assert (runtime.device.stats.live_buffers, runtime.device.stats.live_recordings) == before
    for row in rows:  # whichever was the fastest here, let it be the one with the most slices
        entry = runtime.tuning.entries()[row.problem]
        runtime.tuning.note(row.problem, Entry(repr(TILES[2]), entry.trials))
    with weft.load(graph, device=name, fallback="error") as session:
        assert f"{name}: 2 kernels tuned for this device" in session.report.notes
        got = session.run(feeds(graph))
    for y, want in zip(got, outputs(graph, feeds(graph)), strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


def test_the_drivers_cache_is_written_at_most_once_by_a_load_and_once_by_tuning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    three_tiles(monkeypatch)
    creator = registry.find("vulkan")
    assert isinstance(creator, GpuCreator)
    runtime = creator.runtime(0)
    monkeypatch.setattr(runtime, "tuning", TuningTable(runtime.device.info))
    compiled, writes = runtime.device.stats.compiles, list[str]()
    put = DiskCache.put

    def noted(self: DiskCache, key: str, content: bytes) -> None:
        writes.append(self.folder.name if self.folder else "")
        put(self, key, content)

    monkeypatch.setattr(DiskCache, "put", noted)
    with weft.load(convolutions((11,)), "vulkan", fallback="error") as session:
        assert runtime.device.stats.compiles - compiled > 1
        compiled = runtime.device.stats.compiles
        assert writes.count("vulkan-pipelines") <= 1
        tune_pipelines(session.pipelines)
    assert runtime.device.stats.compiles - compiled > 1
    assert writes.count("vulkan-pipelines") <= 2


# -- what this machine found before --------------------------------------------------------------------------


def found_before(device: TimedDevice, choice: int, **trials: Trial) -> None:
    """Put what this machine found into its table: the choice among `TILES`, and the trials t0, t1 ... of them."""
    (row,) = tune(convolutions(), on="null", budget=0.0)
    table = table_of(device)
    table.note(row.problem, Entry(repr(TILES[choice]), {repr(TILES[int(name[1:])]): t for name, t in trials.items()}))
    table.save()


def test_a_choice_of_kernels_that_have_changed_is_not_taken(device: TimedDevice) -> None:
    found_before(device, 2, t0=Trial("old", us=9.0), t1=Trial("old", us=9.0), t2=Trial("old", us=1.0))
    with timed_gpu(name="later"):
        default = slices(convolutions(), on="later")
        (row,) = tune(convolutions(), on="later")
        assert row.tried > 0 and row.choice == repr(TILES[1]), "the old times do not count"
        assert slices(convolutions(), on="later") == [2] != default


def test_a_candidate_that_failed_here_is_not_taken(device: TimedDevice) -> None:
    """Such as by the end of the process: the next that was timed is."""
    (row,) = tune(convolutions())
    table = table_of(device)
    digest = table.entries()[row.problem].trials[repr(TILES[1])].digest
    table.note(row.problem, Entry(repr(TILES[1]), {repr(TILES[1]): Trial(digest, failed=PENDING)}))
    table.save()
    with timed_gpu(name="later"):
        assert slices(convolutions(), on="later") == [4]
