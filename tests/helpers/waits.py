"""Waits with a limit: what never comes fails its test in place of keeping the whole run."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

LIMIT = 120.0
"""Seconds, far more than any wait takes: it is met only where something is stuck."""


def soon(event: Event) -> None:
    """Wait until an event is set."""
    assert event.wait(LIMIT), "what the test waits for did not come"


def ended(*threads: Thread) -> None:
    """Wait until threads have ended."""
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), f"{thread.name} did not end"


def returns(call: Callable[[], object]) -> None:
    """Call a wait of a driver, which knows no limit, in a thread that may stay behind."""
    thread = Thread(target=call, daemon=True)
    thread.start()
    ended(thread)
