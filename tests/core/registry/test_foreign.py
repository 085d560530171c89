"""Models that no front end reads: the error says what they are by their first bytes, and the way to one that runs."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import weft
from weft.errors import ModelError
from weft.models import path as shapes


def archive(*names: str) -> bytes:
    """Return a ZIP archive of files with these names."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.writestr(name, b"x" * 5000)
    return out.getvalue()


FILES: dict[str, tuple[bytes, str, str]] = {
    "an empty file": (b"", "an empty file", "get it again"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer", "git lfs pull"),
    "a page": (b"\n<!DOCTYPE html>\n<html><body>Sign in</body></html>", "a web page", "/resolve/"),
    "ORT": (b"\x28\0\0\0ORTM" + bytes(90), "in ONNX Runtime's own format", "the ONNX file that it was made from"),
    "GGUF": (b"GGUF\3\0\0\0" + bytes(90), "a GGUF file", "optimum-cli export onnx"),
    "safetensors": (
        (16).to_bytes(8, "little") + b'{"w":{"dtype":1}}' + bytes(9), "a safetensors file", "weights and no graph",
    ),
    "Keras 2": (b"\x89HDF\r\n\x1a\n" + bytes(90), "an HDF5 file, as Keras writes it", "load_model('{name}').export("),
    "Keras 3": (archive("metadata.json", "config.json", "model.weights.h5"), "a Keras model", ".export('model.onnx'"),
    "OpenVINO": (b'<?xml version="1.0"?>\n<net name="x" version="11">', "an OpenVINO network", "the ONNX file"),
    "TorchScript": (
        archive("net/data.pkl", "net/code/__torch__.py", "net/constants.pkl"), "a TorchScript program",
        "torch.onnx.export(torch.jit.load('{name}'), (example,), 'model.onnx', dynamo=False)",
    ),
    "torch.export": (
        archive("p/archive_format", "p/models/model.json"), "an exported program of PyTorch",
        "weft.load(torch.export.load('{name}'))",
    ),
    "torch.save": (archive("net/data.pkl", "net/data/0"), "a PyTorch checkpoint", "torch.onnx.export(model.eval()"),
    "torch.save before 1.6": (
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "a PyTorch checkpoint", "torch.onnx.export(",
    ),
    "a pickle": (b"\x80\x04\x95\x10\0\0\0\0\0\0\0", "a Python pickle", "Weft unpickles nothing"),
    "Core ML": (b"\x08\x05\x12\x40\x0a\x10\x0a\x05image\x1a\x05" + bytes(80), "a Core ML model", "to ONNX"),
    "SavedModel": (b"\x08\x01\x12\x95\x20\x0a\x90\x10\x12\x05" + bytes(90), "a TensorFlow SavedModel", "--saved-model"),
    "a TensorFlow graph": (b"\x0a\x20\x0a\x01x\x12\x0bPlaceholder", "a TensorFlow graph", "--graphdef {name}"),
    "gzip": (gzip.compress(b"model"), "a file that gzip packed", "gunzip"),
    "ZIP": (archive("a/model.onnx", "a/readme"), "a ZIP archive with a/model.onnx in it", "unpack it"),
    "MediaPipe task": (archive("hand.tflite"), "a ZIP archive with hand.tflite in it", "name the model in it"),
    "tar": (b"model.onnx".ljust(257, b"\0") + b"ustar\x0000", "a tar archive", "unpack it"),
    "numpy": (b"\x93NUMPY\1\0", "an array of numpy", "an input"),
    "ONNX as text": (b'ir_version: 8\nproducer_name: "x"\n', "an ONNX model as text", "format='textproto'"),
    "JSON": (b'{"architectures": ["x"]}', "a JSON file", "the model itself"),
}


def refused(model: object, *parts: str) -> None:
    """Check that loading is refused with a message that has all these parts."""
    with pytest.raises(ModelError) as caught:
        weft.load(model, "cpu")  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", FILES)
def test_the_first_bytes_say_what_a_file_is_and_not_its_suffix(kind: str, tmp_path: Path) -> None:
    data, what, fix = FILES[kind]
    for name in ("model.onnx", "model", "model.bin", "model.pt"):
        (tmp_path / name).write_bytes(data)
        refused(tmp_path / name, f"this is {what}" if what[:2] in ("a ", "an") else what, fix.replace("{name}", name))
    refused(data, *((what, fix.replace("{name}", "FILE")) if data else ("the model has no bytes", "read_bytes()")))


@pytest.mark.parametrize(
    ("files", "what", "fix"),
    [
        (("model.onnx", "README.md"), "a folder with a model", "name the file: {folder}/model.onnx"),
        (("onnx/model.onnx", "config.json"), "a folder with a model", "{folder}/onnx/model.onnx"),
        (("a.onnx", "b.onnx"), "a folder with 2 models", "{folder}/a.onnx or {folder}/b.onnx"),
        (("saved_model.pb",), "a TensorFlow SavedModel", "tf2onnx.convert --saved-model {folder} --output model.onnx"),
        (("Manifest.json",), "a Core ML package", "to ONNX"),
        (("m.xml", "m.bin"), "an OpenVINO network", "the ONNX file"),
        (("config.json", "model.safetensors"), "a folder of Hugging Face's", "export onnx --model {folder}"),
        ((), "a folder without a model", "name a model's file"),
    ],
)
@pytest.mark.parametrize("name", ["net", "net.mlpackage", "net-1.0"])
def test_folders(files: tuple[str, ...], what: str, fix: str, name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).touch()
    refused(folder, f"this is {what}", fix.replace("{folder}", str(folder)))


@pytest.mark.parametrize("name", ["shapes.pt", "shapes.weft", "shapes.1.2"])
def test_an_onnx_model_is_known_by_its_first_bytes(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(shapes("shapes").read_bytes())
    with weft.load(tmp_path / name, "cpu") as session:
        assert session.outputs == ["probabilities"]


@pytest.mark.parametrize("name", ["m.onnx", "m.zip", "m"])
def test_a_network_that_weft_saved_is_known_by_what_it_holds(name: str, tmp_path: Path) -> None:
    weft.optimize(shapes("shapes"), "cpu", shapes={"image": (1, 3, 128, 128)}).save(tmp_path / "m.weft")
    (tmp_path / "m.weft").rename(tmp_path / name)
    with weft.load(tmp_path / name) as session:
        assert session.outputs == ["probabilities"]
    refused((tmp_path / name).read_bytes(), "a network that Weft saved", "save the bytes to a file")


def test_what_is_not_known_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(np.random.default_rng(0).bytes(500))
    refused(tmp_path / "m.bin", "no front end reads .bin")
    os.mkfifo(tmp_path / "pipe.pt")
    refused(tmp_path / "pipe.pt", "no front end reads .pt")


def test_an_address_is_no_path() -> None:
    refused("https://example.com/model.onnx", "No such file", "download the file first")


@pytest.mark.parametrize(
    ("module", "name", "what", "fix"),
    [
        ("torch.nn.modules.module", "Module", "a PyTorch module", "weft.load(torch.export.export("),
        ("torch.jit._script", "ScriptModule", "a TorchScript module", "dynamo=False"),
        ("torch.onnx._internal.exporter._onnx_program", "ONNXProgram", "an ONNX program of", "program.model_proto"),
        ("keras.src.models.model", "Model", "a Keras model", "model.export('model.onnx'"),
        ("onnx_ir._core", "Model", "a model of onnx_ir", "onnx_ir.to_proto(model)"),
        ("sklearn.base", "BaseEstimator", "an estimator of scikit-learn", "skl2onnx.to_onnx("),
        ("onnxruntime.capi", "InferenceSession", "a session of ONNX Runtime", "the file that it was made from"),
    ],
)
def test_objects_of_other_packages(module: str, name: str, what: str, fix: str) -> None:
    """They are told by the names of their classes: nothing is imported for that."""
    base = type(name, (), {"__module__": module})
    before = set(sys.modules)
    for kind in (base, type("Mine", (base,), {})):
        refused(kind(), f"this is {what}", fix, "its class says so")
    assert not {each.partition(".")[0] for each in set(sys.modules) - before} & {"torch", "keras", "tensorflow"}


def test_parts_of_models() -> None:
    refused(onnx.load(shapes("shapes")).graph, "an ONNX graph", "onnx.helper.make_model(graph)")
    tensor = type("Tensor", (), {"__module__": "torch"})
    refused({"w": tensor()}, "a dict of PyTorch's tensors", "it has weights and no graph")
