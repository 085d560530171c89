"""`--state` of `weft run` and `weft bench`: values that a session keeps from run to run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.helpers.cli import Cli, write_model


def cache(path: Path) -> Path:
    """Write a model that appends its input to a cache, and adds up the cache."""
    nodes = [
        helper.make_node("Concat", ["past.0", "x"], ["present.0"], axis=0),
        helper.make_node("ReduceSum", ["present.0"], ["y"], keepdims=1),
    ]
    return write_model(path, nodes, {"x": ("n", 2), "past.0": ("p", 2)}, ["y", "present.0"])


@pytest.mark.parametrize("state", ["auto", "past*=present*"])
def test_commands_keep_a_state(cli: Cli, tmp_path: Path, state: str) -> None:
    path, x = cache(tmp_path / "m.onnx"), tmp_path / "x.npy"
    np.save(x, np.full((3, 2), 2, np.float32))
    done = cli("run", path, "-d", "cpu", "--state", state, "-i", f"x={x}", "--iterations", "3", "-o", tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["y.npy"] and "past" not in done.err
    assert np.load(tmp_path / "out" / "y.npy").item() == 12, "the state is empty before each run"
    assert "0.0e+00" in cli("bench", path, "-d", "cpu", "--state", state, "-i", f"x={x}", "--iterations", "2").out


def test_state_auto_stands_alone(cli: Cli, tmp_path: Path) -> None:
    path = cache(tmp_path / "m.onnx")
    said = cli("run", path, "-d", "cpu", "--state", "auto", "--state", "past.0=present.0", status=2).err
    assert "--state auto stands beside other pairs" in said
