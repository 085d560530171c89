"""The disk cache: one file a blob, written atomically, safe to delete at any time.

It keeps rendered and compiled kernels, verdicts of self-tests and trials of drivers; tuning tables lie beside them.
It has a budget (`config.cache_limit`): blobs that were unused for the longest time are removed first.

A blob's digest covers its key too, so Weft never uses a file that was renamed to another blob's name. Weft does not use
files that other users could have written either (`weft.core.host.trust`), and reports say so.
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
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from weft import config
from weft.core.host.file_locks import locked
from weft.core.host.trust import NotTrusted, file_problem, folder_problem, read_file

log = logging.getLogger("weft.cache")
_BEGINS, _ENDS = "weft-", ".part"
_UNFINISHED = re.compile(rf"{_BEGINS}[a-z0-9_]{{8}}{re.escape(_ENDS)}")
"""Matches the name of a file that is being written; no other program uses such names."""
STALE = 600.0
"""Seconds after which an unfinished file counts as abandoned: its writer was killed."""
LARGEST_FILE = 1 << 30
"""Largest file that is read, in bytes."""
_MARK = b"weft\x00\x02"
"""The first bytes of a blob; the number is the format's version."""
_DIGEST = 32
BLOB = re.compile(r"[0-9a-f]{40}")
"""Matches the names of blob files; Weft removes no other file from the same folder."""
_SAME_USE = 3600.0
"""Seconds in which a second use is not recorded: each record is a disk write."""
_ROOM = 0.9
"""Trimming shrinks the cache to this share of its budget, so that the next write need not trim again."""
_LISTED = 5
"""How many unused files a report names; it counts the rest."""
_said: set[Path] = set()
_refused: dict[Path, str] = {}
_swept: set[Path] = set()
_held: dict[Path, int] = {}
"""The bytes of blobs in each cache: as they were counted last, and what this process has written since."""
_lock = threading.Lock()


def advice(e: OSError) -> str:
    """Return what the user can do when the cache cannot be written."""
    first = "make room on the disk" if e.errno in (errno.ENOSPC, errno.EDQUOT) else "make the folder writable"
    return f"{first}, or name another in WEFT_CACHE_DIR"


def say_not_kept(cache: Path, e: OSError) -> None:
    """Warn that a cache folder cannot be written: once a process, later only at debug level."""
    with _lock:
        level = logging.DEBUG if cache in _said else logging.WARNING
        _said.add(cache)
    log.log(level, "nothing can be kept in %s: %s; %s", cache, e, advice(e))


# -- what is not used ----------------------------------------------------------------------------------------


def remarks() -> list[str]:
    """Return a sentence on each folder and file of this cache that Weft does not use because others may write to it."""
    cache = config.cache_dir()
    with _lock:
        found = [f"{path} is not used: {why}" for path, why in _refused.items() if path.is_relative_to(cache)]
    left = len(found) - _LISTED
    return [*found[:_LISTED], *([f"{left} more files of {cache} are not used either"] if left > 0 else [])]


def folder_refused(folder: Path) -> str | None:
    """Return why Weft neither reads from nor writes to a folder of the cache; None if it may be used."""
    found = _folder_problem(folder)
    if found is None:
        return None
    path, why = found
    _note(path, f"{why}; remove it or make it yours alone (chmod 700), or name another in WEFT_CACHE_DIR")
    return f"{path}: {why}"


def folders_refused() -> list[str]:
    """Return a sentence on each cache folder that Weft does not use, and on anything that is in a folder's place."""
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
            return None  # the later read or write fails too and reports it
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
    """Return the content of a cache file; OSError if it cannot be read or is not trusted (a remark then says so)."""
    why = folder_refused(path.parent)
    if why:
        raise PermissionError(errno.EPERM, why)
    try:
        return read_file(path, LARGEST_FILE)
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
    """Return the content in a form that `unseal` accepts for this key only."""
    return _MARK + _digest(key, content) + content


def unseal(key: str, blob: bytes) -> bytes | None:
    """Return the content that was sealed for a key; None if it was changed or sealed for another key."""
    start = len(_MARK) + _DIGEST
    content = blob[start:]
    whole = content and blob[:start] == _MARK + _digest(key, content)
    return content if whole else None


def _digest(key: str, content: bytes) -> bytes:
    named = key.encode()
    return hashlib.blake2b(len(named).to_bytes(8, "little") + named + content, digest_size=_DIGEST).digest()


def hash_of(files: Iterable[Path], before: str = "") -> str:
    """Return a hash of a text and of the content of files, for the keys of what follows from code."""
    hashed = hashlib.blake2b(before.encode(), digest_size=16)
    for file in files:
        hashed.update(file.read_bytes())
    return hashed.hexdigest()


class DiskCache:
    """Blobs by key in one folder; a cache that cannot be read or written acts as an empty one and raises nothing."""

    def __init__(self, namespace: str) -> None:
        self.folder: Path | None = config.cache_dir() / namespace if config.cache_enabled() else None
        self._namespace = namespace

    def _bound(self, key: str) -> str:
        return f"{self._namespace}\n{key}"

    def path(self, key: str) -> Path | None:
        """Return the path of the blob under `key`, whether or not it exists; None if the cache is off."""
        if self.folder is None:
            return None
        return self.folder / hashlib.blake2b(self._bound(key).encode(), digest_size=20).hexdigest()

    def get(self, key: str) -> bytes | None:
        """Return the blob stored under `key`, or None; a damaged or untrusted blob counts as absent."""
        path = self.path(key)
        if path is None:
            return None
        try:
            blob = read_trusted(path)
        except OSError:
            return None
        content = unseal(self._bound(key), blob)
        if content is None:
            log.info("%s is damaged or has another version; it will be rebuilt", path)
        else:
            _note_use(path)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Store a blob under `key`; if several processes write at once, one whole blob remains."""
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

    @contextmanager
    def turn(self, seconds: float) -> Iterator[bool]:
        """Keep other processes that ask for their turn out of the block; gives whether they are.

        They are not where the cache cannot be used, and if one of them had its turn for so many seconds.
        """
        alone = False
        with ExitStack() as held:
            if self.folder is not None and not folder_refused(self.folder):
                with suppress(OSError):  # a cache that cannot be written shares nothing
                    _make(self.folder)
                    held.enter_context(locked(self.folder, seconds))
                    alone = True
            yield alone

    def discard(self, key: str) -> None:
        """Remove the blob under `key`: a driver refused it."""
        path = self.path(key)
        if path is None or folder_refused(path.parent):
            return
        with suppress(OSError):  # if it stays, the driver refuses it again at the next start
            os.unlink(path)


# -- the budget ----------------------------------------------------------------------------------------------


def _note_use(path: Path) -> None:
    """Record a blob's use in its access time, which not every system updates by itself."""
    with suppress(OSError):  # a cache that only the administrator may write is not trimmed here
        status, now = path.stat(), time.time()
        if status.st_atime < now - _SAME_USE:
            os.utime(path, ns=(int(now * 1e9), status.st_mtime_ns))


def _keep_budget(cache: Path, written: int) -> None:
    """Add to the cache's known size and trim it if it exceeds the budget; the first call also measures the cache."""
    with _lock:
        known = cache in _held
        _held[cache] = _held.get(cache, 0) + written
        fits = known and _held[cache] <= config.cache_limit()
    if not fits:
        trim(cache)


def trim(cache: Path) -> None:
    """Remove blobs from a cache that exceeds its budget, those unused for the longest time first."""
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
    """Write a file into one of the cache's own folders; creates and tidies the folder; OSError if that fails.

    It removes files that killed processes left and an empty folder in the file's place. For a user's folder, which
    must not be tidied, call `replace_file`.
    """
    _make(path.parent)
    _sweep(path.parent)
    try:
        replace_file(path, content)
    except (IsADirectoryError, PermissionError):  # Windows raises PermissionError if the target is a folder
        if not path.is_dir():
            raise
        os.rmdir(path)  # only an empty folder can be removed; otherwise the error names the folder
        replace_file(path, content)


def _make(folder: Path) -> None:
    folder.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically and touch no other: readers see the old or the new content; OSError if that fails."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=_BEGINS, suffix=_ENDS)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(content)
        os.replace(temporary, path)
    except BaseException:  # also on an interrupt
        with suppress(OSError):
            os.unlink(temporary)
        raise


def unfinished(folder: Path) -> Iterator[Path]:
    """Yield the unfinished files that killed processes left in a cache folder."""
    for path in sorted(folder.glob(f"{_BEGINS}*{_ENDS}")):
        if _UNFINISHED.fullmatch(path.name) and _is_stale(path):
            yield path


def _is_stale(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_mtime < time.time() - STALE
    except OSError:  # the writer renamed it meanwhile
        return False


def _sweep(folder: Path) -> None:
    """Remove the unfinished files of killed processes from a folder, once a process."""
    with _lock:
        if folder in _swept:
            return
        _swept.add(folder)
    for path in unfinished(folder):
        with suppress(OSError):
            path.unlink()
