"""The end of the process: open sessions are closed first, then the devices.

Here alone is decided whether devices may be closed then, or whether a thread may still use them.
"""

from __future__ import annotations

import atexit
import sys
import threading
from functools import partial
from time import monotonic
from typing import Protocol, TypeVar
from weakref import WeakSet, WeakValueDictionary

from weft.core.contract.error_context import do_all
from weft.core.host import background
from weft.core.registry import device_choice

PATIENCE = 5.0
"""Most seconds that the end of the process waits for threads in a run."""

OWN_THREADS = "weft-"
"""How the names of Weft's own threads begin."""


class Endable(Protocol):
    """An object that is open until it is closed or the process ends."""

    def end(self, patience: float) -> bool:
        """Close, and admit no thread any more; return False if one is still inside after `patience` seconds."""
        ...


class Device(Protocol):
    """A device that its creator may not close at the end: nobody asked for it by a registry, or a thread is at work."""

    def end(self, *, may_close: bool) -> None:
        """Close if that is allowed, else only save what would be lost; nothing if it is closed."""
        ...


EndableT = TypeVar("EndableT", bound=Endable)
_open: WeakSet[Endable] = WeakSet()
_devices: WeakValueDictionary[int, Device] = WeakValueDictionary()
"""By identity: devices may be equal."""
_parked: set[str] = set()
"""The modules in which a thread that has called nothing of Weft from there waits for its turn."""
_lock = threading.Lock()


def note(opened: Endable) -> None:
    """Have an object closed at the end of the process, unless it is collected before."""
    with _lock:
        _open.add(opened)


def note_device(opened: Device) -> None:
    """Have a device closed at the end of the process, after the devices of the registries' creators."""
    with _lock:
        _devices[id(opened)] = opened


def parks(module: str) -> None:
    """Have threads that wait in a module itself not count as being at work in Weft."""
    _parked.add(module)


def still_open(kind: type[EndableT]) -> list[EndableT]:
    """Return the noted objects of a kind that were not collected, in no order; some may be closed."""
    with _lock:
        return [each for each in _open if isinstance(each, kind)]


@atexit.register
def end() -> None:
    """Close everything that this process opened, sessions before devices; a second call finds nothing.

    The devices stay open if a thread, such as a daemon thread, is still at work in Weft; they save their caches. The
    process does not wait for what a driver still compiles after Ctrl-C.
    """
    with _lock:
        still, devices = list(_open), list(_devices.values())
    last = monotonic() + PATIENCE
    inside: list[Endable] = []

    def end_one(each: Endable) -> None:
        if not each.end(max(last - monotonic(), 0.0)):
            inside.append(each)

    def end_devices() -> None:
        may_close = not (inside or _at_work() or background.is_busy())
        creators = [device_choice.close_opened] if may_close else []
        do_all([*creators, *(partial(device.end, may_close=may_close) for device in devices)])

    do_all([*(partial(end_one, each) for each in still), end_devices, background.leave_at_exit])


def _at_work() -> bool:
    """Tell whether a thread of the program is at work in Weft, and not just waiting for a session."""
    own = {t.ident for t in threading.enumerate() if t.name.startswith(OWN_THREADS)} | {threading.get_ident()}
    for thread, top in sys._current_frames().items():
        frame = top if thread not in own else None
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith("weft."):
            frame = frame.f_back
        if frame is not None and frame.f_globals["__name__"] not in _parked:
            return True
    return False
