"""Work in a thread of Weft's own that may be cancelled while it prepares something that nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

OFTEN = 0.05
"""Seconds between two looks of a thread that waits for something else."""
_stop: ContextVar[threading.Event | None] = ContextVar("weft_stop", default=None)


class Cancelled(BaseException):
    """Raised where cancelled work looks whether it is; it says nothing about what was to be prepared."""


@contextmanager
def until(stop: threading.Event) -> Iterator[None]:
    """Let what this thread does in the block end with Cancelled, soon after the event is set."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def check() -> bool:
    """Raise Cancelled if the work of this thread was cancelled; tell whether it may be."""
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise Cancelled
    return stop is not None


def wait(event: threading.Event, seconds: float) -> None:
    """Wait for an event at most so long, as `Event.wait` does; Cancelled if this work is cancelled meanwhile."""
    if not check():
        event.wait(seconds)
        return
    while seconds > 0 and not event.wait(min(seconds, OFTEN)):
        check()
        seconds -= OFTEN
