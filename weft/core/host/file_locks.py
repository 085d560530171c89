"""Locks between processes: one of them at a time writes in a folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

try:
    _fcntl: Any = import_module("fcntl")
except ImportError:  # Windows, where a folder cannot be opened
    _fcntl = None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes and threads from this block, for the same folder, while it runs; OSError if that fails.

    The system ends the lock with the process that holds it. Without `fcntl` a file `.lock` stays in the folder.
    """
    fd = os.open(folder, os.O_RDONLY) if _fcntl else os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if _fcntl:
            _fcntl.flock(fd, _fcntl.LOCK_EX)
        else:
            _lock_first_byte(fd)
        yield
    finally:
        os.close(fd)


def _lock_first_byte(fd: int) -> None:
    msvcrt: Any = import_module("msvcrt")
    while True:
        try:
            msvcrt.locking(fd, msvcrt.LK_LOCK, 1)
            return
        except OSError as e:
            # It gives up after ten tries, a second apart.
            if e.errno != errno.EDEADLK:
                raise
