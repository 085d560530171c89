"""The end of the process: open sessions are closed first, then the devices."""

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
"""Most seconds that the end of the process waits for threads in a run."""

OWN_THREADS = "weft-"
"""How the names of Weft's own threads begin."""

PARKED = "weft.core.session.session"
"""The module in which a thread waits for its turn in a session."""


class Endable(Protocol):
    """An object that is open until it is closed or the process ends."""

    def end(self, patience: float) -> bool:
        """Close, and admit no thread any more; return False if one is still inside after `patience` seconds."""
        ...


EndableT = TypeVar("EndableT", bound=Endable)
_open: WeakSet[Endable] = WeakSet()
_lock = threading.Lock()


def note(opened: Endable) -> None:
    """Have an object closed at the end of the process, unless it is collected before."""
    with _lock:
        _open.add(opened)


def still_open(kind: type[EndableT]) -> list[EndableT]:
    """Return the noted objects of a kind that were not collected, in no order; some may be closed."""
    with _lock:
        return [each for each in _open if isinstance(each, kind)]


@atexit.register
def end() -> None:
    """Close everything that this process opened, sessions before devices; a second call finds nothing.

    The devices stay open if a thread, such as a daemon thread, is still at work in Weft.
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
    """Tell whether a thread of the program is at work in Weft, and not just waiting for a session."""
    own = {t.ident for t in threading.enumerate() if t.name.startswith(OWN_THREADS)} | {threading.get_ident()}
    for thread, top in sys._current_frames().items():
        frame = top if thread not in own else None
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith("weft."):
            frame = frame.f_back
        if frame is not None and frame.f_globals["__name__"] != PARKED:
            return True
    return False
