"""Measures how much of the machine's memory a process holds."""

from __future__ import annotations

import os
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_megabytes(process: int | None = None) -> float:
    """Return how much memory a process, or this one, holds; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process or os.getpid()}/statm").read_text().split()
    except OSError:
        return 0.0
    return int(fields[1]) * PAGE / 2**20 if len(fields) > 1 else 0.0
