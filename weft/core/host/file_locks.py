"""Locks between processes: one at a time writes in a folder; a file that is being written is told from a left one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

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


@contextmanager
def open_locked(path: Path) -> Iterator[BinaryIO]:
    """Open a new file to write within the block, which `remove_left` leaves alone; FileExistsError if it is there."""
    while True:
        with open(path, "xb") as file:
            if _stays(file.fileno()):
                yield file
                return


def _stays(fd: int) -> bool:
    """Lock a file that was just made; False if it was removed meanwhile, as one that somebody left."""
    if _fcntl is None:
        return True  # Windows removes no file that is open
    with suppress(OSError):  # a file system without locks, where `remove_left` removes nothing
        _fcntl.flock(fd, _fcntl.LOCK_EX)
    return os.fstat(fd).st_nlink > 0


def remove_left(path: Path) -> None:
    """Remove a file that `open_locked` made; OSError if somebody still writes it, or it cannot be removed."""
    if _fcntl is None:
        path.unlink()
        return
    with open(path, "r+b") as file:
        _fcntl.flock(file.fileno(), _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        path.unlink()


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
