"""Work in a thread that may be cancelled: it ends where it looks, and nothing changes for other threads."""

from __future__ import annotations

import threading

import pytest

from weft.core.host import cancelled


def test_work_ends_where_it_looks() -> None:
    stop = threading.Event()
    with cancelled.until(stop):
        assert cancelled.check()
        stop.set()
        with pytest.raises(cancelled.Cancelled):
            cancelled.check()
    assert not cancelled.check(), "the block is over"


def test_a_wait_ends_too() -> None:
    stop, never = threading.Event(), threading.Event()
    seen: list[BaseException] = []

    def work() -> None:
        try:
            with cancelled.until(stop):
                cancelled.wait(never, 1e6)
        except cancelled.Cancelled as e:
            seen.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    stop.set()
    thread.join(60)
    assert len(seen) == 1 and not never.is_set()


def test_what_comes_is_waited_for() -> None:
    come = threading.Event()
    come.set()
    cancelled.wait(come, 60)
    with cancelled.until(threading.Event()):
        cancelled.wait(come, 60)
        cancelled.wait(threading.Event(), 0.0)
