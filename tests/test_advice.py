"""What a user gets wrong first is answered with what to do next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft.errors import WeftError
from weft.models import path


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (lambda folder: weft.load(None, "cpu"), "weft.Network"),  # type: ignore[arg-type]
        (lambda folder: weft.load(None, "cpu"), "weft.OptimizedNetwork"),  # type: ignore[arg-type]
        (lambda folder: weft.load("", "cpu"), "the path of an ONNX file"),
        (lambda folder: weft.load(folder / "no.onnx", "cpu"), "the path of an ONNX file"),
        (lambda folder: weft.load(folder / "no.weft", "cpu"), "`weft optimize`"),
        (lambda folder: weft.load(folder, "cpu"), "name a model's file"),
        (lambda folder: weft.parse(folder), "name a model's file"),
        (lambda folder: weft.load("/dev/null", "cpu"), "the path of an ONNX file"),
        (lambda folder: weft.load(path("shapes"), "cpu", shapes={"image": (10**12, 3, 128, 128)}), "smaller shapes"),
        (lambda folder: weft.Network("n").add_input("x", (-1, 3)), "write, for instance"),
    ],
)
def test_mistakes_in_python(wrong: Callable[[Path], object], advice: str, tmp_path: Path) -> None:
    with pytest.raises(WeftError) as caught:
        wrong(tmp_path)
    assert advice in caught.value.fix and f"next: {caught.value.fix}" in str(caught.value)


def test_a_shape_that_is_too_large_for_a_resize() -> None:
    with weft.load(path("shapes"), "cpu") as session:
        with pytest.raises(WeftError) as caught:
            session.resize({"image": (10**12, 3, 128, 128)})
        assert "smaller shapes" in caught.value.fix
