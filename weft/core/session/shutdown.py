"""The end of the process: sessions that are still open are closed first, and then the devices."""

from __future__ import annotations

import atexit
import sys
import threading
from functools import partial
from time import monotonic
from typing import Protocol, TypeVar
from weakref import WeakSet

from weft.core.contract.error_context import do_all
from weft.core.registry import backend_registry

PATIENCE = 5.0
"""Seconds, at most, that the end of the process waits for threads that are in the middle of a run."""

OWN_THREADS = "weft-"
"""How the names of Weft's own threads begin. They work for a thread of the program, or for none."""

PARKED = "weft.core.session.session"
"""Where a thread stands that waits for its turn in a session."""


class Endable(Protocol):
    """What is open until it is closed or the process ends."""

    def end(self, patience: float) -> bool:
        """Close, and let no thread in any more; False if one is still inside after `patience` seconds."""
        ...


EndableT = TypeVar("EndableT", bound=Endable)
_open: WeakSet[Endable] = WeakSet()
_lock = threading.Lock()


def note(opened: Endable) -> None:
    """Have something closed at the end of the process, unless it is gone by then."""
    with _lock:
        _open.add(opened)


def still_open(kind: type[EndableT]) -> list[EndableT]:
    """Return what was noted of a kind and is not gone, in no order; some of it may be closed."""
    with _lock:
        return [each for each in _open if isinstance(each, kind)]


@atexit.register
def end() -> None:
    """Close everything that this process opened, users before what they use; a second call finds nothing.

    Where a thread is still at work in Weft, which a daemon thread can be, its devices stay as they are.
    """
    with _lock:
        still = list(_open)
    last = monotonic() + PATIENCE
    inside: list[Endable] = []

    def end_one(each: Endable) -> None:
        if not each.end(max(last - monotonic(), 0.0)):
            inside.append(each)

    def close_devices() -> None:
        if not inside and not _at_work():
            backend_registry.close_opened()

    do_all([*(partial(end_one, each) for each in still), close_devices])


def _at_work() -> bool:
    """Tell whether a thread of the program is in the middle of anything in Weft but the wait for a session."""
    own = {t.ident for t in threading.enumerate() if t.name.startswith(OWN_THREADS)} | {threading.get_ident()}
    for thread, top in sys._current_frames().items():
        frame = top if thread not in own else None
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith("weft."):
            frame = frame.f_back
        if frame is not None and frame.f_globals["__name__"] != PARKED:
            return True
    return False
