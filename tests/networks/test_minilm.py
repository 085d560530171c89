"""MiniLM's encoder, small: as the benchmarks build it and as PyTorch exports it, whole on every device."""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest

import weft
from benchmarks import models
from benchmarks.minilm import SMALL, minilm_l6
from weft.core.graph.layout import Array

DEVICES = ("cpu", "opencl", "vulkan")
GPUS = ("opencl", "vulkan")
BOUND = {"high": 1e-5, "low": 1e-2}
"""The norm of the difference from onnxruntime over the norm of its output."""
LAUNCHES_A_LAYER = 7
"""Q, K and V; attention; its product; layer norm; two products; layer norm."""
LAUNCHES_BEFORE = 4
"""Two gathers, to which the positions are added; the mask; layer norm."""


@cache
def encoder(opset: int, batch: int | str = 2, sequence: int | str = 9) -> onnx.ModelProto:
    return minilm_l6(batch, opset, sequence=sequence, sizes=SMALL)


def expected(model: onnx.ModelProto, fed: Mapping[str, Array]) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    result: Array = session.run(None, dict(fed))[0]
    return result


def sentences(batch: int, length: int, words: int = SMALL.vocabulary) -> dict[str, Array]:
    """Return random words, of which every other sentence has a quarter less."""
    rng = np.random.default_rng(batch)
    mask = np.ones((batch, length), np.int64)
    mask[1::2, length * 3 // 4 :] = 0
    return {
        "input_ids": rng.integers(0, words, (batch, length), np.int64),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, (batch, length), np.int64),
    }


def assert_close(got: Array, want: Array, precision: str) -> None:
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= BOUND[precision] * np.linalg.norm(want)


def test_the_benchmark_has_the_size_of_the_real_one() -> None:
    model = minilm_l6()
    assert round(models.flops(model) / 1e9, 2) == 2.87
    assert round(models.parameters(model) / 1e6, 2) == 22.57
    fed = models.feeds(model)
    assert {n: a.shape for n, a in fed.items()} == dict.fromkeys(sentences(1, 1), (1, 128))


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["low", "high"])  # so that Vulkan's is low: attention in fp16 on llvmpipe
@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize("device", DEVICES)
def test_the_encoder_runs_whole_on_every_device(device: str, opset: int, precision: str) -> None:
    model, fed = encoder(opset), sentences(2, 9)
    with weft.load(model, device, precision=precision, fallback="error") as session:
        assert set(session.report.nodes_by_device) == {device}
        (y,) = session.run(fed)
        (statistics,) = session.report.statistics.values()
    if device in GPUS:
        # At low precision too: the last norm stores the fp32 output.
        assert statistics["launches"] == LAUNCHES_BEFORE + SMALL.layers * LAUNCHES_A_LAYER
    assert_close(y, expected(model, fed), precision)


@pytest.mark.parametrize("device", ["opencl", pytest.param("vulkan", marks=pytest.mark.long)])
def test_sentences_of_any_number_and_length(device: str) -> None:
    model = encoder(17, "batch", "sequence")
    with weft.load(model, device, shapes=dict.fromkeys(sentences(1, 1), (1, 1)), fallback="error") as session:
        for batch, length in ((1, 1), (3, 40), (1, 64), (2, 7)):
            fed = sentences(batch, length)
            session.resize({name: a.shape for name, a in fed.items()})
            assert set(session.report.nodes_by_device) == {device}
            assert_close(session.run(fed)[0], expected(model, fed), "high")


# -- as PyTorch exports it ---------------------------------------------------------------------------------

FOUND = {"LayerNormalization", "weft::Attention"}
PARTS = {"Softmax", "Erf", "Tanh", "Sqrt", "Transpose", "ReduceMean"}
WITHOUT_TORCH = "needs torch" if importlib.util.find_spec("torch") is None else ""
WITHOUT_DYNAMO = WITHOUT_TORCH or ("needs onnxscript" if importlib.util.find_spec("onnxscript") is None else "")


def exported(path: Path, masked: str, form: str, opset: int, dynamo: bool) -> onnx.ModelProto:
    """Return the encoder of a module as one of torch's two exporters writes it."""
    import torch

    from tests.helpers.torch_encoder import Encoder

    torch.manual_seed(0)
    module = Encoder(masked, form).eval()
    fed = tuple(torch.from_numpy(a) for a in sentences(2, 9, 100).values())
    names = list(sentences(1, 1))
    options: dict[str, Any] = {"input_names": names, "output_names": ["y"], "opset_version": opset}
    if dynamo:
        sizes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("sequence", min=2, max=64)}
        options |= {"dynamic_shapes": (sizes,) * 3, "external_data": False, "verbose": False}
    else:
        options["dynamic_axes"] = {n: {0: "batch", 1: "sequence"} for n in names}
    file: Any = path / "encoder.onnx" if dynamo else io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, fed, file, dynamo=dynamo, **options)
    return onnx.load(file) if dynamo else onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize(
    ("opset", "dynamo"),
    [
        pytest.param(14, False, marks=pytest.mark.skipif(bool(WITHOUT_TORCH), reason=WITHOUT_TORCH)),
        pytest.param(17, False, marks=pytest.mark.skipif(bool(WITHOUT_TORCH), reason=WITHOUT_TORCH)),
        pytest.param(18, True, marks=pytest.mark.skipif(bool(WITHOUT_DYNAMO), reason=WITHOUT_DYNAMO)),
    ],
)
@pytest.mark.parametrize(("masked", "form"), [("product", "none"), ("fill", "tanh")])
def test_what_torch_exports_runs_whole_on_gpus(
    tmp_path: Path, masked: str, form: str, opset: int, dynamo: bool
) -> None:
    model = exported(tmp_path, masked, form, opset, dynamo)
    fed = sentences(2, 9, 100)
    want = expected(model, fed)
    for device in GPUS:
        shapes = {name: a.shape for name, a in fed.items()}
        network = weft.optimize(model, device, shapes=shapes, fallback="error")
        kinds = {getattr(n.op, "base", n.op).type for n in network.graph.nodes}
        assert kinds >= FOUND and not kinds & PARTS
        with weft.load(network) as session:
            assert set(session.report.nodes_by_device) == {device}
            assert_close(session.run(fed)[0], want, "high")
