"""Networks with trained weights, on real pictures: SqueezeNet on a kitten, UltraFace on faces."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

import weft
from weft.core.graph.layout import Array

FOLDER = Path(__file__).parents[2] / "../shared/models"
DEVICES = ("cpu", "opencl", "vulkan")
TABBY = 281


def path(name: str) -> Path:
    """Return the path of a model or picture, or skip the test, saying where it was looked for."""
    found = (FOLDER / name).resolve()
    if not found.exists():
        pytest.skip(f"there is no {found}")
    return found


def kitten() -> Array:
    """Return the picture as SqueezeNet wants it: BGR, minus the channel means."""
    pixels = np.asarray(Image.open(path("kitten_224.png")).convert("RGB"), np.float32)
    bgr = pixels[:, :, ::-1] - np.array([104, 117, 123], np.float32)
    return np.ascontiguousarray(bgr.transpose(2, 0, 1)[None])


def faces() -> Array:
    """Return the picture as UltraFace wants it: RGB, 320 x 240, around zero."""
    picture = Image.open(path("face.jpg")).convert("RGB").resize((320, 240))
    return np.ascontiguousarray((np.asarray(picture, np.float32).transpose(2, 0, 1)[None] - 127) / 128)


@cache
def expected(name: str) -> list[Array]:
    """Return what ONNX Runtime says."""
    session = onnxruntime.InferenceSession(path(name), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    x = faces() if "face" in name else kitten()
    return list(session.run(None, {given.name: x.astype(np.float16 if "float16" in given.type else np.float32)}))


def assert_on(session: weft.Session, device: str) -> None:
    assert set(session.report.nodes_by_device) == {device}, session.report.refusals


def classify(name: str, device: str, precision: str) -> Array:
    """Return the probabilities of the classes for the kitten."""
    with weft.load(path(name), device=device, precision=precision, fallback="error") as session:
        assert_on(session, device)
        x = kitten().astype(np.float16 if "fp16" in name else np.float32)
        (y,) = session.run(x)
    probabilities: Array = y.reshape(-1).astype(np.float32)
    assert probabilities.shape == (1000,)
    assert probabilities.sum() == pytest.approx(1, abs=2e-3)
    assert int(probabilities.argmax()) == TABBY
    assert probabilities[TABBY] == pytest.approx(0.94, abs=0.005 if precision == "high" else 0.01)
    return probabilities


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("precision", "error"), [("high", 1e-5), ("low", 5e-3)])
def test_squeezenet_sees_a_tabby_cat(device: str, precision: str, error: float) -> None:
    got = classify("squeezenet.onnx", device, precision)
    np.testing.assert_allclose(got, expected("squeezenet.onnx")[0].reshape(-1), rtol=0, atol=error)


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["high", "low"])
def test_squeezenet_in_fp16_sees_the_same(device: str, precision: str) -> None:
    got = classify("squeezenet_fp16.onnx", device, precision)
    np.testing.assert_allclose(got, expected("squeezenet.onnx")[0].reshape(-1), rtol=0, atol=5e-3)
    np.testing.assert_allclose(got, expected("squeezenet_fp16.onnx")[0].reshape(-1), rtol=0, atol=5e-3)


@pytest.mark.covering
@pytest.mark.parametrize("device", ["cpu", "opencl", pytest.param("vulkan", marks=pytest.mark.long)])
@pytest.mark.parametrize(("precision", "error"), [("high", 1e-4), ("low", 2e-2)])
def test_ultraface_finds_the_same_faces(device: str, precision: str, error: float) -> None:
    with weft.load(path("ultraface_rfb_320.onnx"), device=device, precision=precision, fallback="error") as session:
        assert_on(session, device)
        scores, boxes = session.run(faces())
    assert (scores.shape, boxes.shape) == ((1, 4420, 2), (1, 4420, 4))
    assert (scores[0, :, 1] > 0.9).sum() > 3
    for got, wanted in zip((scores, boxes), expected("ultraface_rfb_320.onnx"), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=error)
