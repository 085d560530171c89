"""The disk cache of compiled kernels: one file a blob, written atomically, safe to delete at any time.

It has a budget (`config.cache_limit`): what was not used for the longest time goes first.

A blob is bound to its key: its digest covers both, so that a file that took another one's name is not used. What other
users could have written is not used either (`weft.core.host.trust`), and reports say so.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from weft import config
from weft.core.host.trust import NotTrusted, file_problem, folder_problem, read_file

log = logging.getLogger("weft.cache")
_BEGINS, _ENDS = "weft-", ".part"
_UNFINISHED = re.compile(rf"{_BEGINS}[a-z0-9_]{{8}}{re.escape(_ENDS)}")
"""The name of a file that is being written: no other program gives one of its files such a name."""
STALE = 600.0
"""Seconds after which nobody writes to such a file any more: whoever did was killed."""
MOST = 1 << 30
"""Bytes of the largest file that is read."""
_MARK = b"weft\x00\x02"
"""How a blob begins; the number is the version of the format."""
_DIGEST = 32
BLOB = re.compile(r"[0-9a-f]{40}")
"""The name of a blob's file; one of another name in the same folder is not ours to remove."""
_SAME_USE = 3600.0
"""Seconds within which a second use is not noted: each note is a write to the disk."""
_ROOM = 0.9
"""The share of the budget that a cache has when some of it went, so that it does not go at every write."""
_LISTED = 5
"""So many files that are not used are named in a report; the others are counted."""
_said: set[Path] = set()
_refused: dict[Path, str] = {}
_swept: set[Path] = set()
_held: dict[Path, int] = {}
"""The bytes of blobs in each cache: as they were counted last, and what this process has written since."""
_lock = threading.Lock()


def advice(e: OSError) -> str:
    """Return what to do where the cache cannot be written."""
    first = "make room on the disk" if e.errno in (errno.ENOSPC, errno.EDQUOT) else "make the folder writable"
    return f"{first}, or name another in WEFT_CACHE_DIR"


def say_not_kept(cache: Path, e: OSError) -> None:
    """Warn that a cache folder cannot be written: once in a process, later times are for debugging."""
    with _lock:
        level = logging.DEBUG if cache in _said else logging.WARNING
        _said.add(cache)
    log.log(level, "nothing can be kept in %s: %s; %s", cache, e, advice(e))


# -- what is not used ----------------------------------------------------------------------------------------


def remarks() -> list[str]:
    """Return a sentence on each folder and file of the present cache that was not used because others may write it."""
    cache = config.cache_dir()
    with _lock:
        found = [f"{path} is not used: {why}" for path, why in _refused.items() if path.is_relative_to(cache)]
    left = len(found) - _LISTED
    return [*found[:_LISTED], *([f"{left} more files of {cache} are not used either"] if left > 0 else [])]


def folder_refused(folder: Path) -> str | None:
    """Return why nothing is read from, or written to, a folder inside the cache; None if it may be used."""
    found = _folder_problem(folder)
    if found is None:
        return None
    path, why = found
    _note(path, f"{why}; remove it or make it yours alone (chmod 700), or name another in WEFT_CACHE_DIR")
    return f"{path}: {why}"


def folders_refused() -> list[str]:
    """Return a sentence on each folder of the cache that is not used, and on what lies where a folder belongs."""
    try:
        inside = [path for path in config.cache_dir().iterdir() if path.is_symlink() or not path.is_file()]
    except OSError:
        inside = []
    found = dict.fromkeys(filter(None, map(_folder_problem, [config.cache_dir(), *sorted(inside)])))
    return [f"{path}: {why}" for path, why in found]


def _folder_problem(folder: Path) -> tuple[Path, str] | None:
    cache = config.cache_dir()
    for path in (cache,) if folder == cache else (cache, folder):
        try:
            why = folder_problem(path, inside=path != cache, sticky=path == cache)
        except OSError:
            return None  # reading and writing meet it again, and say it in their own way
        if why:
            return path, why
    return None


def file_refused(path: Path) -> str | None:
    """Return why a file inside the cache is not read, or None."""
    try:
        return file_problem(path)
    except OSError as e:
        return e.strerror or str(e)


def read_trusted(path: Path) -> bytes:
    """Return a file inside the cache; OSError if it cannot be read, or is not trusted: then a remark says so."""
    why = folder_refused(path.parent)
    if why:
        raise PermissionError(errno.EPERM, why)
    try:
        return read_file(path, MOST)
    except NotTrusted as e:
        _note(path, f"{e}; remove it, or name another folder in WEFT_CACHE_DIR")
        raise PermissionError(errno.EPERM, str(e)) from e


def _note(path: Path, why: str) -> None:
    with _lock:
        new = path not in _refused
        _refused[path] = why
    if new:
        log.warning("%s is not used: %s", path, why)


# -- blobs ---------------------------------------------------------------------------------------------------


def seal(key: str, content: bytes) -> bytes:
    """Return the content in a form that `unseal` takes for this key alone."""
    return _MARK + _digest(key, content) + content


def unseal(key: str, blob: bytes) -> bytes | None:
    """Return the content that was sealed for a key; None if it was changed, or sealed for another key."""
    start = len(_MARK) + _DIGEST
    content = blob[start:]
    whole = content and blob[:start] == _MARK + _digest(key, content)
    return content if whole else None


def _digest(key: str, content: bytes) -> bytes:
    named = key.encode()
    return hashlib.blake2b(len(named).to_bytes(8, "little") + named + content, digest_size=_DIGEST).digest()


class DiskCache:
    """Blobs by key in one folder; a cache that cannot be read or written is an empty one, never an error."""

    def __init__(self, namespace: str) -> None:
        self.folder: Path | None = config.cache_dir() / namespace if config.cache_enabled() else None
        self._namespace = namespace

    def _bound(self, key: str) -> str:
        return f"{self._namespace}\n{key}"

    def path(self, key: str) -> Path | None:
        """Return the file of the blob under `key`, whether or not it is there; None if the cache is off."""
        if self.folder is None:
            return None
        return self.folder / hashlib.blake2b(self._bound(key).encode(), digest_size=20).hexdigest()

    def get(self, key: str) -> bytes | None:
        """Return the blob that was put under `key`, or None; one that is damaged or not trusted counts as absent."""
        path = self.path(key)
        if path is None:
            return None
        try:
            blob = read_trusted(path)
        except OSError:
            return None
        content = unseal(self._bound(key), blob)
        if content is None:
            log.info("%s is damaged or of another version, and is made anew", path)
        else:
            _note_use(path)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep a blob under `key`; concurrent writers leave one whole blob."""
        path = self.path(key)
        if path is None or folder_refused(path.parent):
            return
        blob = seal(self._bound(key), content)
        try:
            write(path, blob)
        except OSError as e:
            say_not_kept(path.parent.parent, e)
            return
        _keep_budget(path.parent.parent, len(blob))

    def discard(self, key: str) -> None:
        """Remove the blob under `key`, which a driver refused."""
        path = self.path(key)
        if path is None or folder_refused(path.parent):
            return
        with suppress(OSError):  # what cannot be removed is refused again at the next start
            os.unlink(path)


# -- the budget ----------------------------------------------------------------------------------------------


def _note_use(path: Path) -> None:
    """Note in the time of the last access, which systems do not all keep, that a blob was used."""
    with suppress(OSError):  # a cache that only the administrator may write is not trimmed by us
        status, now = path.stat(), time.time()
        if status.st_atime < now - _SAME_USE:
            os.utime(path, ns=(int(now * 1e9), status.st_mtime_ns))


def _keep_budget(cache: Path, written: int) -> None:
    """Count what was written, and trim the cache when that makes it too large; the first time, count what is there."""
    with _lock:
        known = cache in _held
        _held[cache] = _held.get(cache, 0) + written
        fits = known and _held[cache] <= config.cache_limit()
    if not fits:
        trim(cache)


def trim(cache: Path) -> None:
    """Remove blobs of a cache that is larger than its budget, those first that were not used for the longest time."""
    found = sorted(_blobs(cache))
    total, limit = sum(nbytes for _, nbytes, _ in found), config.cache_limit()
    if total > limit:
        before = total
        for _, nbytes, path in found:
            if total <= _ROOM * limit:
                break
            with suppress(OSError):  # another process removed it, or has it open on Windows
                path.unlink()
            total -= nbytes
        log.info("%s had %s bytes of at most %s: the oldest %s went", cache, before, limit, before - total)
    with _lock:
        _held[cache] = total


def _blobs(cache: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield the time of the last use, the bytes and the path of each blob in the folders of a cache that are ours."""
    with suppress(OSError):
        for folder in cache.iterdir():
            if folder.is_symlink() or not folder.is_dir() or _folder_problem(folder):
                continue
            for path in folder.iterdir():
                if BLOB.fullmatch(path.name):
                    with suppress(OSError):  # it went meanwhile
                        status = path.lstat()
                        yield max(status.st_atime, status.st_mtime), status.st_size, path


# -- files ---------------------------------------------------------------------------------------------------


def write(path: Path, content: bytes) -> None:
    """Write a file in one of the cache's own folders, which is made and tidied up; OSError if that fails.

    Killed processes' files go, and so does an empty folder in the way: a user's own folder needs `replace_file`.
    """
    path.parent.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    _sweep(path.parent)
    try:
        replace_file(path, content)
    except (IsADirectoryError, PermissionError):  # PermissionError: how Windows says that it is a folder
        if not path.is_dir():
            raise
        os.rmdir(path)  # an empty one is nobody's; one with files stays, and is said to be in the way
        replace_file(path, content)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step, and touch no other: a reader sees the old one or the new one; OSError if that fails."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=_BEGINS, suffix=_ENDS)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(content)
        os.replace(temporary, path)
    except BaseException:  # such as an interrupt, or a full disk
        with suppress(OSError):
            os.unlink(temporary)
        raise


def unfinished(folder: Path) -> Iterator[Path]:
    """Yield the files in one of the cache's folders that processes were writing when they were killed."""
    for path in sorted(folder.glob(f"{_BEGINS}*{_ENDS}")):
        if _UNFINISHED.fullmatch(path.name) and _is_stale(path):
            yield path


def _is_stale(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_mtime < time.time() - STALE
    except OSError:  # it was being written, and has its name now
        return False


def _sweep(folder: Path) -> None:
    """Remove what killed processes left in a folder, once in a process."""
    with _lock:
        if folder in _swept:
            return
        _swept.add(folder)
    for path in unfinished(folder):
        with suppress(OSError):
            path.unlink()
