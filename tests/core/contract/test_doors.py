"""Errors that a caller can mend have few frames of Weft, raised where the caller is; what callbacks raise has all."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.helpers.nets import chain
from weft.core.graph.graph import Graph
from weft.core.passes import PassContext
from weft.errors import InputError, ModelError, PassError, WeftError
from weft.extend import graph_pass

HOME = os.path.join(Path(weft.__file__).parent, "")
MOST_FRAMES = 2


def told(e: BaseException) -> str:
    return "".join(traceback.format_exception(type(e), e, e.__traceback__))


def frames_of_others(e: BaseException) -> list[str]:
    """Return the files of all frames that are neither Weft's nor this test's, the causes' too."""
    files = [line.split('"')[1] for line in told(e).splitlines() if line.startswith('  File "')]
    return [file for file in files if not file.startswith(HOME) and file != __file__]


WRONG: dict[str, Callable[[Path, Callable[..., object]], object]] = {
    "a missing file": lambda folder, make: make(folder / "missing.onnx"),
    "a folder": lambda folder, make: make(folder),
    "a missing saved network": lambda folder, make: make(folder / "missing.weft"),
    "a wrong device": lambda folder, make: make(chain("Relu"), "vulkan:99"),
    "no such device": lambda folder, make: make(chain("Relu"), "cuda"),
    "bytes": lambda folder, make: make(b"no model"),
    "an object": lambda folder, make: make(object()),
    "shapes": lambda folder, make: make(chain("Relu"), "cpu", shapes={"x": (3, 4)}),
    "a large graph's shapes": lambda folder, make: make(chain(*["Relu"] * 20), "cpu", shapes={"x": (3, 4)}),
    "a hint": lambda folder, make: make(chain("Relu"), "cpu", hints={"nothing": "cpu"}),
    "a precision": lambda folder, make: make(chain("Relu"), "cpu", precision="half"),
}


@pytest.mark.parametrize("make", [weft.load, weft.optimize], ids=["load", "optimize"])
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_is_told_in_few_frames(what: str, make: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(WeftError) as caught:
        WRONG[what](tmp_path, make)
    assert caught.value.__cause__ is None
    assert frames_of_others(caught.value) == []
    assert told(caught.value).count(f'File "{HOME}') <= MOST_FRAMES


def test_a_runtime_and_a_builder_tell_a_missing_file_in_few_frames(tmp_path: Path) -> None:
    for make in (weft.Runtime().load, weft.parse):
        with pytest.raises(WeftError) as caught:
            make(tmp_path / "missing.weft")
        assert frames_of_others(caught.value) == []
        assert told(caught.value).count(f'File "{HOME}') <= MOST_FRAMES


def test_runs_tell_what_does_not_fit_in_few_frames() -> None:
    wrong = np.zeros((3, 4), np.float32)
    with weft.load(chain("Relu"), "cpu") as session:
        calls: list[Callable[[], object]] = [
            lambda: session.run(wrong), lambda: session.submit(wrong), session.wait,
            lambda: session.resize({"x": (3, 4)}), lambda: session.run(wrong[:, :3], outputs=[wrong]),
        ]
        for call in calls:
            with pytest.raises(InputError) as caught:
                call()
            assert told(caught.value).count(f'File "{HOME}') <= MOST_FRAMES


@graph_pass()
def failing(graph: Graph, context: PassContext) -> Graph:
    """Fail."""
    raise ValueError("a pass of the user's")


@graph_pass()
def refusing(graph: Graph, context: PassContext) -> Graph:
    """Fail with an error of Weft."""
    raise ModelError("it does not fit", where="here", why="it is odd", fix="make it even")


def test_what_a_users_function_raises_keeps_its_frames() -> None:
    with pytest.raises(PassError) as caught:
        weft.load(chain("Relu"), "cpu", passes=[failing])
    assert "in failing" in told(caught.value)


def test_a_variable_keeps_all_frames(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_FULL_TRACEBACKS", "1")
    with pytest.raises(ModelError) as caught:
        weft.load(tmp_path / "missing.onnx")
    assert "in load" in told(caught.value)


def test_a_reason_that_is_an_error_has_no_labels_of_its_own() -> None:
    with pytest.raises(PassError) as caught:
        weft.load(chain("Relu"), "cpu", passes=[refusing])
    assert caught.value.why == "it does not fit (it is odd)"
    assert str(caught.value).count("why:") == 1
