"""The commands on networks whose sizes follow from values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tests.helpers.cli import Cli
from tests.helpers.onnx_models import make_model
from tests.helpers.staged_models import FLOAT, condition, node


def test_the_commands_take_stages(cli: Cli, tmp_path: Path) -> None:
    model, file = tmp_path / "m.onnx", tmp_path / "m.weft"
    onnx.save(condition(), model)
    shown = cli("inspect", model, "-d", "opencl", "--launches", "--fusion").out
    assert "opencl:0: 5 of 5 nodes after the rewrites" in shown
    assert "stage 3 of 3, where 'positive' is true, for x: float32[3]" in shown and "sum (Add + Relu + Exp)" in shown
    assert "Slice" not in shown and "stage where" in cli("inspect", model, "-d", "opencl", "--why", "y").out
    assert "the first of 3 stages" in cli("optimize", model, "-d", "opencl", "-o", file).out
    assert "y: float32[3]" in cli("run", file).out
    compared = cli("compare", model, "-d", "cpu,vulkan", "--values").out
    assert "inside If and loops was not compared" in compared and "0 of 3 values that the device stores" in compared
    assert compared.splitlines()[-1].startswith("PASS: vulkan")
    assert "nothing to choose from" in cli("tune", model, "-d", "opencl", "--budget", 0).out


def test_two_runs_may_make_outputs_of_other_shapes(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x x", "square"),
        node("Neg", "square", "half"),
        node("NonZero", "half", "y"),
    ]
    model = make_model(nodes, {"x": (FLOAT, (2,))}, ["y"])
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array([1, 1e-5], np.float32))
    command = (tmp_path / "m.onnx", "-i", f"x={tmp_path / 'x.npy'}", "-d", "cpu")
    assert "other shapes: 1" in cli("bench", *command, "--precision", "high,low", "--iterations", 1).out
    compared = cli("compare", *command[:-1], "cpu,cpu", "--precision", "low", status=1).out
    assert "in 'y' (other shapes: 1)" in compared.splitlines()[-1]
