"""Mistakes in `--output`, `--top` and `--labels` are found before the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.cli import Cli, double


@pytest.fixture
def unused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no network run."""

    def run(*_: Any, **__: Any) -> None:
        pytest.fail("the mistake was to be found before the run")

    monkeypatch.setattr(weft.Session, "run", run)


@pytest.mark.usefixtures("unused")
@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("q={t}/y.npy", "the network has no output 'q'"),
        ("{t}/file", "file is a file, not a folder"),
        ("{t}/file/below", "file is a file, not a folder"),
        ("y={t}/file/y.npy", "file is a file, not a folder"),
        ("y={t}", "is a folder, and one output is a file"),
        ("/proc/nope", "cannot be written"),
        ("y=/proc/nope/y.npy", "cannot be written"),
        ("y=/proc/y.npy", "cannot be written"),
    ],
)
def test_outputs_are_checked_before_the_run(cli: Cli, tmp_path: Path, output: str, said: str) -> None:
    (tmp_path / "file").write_text("no folder")
    model = double(tmp_path / "m.onnx")
    err = cli("run", model, "-d", "cpu", "-o", output.replace("{t}", str(tmp_path)), status=2).err
    assert said in err and "next: " in err


def test_folders_are_made_and_files_are_replaced(cli: Cli, tmp_path: Path) -> None:
    model, y = double(tmp_path / "m.onnx"), tmp_path / "a" / "b" / "y.npy"
    for _ in range(2):
        cli("run", model, "-d", "cpu", "-o", f"y={y}")
        assert np.load(y).shape == (1, 4) and [p.name for p in y.parent.iterdir()] == ["y.npy"]


@pytest.mark.usefixtures("unused")
@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_labels_that_cannot_be_read(cli: Cli, tmp_path: Path, content: bytes | None) -> None:
    labels = tmp_path / "labels.txt"
    if content is not None:
        labels.write_bytes(content)
    said = cli("run", double(tmp_path / "m.onnx"), "-d", "cpu", "--labels", labels, status=2).err
    assert "the labels in" in said and "next: " in said


def test_arrays_for_outputs_that_do_not_fit_are_answered_with_advice(tmp_path: Path) -> None:
    x = np.zeros((1, 4), np.float32)
    with weft.load(double(tmp_path / "m.onnx", (1, 4)), "cpu") as session:
        with pytest.raises(weft.errors.InputError, match="do not fit") as caught:
            session.run(x, outputs=[np.zeros((2, 4), np.float32)])
        assert "'y': float32[1x4]" in caught.value.fix
        with pytest.raises(weft.errors.InputError, match="bare array") as caught:
            session.run(x, outputs=np.zeros((1, 4), np.float32))  # type: ignore[arg-type]
        assert "put it in a list" in caught.value.fix
