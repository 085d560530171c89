"""Locks between processes: one process at a time writes in a folder; files in use are told from abandoned ones."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

try:
    _fcntl: Any = import_module("fcntl")
except ImportError:  # Windows, which cannot open a folder
    _fcntl = None

ASK_AGAIN = 0.02
"""Seconds between two tries to lock."""


@contextmanager
def locked(folder: Path, seconds: float | None = None) -> Iterator[None]:
    """Keep other processes and threads out of this block for the same folder; OSError if that fails.

    With `seconds`, TimeoutError if another one is in it for longer. The system releases the lock when the process ends.
    Without `fcntl`, a file `.lock` stays in the folder.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    fd = os.open(folder, os.O_RDONLY) if _fcntl else os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not _lock(fd, wait=deadline is None):
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"another process is at work in {folder}")
            time.sleep(ASK_AGAIN)
        yield
    finally:
        if _fcntl:
            with suppress(OSError):  # of a file system without locks
                _fcntl.flock(fd, _fcntl.LOCK_UN)  # a process forked meanwhile has the file open, too
        os.close(fd)


@contextmanager
def open_locked(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing in the block, safe from `remove_left`; FileExistsError if it exists."""
    while True:
        with open(path, "xb") as file:
            if _stays(file.fileno()):
                yield file
                return


def _stays(fd: int) -> bool:
    """Lock a file that was just created; False if another process removed it meanwhile as abandoned."""
    if _fcntl is None:
        return True  # Windows does not remove open files
    with suppress(OSError):  # the file system has no locks, so `remove_left` removes nothing
        _fcntl.flock(fd, _fcntl.LOCK_EX)
    return os.fstat(fd).st_nlink > 0


def remove_left(path: Path) -> None:
    """Remove an abandoned file of `open_locked`; OSError if a process still writes it or it cannot be removed."""
    if _fcntl is None:
        path.unlink()
        return
    with open(path, "r+b") as file:
        _fcntl.flock(file.fileno(), _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        path.unlink()


def _lock(fd: int, wait: bool) -> bool:
    """Lock an open file; tell whether that came about: without `wait` another process may have it."""
    try:
        if _fcntl:
            _fcntl.flock(fd, _fcntl.LOCK_EX if wait else _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        else:
            msvcrt: Any = import_module("msvcrt")
            msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
    except OSError as e:
        # Windows gives up a wait after ten tries, a second apart.
        if e.errno not in (errno.EDEADLK, errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True
