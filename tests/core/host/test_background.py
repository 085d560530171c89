"""Threads that Ctrl-C leaves behind: when they wait, when they end, and what is called last."""

from __future__ import annotations

import threading
from weakref import ref

import pytest

from weft.core.host.background import Background, aside, is_busy, wait


def test_a_block_waits_for_its_calls_unless_it_is_interrupted() -> None:
    may_end, ended = threading.Event(), threading.Event()
    with Background(2, "weft-test") as threads:
        assert list(threads.map(lambda k: k * k, range(9))) == [k * k for k in range(9)]
    with pytest.raises(KeyboardInterrupt), Background(1, "weft-test", ended.set) as threads:
        running, waiting = threads.submit(may_end.wait), threads.submit(may_end.wait)
        raise KeyboardInterrupt
    assert not running.done() and waiting.cancelled() and is_busy() and not ended.is_set()
    may_end.set()
    assert running.result() and ended.wait(60)
    wait()
    assert not is_busy()


@pytest.mark.parametrize("calls", [0, 3])
def test_the_last_call_of_a_thread_is_ended_before_shutdown_returns(calls: int) -> None:
    said: list[str] = []
    threads = Background(2, "weft-test-ends", lambda: said.append("ended"))
    futures = [threads.submit(said.append, "call") for _ in range(calls)]
    threads.shutdown()
    threads.shutdown()
    assert said == [*["call"] * calls, "ended"] and all(f.done() for f in futures)
    assert not any(thread.name == "weft-test-ends" for thread in threading.enumerate())
    with pytest.raises(RuntimeError):
        threads.submit(said.append, "late")


@pytest.mark.parametrize("before", [0, 1])
def test_a_thread_that_cannot_start_is_an_error_and_not_waited_for(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    said: list[str] = []
    may_end = threading.Event()
    threads = Background(2, "weft-test", lambda: said.append("ended"))
    running = [threads.submit(may_end.wait) for _ in range(before)]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.submit(said.append, "call")
    may_end.set()
    ending = threading.Thread(target=threads.shutdown, daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive() and said == ["ended"] and all(each.result() for each in running)


def test_errors_come_back_and_only_the_main_thread_hands_calls_over() -> None:
    assert aside(threading.current_thread) is not threading.main_thread()
    with Background(1, "weft-test") as threads:
        thread, same = threads.submit(lambda: (threading.current_thread(), aside(threading.current_thread))).result()
        assert thread is same
    with pytest.raises(ZeroDivisionError):
        aside(lambda: 1 / 0)


def test_an_error_is_freed_with_its_last_reference() -> None:
    """Its traceback holds what failed, such as a kernel that must be destroyed before its device."""

    class Made:
        pass

    found: list[ref[Made]] = []

    def fails() -> None:
        made = Made()
        found.append(ref(made))
        raise ValueError

    try:
        aside(fails)
    except ValueError:
        assert found[0]() is not None
    assert found[0]() is None
