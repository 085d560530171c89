"""The disk cache of compiled kernels: one file a blob, written atomically, safe to delete at any time."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

from weft import config

log = logging.getLogger("weft.cache")
_said: set[Path] = set()


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
            if path.parent not in _said:  # once, not for each kernel
                log.warning("the kernel cache in %s cannot be written: %s", path.parent, e)
            _said.add(path.parent)
