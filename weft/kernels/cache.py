"""The disk cache of compiled kernels: one file a blob, written atomically, safe to delete at any time."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import threading
from pathlib import Path

from weft import config

log = logging.getLogger("weft.cache")
ADVICE = "make the folder writable, or name another in WEFT_CACHE_DIR"
"""What to do where the cache cannot be written."""
_said: set[Path] = set()
_lock = threading.Lock()


def say_not_kept(cache: Path, e: OSError) -> None:
    """Warn that a cache folder cannot be written: once in a process, later times are for debugging."""
    with _lock:
        level = logging.DEBUG if cache in _said else logging.WARNING
        _said.add(cache)
    log.log(level, "nothing can be kept in %s: %s; %s", cache, e, ADVICE)


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
            fd, temporary = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(fd, "wb") as f:
                f.write(hashlib.blake2b(content, digest_size=16).digest() + content)
            os.replace(temporary, path)
        except OSError as e:
            say_not_kept(path.parent.parent, e)
