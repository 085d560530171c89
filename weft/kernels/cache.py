"""The disk cache of compiled kernels: one file a blob, written atomically, safe to delete at any time."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from weft import config

log = logging.getLogger("weft.cache")
UNFINISHED = ".part"
"""How the name of a file ends that is being written, here and by the tuning tables."""
_said: set[Path] = set()
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


class DiskCache:
    """Blobs by key in one folder; a cache that cannot be read or written is an empty one, never an error."""

    def __init__(self, namespace: str) -> None:
        self.folder: Path | None = config.cache_dir() / namespace if config.cache_enabled() else None

    def _path(self, key: str) -> Path | None:
        if self.folder is None:
            return None
        return self.folder / hashlib.blake2b(key.encode(), digest_size=20).hexdigest()

    def get(self, key: str) -> bytes | None:
        """Return the blob that was put under `key`, or None; a damaged one counts as absent."""
        path = self._path(key)
        try:
            blob = path.read_bytes() if path else b""
        except OSError:
            return None
        digest, content = blob[:16], blob[16:]
        return content if content and hashlib.blake2b(content, digest_size=16).digest() == digest else None

    def put(self, key: str, content: bytes) -> None:
        """Keep a blob under `key`; concurrent writers leave one whole blob."""
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, temporary = tempfile.mkstemp(dir=path.parent, suffix=UNFINISHED)
            try:
                with os.fdopen(fd, "wb") as f:
                    f.write(hashlib.blake2b(content, digest_size=16).digest() + content)
                os.replace(temporary, path)
            except BaseException:  # such as an interrupt, or a full disk
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as e:
            say_not_kept(path.parent.parent, e)
