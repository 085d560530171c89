"""How a row of the benchmarks is timed: warm, and on the core that is quickest."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyopencl as cl
import pytest

import weft
from benchmarks import cores, host_time, measure
from benchmarks.measure import Counts, Row
from weft.backends.opencl.queue_timer import MOST_ROUNDS, QueueTimer


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Let a host have three cores of these speeds, by number, whatever it has."""
    if not cores.allowed():
        pytest.skip("this system does not let a thread choose its core")
    speeds, mine = {0: 140.0, 4: 84.0, 5: 90.0}, [0, 4, 5]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(mine))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, chosen: mine.__setitem__(slice(None), chosen))
    monkeypatch.setattr(cores, "loop_us", lambda: speeds[mine[0]])
    return speeds


def test_a_row_is_timed_on_the_quickest_core(host: dict[int, float]) -> None:
    with cores.quickest() as disturbed:
        assert cores.allowed() == [4] and not disturbed()
        host[4] = 110.0
        assert disturbed()
    assert cores.allowed() == [0, 4, 5]
    assert cores.spread() == "90 to 140 us a loop on 3 cores"


def test_what_was_disturbed_is_timed_again(host: dict[int, float]) -> None:
    places = list[int]()

    def run() -> int:
        places.append(cores.allowed()[0])
        if len(places) == 4:
            host[4] = 200.0
        return len(places)

    row = Row("net", 1, "who", "fp32")
    assert row.time(run, Counts(1, 3, 60.0, 0.0).for_batch(1)) == 9 and row.more == {"takes": 2}
    assert places == [0, 4, 4, 4, 4, 5, 5, 5, 5] and cores.allowed() == [0, 4, 5]


def test_it_gives_up_where_no_core_stays_quick(host: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "SLOW", 0.0)
    calls = list[int]()
    measure.timed(lambda: calls.append(1), Counts(1, 3, 60.0, 0.0).for_batch(1))
    assert len(calls) == 1 + cores.TAKES * 4


@pytest.mark.parametrize("counts", [Counts(1, 2, 60.0, 0.0).for_batch(1), Counts(3, 3, 60.0, 0.0).for_batch(32)])
def test_trials_and_large_batches_stay_where_they_are(host: dict[int, float], counts: Counts) -> None:
    places = list[int]()
    measure.timed(lambda: places.extend(cores.allowed()), counts)
    assert places == [0, 4, 5] * (counts.warmup + counts.iterations)


def test_a_core_that_is_no_longer_there_is_passed_over(
    host: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = os.sched_setaffinity

    def refuse(who: int, chosen: Sequence[int]) -> None:
        if 4 in chosen:
            raise OSError("the core is offline")
        raw(who, chosen)

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    with cores.quickest():
        assert cores.allowed() == [5]
    assert cores.allowed() == [0, 1, 2], "all that there are, where those from before cannot be had"
    raw(0, [0, 4, 5])
    assert cores.spread() == "90 to 140 us a loop on 2 cores" and cores.allowed() == [0, 1, 2]


def test_a_system_without_a_choice_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    with cores.quickest() as disturbed:
        assert not disturbed()
    assert cores.spread() == "not chosen"


def test_rows_warm_up_until_no_call_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    now, woken, calls = [0.0], list[int](), list[float]()
    spent = [0.3, 0.2, 0.1, 0.1]

    def run() -> None:
        calls.append(now[0])
        now[0] += spent[min(len(calls), 4) - 1]

    monkeypatch.setattr("benchmarks.measure.time.perf_counter", lambda: now[0])
    measure.warm_up(run, Counts(1, 5, 1.0, 0.25, lambda: woken.append(1)))
    assert woken == [1] and len(calls) == 6, "three calls of 0.1 s behind the first of these"
    measure.warm_up(run, Counts(1, 5, 1.0, 0.25).at_once)
    assert len(calls) == 7


def test_the_loop_takes_time() -> None:
    assert cores.loop_us() > 0 and len(cores.survey()) == len(cores.allowed())


def test_a_host_that_was_too_slow_once_is_asked_again() -> None:
    context = cl.Context(cl.get_platforms()[0].get_devices()[:1])
    timer = QueueTimer(context, context.devices[0])
    timer._rounds = MOST_ROUNDS + 1
    assert [timer.seconds(lambda queue: None) is None for _ in range(2)] == [True, False]


def test_the_host_time_of_a_run_is_taken_of_each_way_to_run() -> None:
    with weft.load(host_time.chain(weft, 2), "cpu") as session:
        runs = dict(host_time.ways(session, weft))
        assert list(runs) == ["arrays", "into", "session's", "submit", "buffers", "new buffer"]
        for run in runs.values():
            assert host_time.calls(run) > 20 and host_time.sampled(run) > 0
