"""Refuses devices in a process that was forked after its parent had started a driver.

CUDA's and Mesa's contexts and PoCL's threads do not exist in the child, and calls to them hang or fail. So Weft
refuses them and says what to do instead. A driver that was not used before the fork works. Drivers wait for their
threads at the end of a process, too (Intel's OpenCL runtime, the queues of Mesa): with glibc the child ends without.
"""

from __future__ import annotations

import os
import re
import sys

from weft.core.host.background import ends_without_libraries
from weft.errors import DeviceError, Reason

WHY = "this process was forked after Weft had started the driver, whose threads and contexts do not exist in the child"
FIX = 'start processes by multiprocessing\'s "spawn" method, or fork before anything asks Weft for a device'

_started = _forked = False


def start() -> None:
    """Record that a driver is being used."""
    global _started
    if not _started:
        _end_without_drivers()
    _started = True


def is_forked() -> bool:
    """Tell whether this process was forked after a driver had started, so that drivers cannot be used in it."""
    return _forked


def reason() -> Reason | None:
    """Return why drivers cannot be used in this process, or None if they can."""
    return Reason(WHY, FIX) if _forked else None


def check(device: str, index: int) -> None:
    """Raise DeviceError in a process that was forked after a driver had started."""
    if _forked:
        what = "the device cannot be used in this process"
        raise DeviceError(what, where=f"{device}:{index}", why=WHY, fix=FIX)


def _end_without_drivers() -> None:
    """Have processes that are forked from now on end at once, after the buffers of C's files are written."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=ends_without_libraries)


def keeps_pages() -> bool:
    """Tell whether pages that a device writes stay this process's when it forks, and the child has copies.

    Linux before 5.10 may give this process a new page at its next write, and the device goes on with the old one.
    """
    if not hasattr(os, "fork"):
        return True
    return sys.platform == "linux" and tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 10)


def _note() -> None:
    global _forked
    _forked = _forked or _started


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note)
