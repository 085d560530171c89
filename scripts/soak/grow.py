"""Finds what grows with many sessions in many threads, and with many shapes in one session."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

import weft
from scripts.memory import resident_megabytes
from scripts.soak.networks import image, is_right, network, one_kernel

KINDS = 6
"""Number of networks loaded in turn: their kernels and results are known after the first marks."""
RSS_SHARE, RSS_LEAST = 0.05, 12.0
"""Resident memory may vary by this share or this many MB, whichever is larger: allocators keep freed memory."""


@dataclass(frozen=True)
class Mark:
    """What the process holds at a moment at which nothing runs."""

    done: int
    rss_mb: float
    files: int
    threads: int
    device_bytes: int = 0
    buffers: int = 0
    recordings: int = 0
    kernels: int = 0


def take(done: int, stats: Any) -> Mark:
    """Return what this process and its device hold; `stats` is None on the CPU."""
    gc.collect()
    held = (
        (stats.live_bytes, stats.live_buffers, stats.live_recordings, stats.live_kernels)
        if stats is not None
        else ()
    )
    files = len(list(Path("/proc/self/fd").iterdir()))
    return Mark(done, resident_megabytes(), files, threading.active_count(), *held)


def growth(marks: Sequence[Mark]) -> Iterator[str]:
    """Yield what is larger in the last third of the marks than in the middle one."""
    third = max(len(marks) // 3, 1)
    for name in asdict(marks[0]):
        before, after = (median(getattr(m, name) for m in part) for part in (marks[third:-third], marks[-third:]))
        allowed = max(before * RSS_SHARE, RSS_LEAST) if name == "rss_mb" else 0
        if name != "done" and after > before + allowed:
            yield f"{name} grew from {before:g} to {after:g}"


def sessions(
    device: str, threads: int, total: int, marks: int, options: Mapping[str, Any], say: Callable[[Mark], None]
) -> list[str]:
    """Load, run and close `total` sessions in threads; return what grew or was wrong."""
    wrong: list[str] = []
    known: dict[int, Any] = {}
    side = 12
    for variant in range(KINDS):
        x = image(variant, side, side)
        with weft.load(network(variant, side, side), device, fallback="error", **options) as session:
            known[variant] = session.run(x)[0].copy()
        if not is_right(network(variant), x, known[variant]):
            wrong.append(f"variant {variant} is wrong on {device}")
    keeper = weft.load(network(0, side, side), device, fallback="error", **options)
    stats = _stats(keeper)

    def one(number: int) -> None:
        variant = number % KINDS
        x = image(variant, side, side)
        with weft.load(network(variant, side, side), device, fallback="error", **options) as session:
            for _ in range(2):
                if not (session.run(x)[0] == known[variant]).all():
                    wrong.append(f"session {number} computed other numbers than the first of its kind")

    taken: list[Mark] = []
    numbers = count()
    for _ in range(marks):
        with ThreadPoolExecutor(threads) as pool:  # new threads each time: they must leave nothing either
            list(pool.map(one, islice(numbers, total // marks)))
        taken.append(take((len(taken) + 1) * (total // marks), stats))
        say(taken[-1])
    keeper.close()
    return [*dict.fromkeys(wrong), *growth(taken)]


def shapes(
    device: str, total: int, marks: int, options: Mapping[str, Any], say: Callable[[Mark], None]
) -> list[str]:
    """Run one session with `total` shapes, each of them new; return what grew or was wrong."""
    wrong: list[str] = []
    taken: list[Mark] = []
    with weft.load(one_kernel(), device, fallback="error", **options) as session:
        for number in range(total):
            # All have about the same size, so that buffers do not grow: rows of 40 heights.
            height, width = 8 + number % 40, 100 + number // 40
            x = image(number, height, width)
            (y,) = session.run(x)
            if number % 50 == 0 and not is_right(one_kernel(), x, y):
                wrong.append(f"{height}x{width} is wrong on {device}")
            if (number + 1) % (total // marks) == 0:
                session.run(image(0, 8, 8))  # the same input at each mark
                taken.append(take(number + 1, _stats(session)))
                say(taken[-1])
    return [*wrong, *growth(taken)]


def _stats(session: weft.Session) -> Any:
    return getattr(getattr(session.pipelines[0].backend, "device", None), "stats", None)
