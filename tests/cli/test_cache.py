"""`weft cache`: files of failed writes, and a cache that is switched off."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from weft import config
from weft.core.host import disk_cache as kept
from weft.core.host.disk_cache import DiskCache


def test_files_that_were_never_finished_are_counted_and_removed_when_nobody_writes_them(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    ours = ("spirv/weft-ab_12xyz.part", "opencl/weft-ab_12xyz.part", "tuning/weft-ab_12xyz.part")
    names = (*ours, "spirv/tmpab_12xyz", "spirv/tmpab_12xyz.part", "spirv/weft-mine.txt")
    for name in (*names, "spirv/weft-new12345.part"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1234")
    for name in names:
        os.utime(tmp_path / name, (0, 0))
    assert re.search(r"^unfinished\s+3\s", cli("cache", "info").out, re.M)
    assert "removed 3 files" in cli("cache", "clear", "--keep-tuning").out
    assert [path.name for path in sorted(tmp_path.glob("*/*"))] == [
        "tmpab_12xyz", "tmpab_12xyz.part", "weft-mine.txt", "weft-new12345.part"
    ]


def test_a_file_that_others_may_write_is_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    cache = DiskCache("spirv")
    cache.put("kernel", b"1234")
    path = cache.path("kernel")
    assert path is not None and str(path) not in cli("cache", "info").err
    path.chmod(0o666)
    done = cli("cache", "info")
    assert str(path) in done.out + done.err


@pytest.mark.parametrize("raised", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing(
    raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))

    def full(source: object, target: object) -> None:
        raise raised

    monkeypatch.setattr(os, "replace", full)
    expected = contextlib.nullcontext() if isinstance(raised, OSError) else pytest.raises(KeyboardInterrupt)
    with expected:
        DiskCache("spirv").put("a", b"12345")
    assert [path.name for path in tmp_path.rglob("*")] == ["spirv"]
    if isinstance(raised, OSError):
        assert caplog.messages[0].endswith("; make room on the disk, or name another in WEFT_CACHE_DIR")


def test_a_cache_has_a_budget_and_what_was_not_used_for_longest_goes_first(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE_MIB", "1")
    assert "limit: 1 MiB" in cli("cache", "info").out
    caches = DiskCache("spirv"), DiskCache("opencl")
    for k in range(8):  # 960 KiB
        caches[k % 2].put(str(k), bytes(120 << 10))
    (tmp_path / "tuning").mkdir()
    theirs = [tmp_path / "tuning" / "h200-01234567.json", tmp_path / "spirv" / "notes.txt"]
    for file in theirs:
        file.write_bytes(bytes(2 << 20))
    for k in range(8):
        path = caches[k % 2].path(str(k))
        assert path is not None
        os.utime(path, (k, k))
    for k in (0, 3):
        assert caches[k % 2].get(str(k)), "used again, as another start would"
    caches[0].put("8", bytes(120 << 10))
    left = [k for k in range(9) if caches[k % 2].get(str(k))]
    assert left == [0, 3, 4, 5, 6, 7, 8], "what was not used since it was written went, down to nine tenths"
    assert all(file.exists() for file in theirs), "tables of `weft tune` and others' files stay"


def test_a_cache_that_is_too_large_already_shrinks_at_the_first_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    cache = DiskCache("spirv")
    for k in range(4):
        cache.put(str(k), bytes(600 << 10))
        path = cache.path(str(k))
        assert path is not None
        os.utime(path, (k, k))
    monkeypatch.setenv("WEFT_CACHE_MIB", "1")
    monkeypatch.setattr(kept, "_held", {})  # as in a new process
    cache.put("4", b"small")
    assert [k for k in range(5) if cache.get(str(k))] == [3, 4]


def test_a_cache_that_is_turned_off_says_so(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("WEFT_CACHE", "0")
    assert not config.cache_enabled()
    assert "turned off by WEFT_CACHE=0" in cli("cache", "info").out


def test_clearing_removes_what_a_switched_off_cache_holds_and_says_so(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    DiskCache("spirv").put("a", b"12345")
    monkeypatch.setenv("WEFT_CACHE", "0")
    done = cli("cache", "clear")
    assert "the cache is switched off by WEFT_CACHE" in done.err and "removed 1 files" in done.out
    monkeypatch.delenv("WEFT_CACHE")
    assert "switched off" not in cli("cache", "clear").err
