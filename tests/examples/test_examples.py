"""The examples, on networks made here, and on the real ones if they are there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.helpers.examples import EXAMPLES, load_example
from tests.helpers.warm_python import WarmPython

ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"
DEVICES = ("cpu", "opencl", "vulkan")
FACES = [pytest.param(d, marks=[pytest.mark.long] * (d == "vulkan")) for d in DEVICES]
"""On llvmpipe its kernels take ten seconds to compile."""
needs_models = pytest.mark.skipif(not MODELS.is_dir(), reason=f"the real networks are not in {MODELS}")


@pytest.fixture
def python(warm_python: WarmPython) -> Callable[..., str]:
    """Give what runs Python where it finds Weft and the examples, and returns what is printed."""

    def run(*arguments: object) -> str:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}"}
        done = warm_python.run(*arguments, env=environment, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def run(python: Callable[..., str]) -> Callable[..., str]:
    """Give what returns what an example prints; its process registers what it registers, and ends."""
    return lambda name, *arguments: python("-W", "error", EXAMPLES / name, *arguments)


def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """Return the declaration of an input or output."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


# -- two_networks.py ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_one_network_reads_what_another_made(run: Callable[..., str], tmp_path: Path, device: str) -> None:
    for name, op, shape in (("first", "Relu", ["n", 3]), ("second", "Sigmoid", [1, 3])):
        nodes = [helper.make_node(op, ["x"], ["y"])]
        graph = helper.make_graph(nodes, name, [floats("x", *shape)], [floats("y", *shape)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / f"{name}.onnx")
    made = run("two_networks.py", tmp_path / "first.onnx", tmp_path / "second.onnx", "--device", device)
    x = np.maximum(np.random.default_rng(0).standard_normal((1, 3)).astype(np.float32), 0)
    assert made.splitlines() == [
        f"between the networks: Buffer((1, 3), float32, '{device}:0')",
        f"y: float32[1, 3], mean {(1 / (1 + np.exp(-x))).mean():.4f}",
        "copied to the second network: 0 bytes",
    ]


# -- classify.py -------------------------------------------------------------------------------------------


def test_a_red_picture_is_red(run: Callable[..., str], tmp_path: Path) -> None:
    """A network that averages each channel is a classifier of colours."""
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "colours", [floats("x", "n", 3, 8, 8)], [floats("y", "n", 3, 1, 1)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "colours.onnx")
    (tmp_path / "labels.txt").write_text("0,red\n1,green\n2,blue\n")
    Image.new("RGB", (30, 20), (255, 102, 0)).save(tmp_path / "orange.png")
    files = (tmp_path / "colours.onnx", tmp_path / "orange.png", "--labels", tmp_path / "labels.txt")
    out = run("classify.py", *files, "--std", "255", "--device", "cpu")
    assert out.splitlines() == ["1.0000  red", "0.4000  green", "0.0000  blue", "nodes: cpu 1"]
    out = run("classify.py", *files, "--std", "255", "--bgr", "--softmax", "--top", "1", "--device", "cpu")
    assert out.splitlines()[0] == "0.5217  blue"


def test_pictures_are_cut_not_distorted() -> None:
    fit = load_example("classify").fit
    wide = Image.new("RGB", (40, 20))
    wide.paste((255, 255, 255), (10, 0, 30, 20))
    middle = np.asarray(fit(wide, 10, 10))
    assert middle.shape == (10, 10, 3)
    assert middle[:, 1:-1].min() == 255


@pytest.mark.alike
@needs_models
@pytest.mark.parametrize("device", DEVICES)
def test_the_kitten_is_a_tabby(run: Callable[..., str], device: str) -> None:
    options = ("--labels", MODELS / "imagenet_labels.txt", "--mean", "104,117,123", "--bgr", "--device", device)
    lines = run("classify.py", MODELS / "squeezenet.onnx", MODELS / "kitten_224.png", *options).splitlines()
    scores = [(line[:6], line[8:]) for line in lines[:3]]
    assert scores == [("0.9385", "tabby, tabby cat"), ("0.0318", "Egyptian cat"), ("0.0274", "tiger cat")]
    assert lines[-1].startswith(f"nodes: {device} ") and "," not in lines[-1]


# -- detect_faces.py ---------------------------------------------------------------------------------------


def test_faces_are_decoded_and_suppressed() -> None:
    faces = load_example("detect_faces")
    scores = np.array([[[0.1, 0.9], [0.6, 0.4], [0.2, 0.8], [0.05, 0.95]]], np.float32)
    boxes = np.array([[[0, 0, 0.5, 0.5], [0, 0, 1, 1], [0.02, 0, 0.5, 0.5], [0.5, 0.5, 1.2, 1]]], np.float32)
    best, corners = faces.decode(scores, boxes, (200, 100), 0.7)
    np.testing.assert_allclose(best, [0.95, 0.9, 0.8])
    np.testing.assert_allclose(corners, [[100, 50, 200, 100], [0, 0, 100, 50], [4, 0, 100, 50]], rtol=1e-5)
    np.testing.assert_allclose(faces.overlap(corners[1], corners), [0, 1, 0.96], rtol=1e-5)
    assert faces.suppress(corners, 0.3) == [0, 1]
    assert faces.suppress(corners, 0.97) == [0, 1, 2]
    assert faces.suppress(corners[:0], 0.3) == []


@needs_models
@pytest.mark.parametrize("device", FACES)
def test_the_face_is_found(run: Callable[..., str], device: str, tmp_path: Path) -> None:
    files = (MODELS / "ultraface_rfb_320.onnx", MODELS / "face.jpg", tmp_path / "faces.png")
    lines = run("detect_faces.py", *files, "--device", device).splitlines()
    assert lines[0] == "0.9943  145,33 to 191,79"
    assert lines[1].startswith("1 faces of ")
    assert lines[2].startswith(f"nodes: {device} ") and "," not in lines[2]
    with Image.open(tmp_path / "faces.png") as drawn, Image.open(files[1]) as before:
        assert drawn.size == before.size
        assert drawn.getpixel((145, 60)) == (64, 224, 96)


# -- withdrawn_ops.py --------------------------------------------------------------------------------------


def shrunk_candy(target: Path, size: int) -> Path:
    """Write candy.onnx for smaller pictures: its two enlarging convolutions say their sizes."""
    model = onnx.load(MODELS / "candy.onnx")
    for value in (*model.graph.input[:1], *model.graph.output):
        for dim in value.type.tensor_type.shape.dim[2:]:
            dim.dim_value = size
    sizes = iter((size // 2 + 2, size + 2))
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "ConvTranspose" and attribute.name == "output_shape":
                attribute.ints[:] = [next(sizes)] * 2
    onnx.save(model, target)
    return target


@needs_models
@pytest.mark.parametrize(
    ("device", "size"),
    [
        ("opencl", 160),
        pytest.param("opencl", 720, marks=pytest.mark.long),
        pytest.param("vulkan", 160, marks=pytest.mark.long),
    ],
)
def test_candy_is_painted(python: Callable[..., str], device: str, size: int, tmp_path: Path) -> None:
    """The real network, in its own size and in a smaller one, which takes less time."""
    model = MODELS / "candy.onnx" if size == 720 else shrunk_candy(tmp_path / "candy.onnx", size)
    with Image.open(MODELS / "face.jpg") as face:
        photo = np.asarray(face.convert("RGB").resize((size, size)), np.float32).transpose(2, 0, 1)[None]
    expected = onnxruntime.InferenceSession(model).run(None, {"inputImage": photo})[0]
    np.save(tmp_path / "photo.npy", photo)
    script = (
        "import sys, numpy, withdrawn_ops, weft\n"
        "model, photo, out, device = sys.argv[1:]\n"
        "with weft.load(model, device, shapes={'inputImage': numpy.load(photo).shape}) as session:\n"
        "    numpy.save(out, session.run(numpy.load(photo))[0])\n"
        "    print(session.report.refusals)\n"
    )
    files = (model, tmp_path / "photo.npy", tmp_path / "out.npy")
    assert python("-c", script, *files, device).strip() == "{}", "every node runs on the device"
    # In 0..255, through 15 instance norms.
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=0.02)


# -- numpy_backend.py --------------------------------------------------------------------------------------


def test_the_one_file_backend_runs_by_itself(run: Callable[..., str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3, 3, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Add", ["r", "r"], ["y"]),
    ]
    constants = [numpy_helper.from_array(w, "w")]
    graph = helper.make_graph(nodes, "net", [floats("x", 2, 3, 9, 8)], [floats("y", 2, 4, 5, 7)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    lines = run("numpy_backend.py", tmp_path / "net.onnx").splitlines()
    assert lines[1] == "nodes: acme 3"
    x = np.random.default_rng(0).random((2, 3, 9, 8), np.float32)
    (y,) = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"x": x})
    assert lines[0] == f"y: {y.shape}, {y.min():.6g} to {y.max():.6g}"
