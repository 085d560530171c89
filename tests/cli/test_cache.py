"""`weft cache`: what is left of writes that failed, and of a cache that is switched off."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from weft import config
from weft.kernels.cache import DiskCache


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
    ]  # fmt: skip


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
