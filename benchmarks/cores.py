"""The core on which a row is timed.

Hosts of cards are shared. Where other tenants keep the other half of a core busy, Python takes 1.6 times as long there,
and so does every call of a driver (the H200's host, 2026-11-22: one loop 84 to 141 us, an OpenCL launch 6 to 10); which
cores these are changes within seconds. So before a row of any side is timed, the calling thread moves to the core that
is quickest then, and what was timed is timed again if that core was slow at its end. That is done at batch 1, host to
host; not for ONNX Runtime, which works on all cores. Products of up to 1024 choose a core, too, and are timed once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

LOOP = 2000
"""Rounds of the loop that tells how quick a core is."""
SLOW = 1.2
"""How many times as long the loop takes on a core that was disturbed."""
MOST = 32
"""Cores that are tried: a card that waits for longer lowers its clock."""
TAKES = 3
"""How often a row is timed at most, the last time in any case."""


def loop_us() -> float:
    """Return the microseconds of a fixed loop of Python on this core, the best of three."""
    best = float("inf")
    for _ in range(3):
        start, total = time.perf_counter(), 0
        for number in range(LOOP):
            total += number * number
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def allowed() -> Sequence[int]:
    """Return the cores that the calling thread may use; none where the system does not let it choose."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def survey() -> dict[int, float]:
    """Return what the loop takes on each core, of many on some, that the thread can go to."""
    cores = allowed()
    found = {core: loop_us() for core in cores[:: -(-len(cores) // MOST) or 1] if _go_to([core])}
    _go_back(cores)
    return found


def _go_to(cores: Sequence[int]) -> bool:
    """Have the calling thread run on some cores; tell whether it may: what was allowed can be less meanwhile."""
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _go_back(cores: Sequence[int]) -> None:
    """Have the calling thread run where it did, or on any core where it no longer may: it must not stay on one."""
    if not _go_to(cores):
        _go_to(range(os.cpu_count() or 1))


@contextmanager
def quickest() -> Iterator[Callable[[], bool]]:
    """Keep the calling thread on the core that is quickest now; yield what tells whether it was disturbed since.

    Threads that it starts meanwhile stay on that core, so they are to be started before.
    """
    cores, found = allowed(), survey()
    best = min(found, key=lambda core: found[core], default=None)
    if best is None or not _go_to([best]):
        yield lambda: False
        return
    try:
        yield lambda: loop_us() > SLOW * found[best]
    finally:
        _go_back(cores)


def spread() -> str:
    """Say how quick the cores are just now."""
    times = sorted(survey().values())
    return f"{times[0]:.0f} to {times[-1]:.0f} us a loop on {len(times)} cores" if times else "not chosen"
