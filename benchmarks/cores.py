"""The core on which a row is timed.

Machines with GPUs are shared. While other tenants keep the other half of a core busy, Python takes 1.6 times as long on
it, and so does every driver call (the H200's host, 2026-11-22: one loop 84 to 141 us, an OpenCL launch 6 to 10); which
cores these are changes within seconds. So before a row of any side is timed, the calling thread moves to the core that
is fastest at that moment, and the row is timed again if that core was slow at the end. That is done at batch 1, host to
host, but not for ONNX Runtime, which works on all cores. Products of up to 1024 choose a core, too, and are timed once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

LOOP = 2000
"""Iterations of the loop that tells how fast a core is."""
SLOW = 1.2
"""How many times as long the loop takes on a core that was disturbed."""
MOST = 32
"""How many cores are tried: a GPU that waits for longer lowers its clock."""
TAKES = 3
"""How often a row is timed at most; the last time counts in any case."""


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
    """Return the loop's time on each core that the thread can run on; on some of them if there are many."""
    cores = allowed()
    found = {core: loop_us() for core in cores[:: -(-len(cores) // MOST) or 1] if _go_to([core])}
    _go_back(cores)
    return found


def _go_to(cores: Sequence[int]) -> bool:
    """Make the calling thread run on some cores; tell whether it may, because fewer may be allowed by now."""
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _go_back(cores: Sequence[int]) -> None:
    """Make the calling thread run where it did before, or on any core if it may not: it must not stay on one."""
    if not _go_to(cores):
        _go_to(range(os.cpu_count() or 1))


@contextmanager
def quickest() -> Iterator[Callable[[], bool]]:
    """Keep the calling thread on the core that is fastest now; yield a function that tells whether it was disturbed.

    Threads that it starts meanwhile stay on that core, so start them before.
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
    """Return how fast the cores are now, as text."""
    times = sorted(survey().values())
    return f"{times[0]:.0f} to {times[-1]:.0f} us a loop on {len(times)} cores" if times else "not chosen"
