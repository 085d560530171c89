"""The error for a kernel that a compiler refuses is short, and names the file with the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from weft.kernels.compile_error import SHOWN_LINES, kernel_refused, shortened

SOURCE = "\n".join(f"float line_{i};" for i in range(300))


def file_of(error: Exception) -> Path:
    """Return the file that an error names."""
    return Path(str(error).partition("whole log: ")[2].partition("\n")[0])


def test_a_long_log_is_shortened_from_its_first_error_on() -> None:
    lines = ["warning: unused"] * 5 + ["k.cl:3: ERROR: no such thing"] + ["more"] * 50
    shown = shortened("\n".join(lines))
    assert shown[0] == "k.cl:3: ERROR: no such thing" and len(shown) == SHOWN_LINES + 1
    assert shown[-1] == "(48 more lines of the log are in the file)"
    assert shortened("") == [] and shortened("\0\n only this\n") == [" only this"]
    assert len(shortened("x" * 5000)[0]) < 300


@pytest.mark.parametrize("cache", ["1", "0", "unwritable"])
def test_the_source_is_in_a_file_wherever_one_can_be_written(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no folder").write_text("")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / ("no folder" if cache == "unwritable" else "cache")))
    monkeypatch.setenv("WEFT_CACHE", cache[:1].replace("u", "1"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    error = kernel_refused("conv", SOURCE, "error: no */ way", where="a device", suffix=".cl", head="#define N 4\n")
    text = file_of(error).read_text()
    assert text.startswith("#define N 4\n#line 1\nfloat line_0;") and text.endswith("// error: no */ way\n\n")
    assert "line_7" not in str(error) and "error: no */ way" in error.why and file_of(error).name in error.fix
    assert tmp_path in file_of(error).parents


def test_where_no_file_can_be_written_the_error_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    error = kernel_refused("conv", SOURCE, "", where="a device", suffix=".cl")
    assert "not written" in error.where and "No such file" in error.where and "gave no reason" in error.why


def test_the_files_are_counted_and_cleared(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    suffixes = (".cl", ".comp", ".cl", ".metal")
    files = [file_of(kernel_refused("conv", SOURCE, "no", where="d", suffix=s)) for s in suffixes]
    assert files[0] == files[2] and len(set(files)) == 3
    (files[0].parent / "mine.cl").write_text("")
    assert "refused" in cli("cache", "info").out
    assert "removed 3 files" in cli("cache", "clear").out
    assert [p.name for p in tmp_path.glob("*/*")] == ["mine.cl"]
