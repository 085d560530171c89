"""Run a command line in this process, and small models to run it on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from weft.cli import main
from weft.cli.trial_run import trial_run

SHARED = Path(__file__).parents[3] / "shared" / "models"
needs_models = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real networks are not in {SHARED}")


@dataclass(frozen=True)
class Done:
    """What a command line came to."""

    status: int
    out: str
    err: str


class Cli:
    """Calls the command `weft`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object, status: int = 0) -> Done:
        """Return what the command printed, after checking its exit status."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(a) for a in arguments])
        done = Done(int(caught.value.code or 0), *self._capsys.readouterr())
        assert done.status == status, done
        return done


def try_only_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `weft doctor` try no device of Weft in a child process: `test_doctor_finds_nothing_wrong` lets it."""
    ours = ("cpu:", "opencl:", "vulkan:")
    patched = "weft.cli.doctor.trial_run"
    monkeypatch.setattr(patched, lambda device: 0.0 if device.startswith(ours) else trial_run(device))


def write_model(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int | str, ...]],
    outputs: list[str],
    *,
    opset: int = 17,
    **weights: object,
) -> Path:
    """Write a float32 model; the shapes of outputs are left to be inferred."""
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(w, np.float32), n) for n, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def double(path: Path, shape: tuple[int | str, ...] = ("n", 4)) -> Path:
    """Write y = x + x."""
    return write_model(path, [helper.make_node("Add", ["x", "x"], ["y"], name="twice")], {"x": shape}, ["y"])
