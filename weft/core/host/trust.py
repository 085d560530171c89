"""Decides whether other users could change a folder or file, before Weft reads a cache or loads code from there.

No other module decides this. A path is trusted if it belongs to this user or to the administrator
and nobody else may write to it. Where a system has no owners and modes (Windows), only the kind of a file counts.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from pathlib import Path

OPEN_FLAGS = (
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
"""Flags to open an untrusted file: follow no link, and do not wait for the other end of a pipe."""
_KINDS = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file",
}


class NotTrusted(Exception):
    """A file must not be read; the message ends a sentence about the file. It never leaves Weft."""


def folder_problem(folder: Path, *, inside: bool = False, sticky: bool = False) -> str | None:
    """Return why a folder is not trusted; None if it is, or does not exist.

    A folder `inside` a trusted one must not be a link, which could lead out of it. With `sticky`, everybody may add
    files, as in /tmp, as long as nobody may remove or rename those of others; then each file needs its own check.
    OSError if the folder cannot be examined.
    """
    try:
        status = os.lstat(folder) if inside else os.stat(folder)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return f"it is {_kind(status)}, not a folder"
    if sticky and status.st_mode & stat.S_ISVTX and _is_ours(status):
        return None
    return _others_may_write(status)


def file_problem(path: Path) -> str | None:
    """Return why a file is not trusted; None if it is, or does not exist. OSError if it cannot be examined."""
    try:
        return _file_problem(os.lstat(path))
    except FileNotFoundError:
        return None


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a trusted file of at most `most` bytes.

    NotTrusted says why it may not be read, OSError why it cannot be. Opening a device can have an effect, so the path
    is checked first. Then the open file is checked, since the path may name another file by now.
    """
    problem = _file_problem(os.lstat(path))
    if problem:
        raise NotTrusted(problem)
    with open(path, "rb", opener=lambda name, _: os.open(name, OPEN_FLAGS)) as file:
        status = os.fstat(file.fileno())
        problem = _file_problem(status)
        if problem is None and status.st_size > most:
            problem = f"it has {status.st_size:,} bytes, more than the {most:,} that are read"
        if problem:
            raise NotTrusted(problem)
        return file.read(status.st_size)  # `read` allocates what it is asked for, whatever the file holds


def _file_problem(status: os.stat_result) -> str | None:
    return _others_may_write(status) if stat.S_ISREG(status.st_mode) else f"it is {_kind(status)}, not a file"


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "neither a file nor a folder")


def _is_ours(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid in (0, os.geteuid())


def _others_may_write(status: os.stat_result) -> str | None:
    """Return who else may write, as a sentence; only the mode counts, not access control lists."""
    if not hasattr(os, "geteuid"):
        return None
    return _verdict(os.geteuid(), status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))


@lru_cache(maxsize=256)
def _verdict(me: int, uid: int, gid: int, mode: int) -> str | None:
    """Return who else may write to a path with that owner, group and mode.

    Results are cached: each read from a cache asks three times, and listing the system's groups is slow. So this
    process does not notice a user who joins the user's own group while it runs.
    """
    if uid not in (0, me):
        return f"it belongs to another user ({_user(uid)})"
    if mode & stat.S_IWOTH:
        return f"every user may write to it (mode {mode:04o})"
    if mode & stat.S_IWGRP and not _is_private_group(me, gid):
        return f"other users of its group may write to it (mode {mode:04o})"
    return None


def _user(uid: int) -> str:
    import pwd  # Windows has no such module

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _is_private_group(me: int, gid: int) -> bool:
    """Tell whether a group has only this user: many systems give each user such a group, with write access."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(me), grp.getgrgid(gid)
    except KeyError:
        return False
    own = user.pw_gid == gid and group.gr_name == user.pw_name
    return own and set(group.gr_mem) <= {user.pw_name}
