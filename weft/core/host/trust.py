"""May other users change a folder or a file? Asked before Weft reads its caches or loads code from a folder.

This is the only place that decides it. A path is trusted if it belongs to this user or to the system's administrator,
and if nobody else may write to it. Where a system has no owners and modes (Windows), only the kind of a file counts.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from pathlib import Path

OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
"""How a file is opened that is not trusted yet: through no link, without waiting for the other end of a pipe."""
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


class NotTrusted(Exception):
    """A file must not be read; the message says why, as the end of a sentence about it. It does not leave Weft."""


def folder_problem(folder: Path, *, inside: bool = False, sticky: bool = False) -> str | None:
    """Return why a folder is not trusted, or None; also None if it does not exist.

    One `inside` of a trusted folder must not be a link, which could lead out of it. With `sticky`, everybody may add
    files, as to /tmp, if nobody may remove or rename those of others: what is read from there needs its own check.
    OSError if the folder cannot be looked at.
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
    """Return why a file is not trusted, or None; also None if there is none. OSError if it cannot be looked at."""
    try:
        return _file_problem(os.lstat(path))
    except FileNotFoundError:
        return None


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a trusted file of at most so many bytes.

    NotTrusted says why it is not read, OSError why it cannot be. The open file is checked, since its name may mean
    another one by then; it is looked at before, because to open a device can have an effect.
    """
    problem = _file_problem(os.lstat(path))
    if problem:
        raise NotTrusted(problem)
    with open(path, "rb", opener=lambda name, _: os.open(name, OPEN_FLAGS)) as file:
        status = os.fstat(file.fileno())
        problem = _file_problem(status)
        if problem is None and status.st_size > most:
            problem = f"it has {status.st_size:,} bytes, and no more than {most:,} are read"
        if problem:
            raise NotTrusted(problem)
        return file.read(status.st_size)  # a larger number would be allocated first, whatever the file holds


def _file_problem(status: os.stat_result) -> str | None:
    return _others_may_write(status) if stat.S_ISREG(status.st_mode) else f"it is {_kind(status)}, not a file"


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "neither a file nor a folder")


def _is_ours(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid in (0, os.geteuid())


def _others_may_write(status: os.stat_result) -> str | None:
    """Return who else may write, as a sentence; access lists beyond the mode are not read."""
    if not hasattr(os, "geteuid"):
        return None
    return _verdict(os.geteuid(), status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))


@lru_cache(maxsize=256)
def _verdict(me: int, uid: int, gid: int, mode: int) -> str | None:
    """Return who else may write to what has that owner, group and mode.

    It is kept: each read from a cache asks it three times, and the system's list of groups is slow to ask. So whoever
    joins a user's own group while the process runs is not noticed by it.
    """
    if uid not in (0, me):
        return f"it belongs to another user ({_user(uid)})"
    if mode & stat.S_IWOTH:
        return f"every user may write to it (mode {mode:04o})"
    if mode & stat.S_IWGRP and not _is_private_group(me, gid):
        return f"other users of its group may write to it (mode {mode:04o})"
    return None


def _user(uid: int) -> str:
    import pwd  # late: there is none on Windows

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _is_private_group(me: int, gid: int) -> bool:
    """Tell whether a group is one user's alone: many systems give each user one, and let it write."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(me), grp.getgrgid(gid)
    except KeyError:
        return False
    own = user.pw_gid == gid and group.gr_name == user.pw_name
    return own and set(group.gr_mem) <= {user.pw_name}
