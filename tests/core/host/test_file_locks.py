"""One process or thread at a time works in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.core.host.disk_cache import DiskCache
from weft.core.host.file_locks import locked


def test_a_folder_is_one_users_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(TimeoutError, match="at work"), locked(tmp_path, seconds=0.0):
        pass
    with locked(tmp_path, seconds=0.0):
        pass


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_folder(tmp_path: Path) -> None:
    out, into = os.pipe()
    with locked(tmp_path):
        child = os.fork()
        if not child:
            os.close(into)
            os.read(out, 1)
            os._exit(0)
    try:
        with locked(tmp_path, seconds=0.0):
            pass
    finally:
        os.write(into, b"x")
        os.waitpid(child, 0)
        os.close(out)
        os.close(into)


def test_a_turn_comes_without_a_lock_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another holds it for too long, and where the cache cannot be used."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    cache = DiskCache("turns")
    with cache.turn(1.0) as first, cache.turn(0.0) as second:
        assert (first, second) == (True, False)
    os.rmdir(tmp_path / "turns")
    (tmp_path / "turns").write_text("a file in the folder's place")
    with cache.turn(1.0) as alone:
        assert not alone
