"""`weft run`: inputs, outputs, devices, errors."""

from __future__ import annotations

import errno
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

from tests.helpers.cli import SHARED, Cli, double, needs_models, write_model
from tests.helpers.run_length import is_long
from weft import models
from weft.errors import ConfigError, ModelError

DEVICES = "cpu,opencl,vulkan"


def test_arrays_go_in_and_come_out(cli: Cli, tmp_path: Path) -> None:
    model = double(tmp_path / "double.onnx")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.save(tmp_path / "x.npy", x)
    done = cli(
        "run", model, "--input", f"x={tmp_path / 'x.npy'}", "-o", f"y={tmp_path / 'y.npy'}", "-d", "cpu"
    )
    assert np.array_equal(np.load(tmp_path / "y.npy"), 2 * x)
    assert "cpu: " in done.out and " ms\n" in done.out
    assert "y: float32[2x4], 0 to 14" in done.out
    assert "nodes: cpu 1" in done.out
    assert done.err == ""


def test_several_devices_write_to_files_of_their_own(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "run",
        models.path("shapes"),
        "-d",
        DEVICES,
        "--output",
        tmp_path / "out",
        "--shape",
        "image=1,3,128,128",
    )
    files = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert files == [f"{d}.probabilities.npy" for d in ("cpu", "opencl", "vulkan")]
    cpu, opencl, vulkan = (np.load(tmp_path / "out" / name) for name in files)
    assert np.abs(opencl - cpu).max() < 1e-4 and np.abs(vulkan - cpu).max() < 1e-4
    assert len(re.findall("largest difference from cpu: ", done.out)) == 2
    assert "no --input for 'image': random numbers, float32[1x3x128x128], seed 0" in done.err


def test_what_overflows_at_low_is_float32_unless_that_is_switched_off(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "large"], ["up"]),
        helper.make_node("Softmax", ["up"], ["shares"]),
        helper.make_node("Mul", ["shares", "large"], ["y"]),
    ]
    model = write_model(tmp_path / "m.onnx", nodes, {"x": (2, 4)}, ["y"], large=np.array(30000, np.float32))
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    how = ("run", model, "--input", f"x={tmp_path / 'x.npy'}", "-d", "cpu", "--precision", "low")
    assert "overflowed float16 in a run: up" in cli(*how).out
    assert "overflowed" not in cli(*how, "--no-overflow-check").out


def test_options_for_pictures_are_noted_where_there_is_none(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", double(tmp_path / "m.onnx"), "-d", "cpu", "--bgr")
    assert "--mean, --scale and --bgr do nothing here" in done.err


def test_one_file_cannot_take_the_outputs_of_several_runs(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", double(tmp_path / "m.onnx"), "-d", DEVICES, "-o", "y=y.npy", status=2)
    assert "error: several runs would write the same file" in done.err and "name a folder" in done.err


def test_dimensions_that_nobody_gives_are_one(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", double(tmp_path / "m.onnx"), "-d", "cpu")
    assert "random numbers, float32[1x4]" in done.err and "y: float32[1x4]" in done.out


def test_random_inputs_are_the_same_each_time(cli: Cli, tmp_path: Path) -> None:
    model = double(tmp_path / "m.onnx")
    for name in ("a", "b"):
        cli("run", model, "-d", "cpu", "-o", f"y={tmp_path / name}.npy")
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))


def test_iterations_give_a_median(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", double(tmp_path / "m.onnx"), "-d", "cpu", "--iterations", 5, "--warmup", 2)
    assert "(median of 5 runs)" in done.out


def test_the_best_classes_are_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("0,zero\n1,one, or so\n2,two\n")
    np.save(tmp_path / "x.npy", np.array([[1, 3, 2, 0]], np.float32))
    model, x = double(tmp_path / "m.onnx"), f"x={tmp_path / 'x.npy'}"
    done = cli(
        "run", model, "-i", x, "-d", "cpu", "--top", 3, "--labels", tmp_path / "labels.txt", "--softmax"
    )
    shown = [line.split(maxsplit=1) for line in done.out.splitlines() if re.match(r" {4}", line)][:3]
    assert [name for _, name in shown] == ["one, or so", "two", "zero"]
    assert float(shown[0][0]) == pytest.approx(np.exp(6) / np.exp([2, 6, 4, 0]).sum(), abs=1e-4)
    assert "class 3" in cli("run", model, "-i", x, "-d", "cpu", "--labels", tmp_path / "labels.txt").out


def picture(path: Path, height: int, width: int) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels.astype(np.float32)


def identity(path: Path, shape: tuple[int | str, ...]) -> Path:
    return write_model(path, [helper.make_node("Abs", ["x"], ["y"])], {"x": shape}, ["y"])


@pytest.mark.parametrize("shape", [(1, 3, 6, 5), ("n", 3, "h", "w"), (2, 3, 6, 5), (1, 6, 5, 3), (3, 6, 5)])
def test_a_picture_becomes_what_the_input_wants(
    cli: Cli, tmp_path: Path, shape: tuple[int | str, ...]
) -> None:
    pixels = picture(tmp_path / "p.png", 6, 5)
    model, out = identity(tmp_path / "m.onnx", shape), tmp_path / "y.npy"
    options = ("--bgr", "--mean", "10,20,30", "--scale", "1/2")
    cli("run", model, "-i", f"x={tmp_path / 'p.png'}", "-o", f"y={out}", "-d", "cpu", *options)
    prepared = np.abs((pixels[..., ::-1] - np.array([10, 20, 30], np.float32)) / 2)
    result = np.load(out)
    last = shape[-1] == 3
    for item in result if len(shape) == 4 else [result]:
        assert np.array_equal(item if last else item.transpose(1, 2, 0), prepared)
    assert result.shape == tuple(
        {"n": 1, "h": 6, "w": 5}.get(d, d) if isinstance(d, str) else d for d in shape
    )


def test_a_picture_is_resized_and_may_be_grey(cli: Cli, tmp_path: Path) -> None:
    Image.new("RGB", (40, 30), (90, 90, 90)).save(tmp_path / "p.png")
    model = identity(tmp_path / "m.onnx", (1, 1, 8, 9))
    cli("run", model, "-i", f"x={tmp_path / 'p.png'}", "-o", f"y={tmp_path / 'y.npy'}", "-d", "cpu")
    assert np.array_equal(np.load(tmp_path / "y.npy"), np.full((1, 1, 8, 9), 90, np.float32))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.onnx"], "error: the model file cannot be read"),
        (["{m}", "-d", "abacus"], "no backend is registered for 'abacus'"),
        (["{m}", "-d", "cpu:7"], "there is no device cpu:7"),
        (["{m}", "-d", ","], "no device was named"),
        (["{m}", "-i", "x"], "--input 'x' is not NAME=VALUE"),
        (["{m}", "-i", "x=nowhere.npy"], "there is no file nowhere.npy"),
        (["{m}", "-i", "z={m}"], "the network has no input 'z'"),
        (["{m}", "-i", "x={m}"], "a picture has 1 or 3 channels"),
        (["{m}", "--shape", "x=1,a"], "--shape x=1,a is not a list of numbers"),
        (["{m}", "--shape", "n=x"], "or --shape n=2 if it is a dimension"),
        (["{m}", "-d", "all+cpu"], "'all' cannot be one of several devices of a run"),
        (["{m}", "--shape", "x=1,5"], "'x' cannot have shape (1, 5)"),
        (["{m}", "--shape", "x=-1,4"], "(-1, 4) is not a shape for 'x'"),
        (["{m}", "--shape", f"x={10**25},4"], "the host does not have enough memory"),
        (["{m}", "--mean", "1,2"], "--mean '1,2' is not one number or three"),
        (["{m}", "-o", "q=q.npy"], "the network has no output 'q'"),
        (["{m}", "-o", "a", "-o", "b"], "--output names two folders"),
        (["{m}", "--labels", "nowhere.txt"], "the labels in nowhere.txt cannot be read"),
    ],
)
def test_mistakes_are_explained(cli: Cli, tmp_path: Path, arguments: list[str], said: str) -> None:
    model = double(tmp_path / "m.onnx")
    filled = [a.replace("{m}", str(model)) for a in arguments]
    done = cli("run", *filled, *(() if "-d" in filled else ("-d", "cpu")), status=2)
    assert said in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("option", [("--input", "nope=x.npy"), ("--input", "nope="), ("--shape", "nope=1,3")])
def test_inputs_that_are_not_there_are_answered_with_advice(cli: Cli, tmp_path: Path, option: tuple[str, str]) -> None:
    assert "next: " in cli("run", double(tmp_path / "m.onnx"), "-d", "cpu", *option, status=2).err


def test_files_that_are_no_arrays_or_pictures(cli: Cli, tmp_path: Path) -> None:
    model = identity(tmp_path / "m.onnx", (1, 3, 4, 4))
    for name, said in (("x.npy", "is not an array"), ("x.png", "is neither a picture nor a .npy file")):
        for content in (b"nonsense", b"", b"\x93NUMPY", b"PK\3\4"):
            (tmp_path / name).write_bytes(content)
            assert said in cli("run", model, "-i", f"x={tmp_path / name}", "-d", "cpu", status=2).err


@pytest.mark.parametrize("name", ["x.npy", "x.png"])
def test_files_that_may_not_be_read(cli: Cli, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = identity(tmp_path / "m.onnx", (1, 3, 4, 4)), tmp_path / name
    path.write_bytes(b"secret")
    real = open

    def refuse(file: Any, *arguments: Any, **more: Any) -> Any:
        if str(file) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(file, *arguments, **more)

    # numpy's files are opened by pathlib, pillow's by the builtin; the tests may run as root, who may read all.
    monkeypatch.setattr(io, "open", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    said = cli("run", model, "-i", f"x={path}", "-d", "cpu", status=2).err
    assert f"{name} cannot be read" in said and "Permission denied" in said and "check its permissions" in said


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    from weft.cli import main

    with pytest.raises(ModelError):
        main(["run", str(tmp_path / "nowhere.onnx"), "--debug"])
    with pytest.raises(ConfigError):
        main(["--debug", "run", str(double(tmp_path / "m.onnx")), "-d", "cpu", "--mean", "x"])


def test_strict_refuses_a_network_that_is_not_whole_on_the_device(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("QuantizeLinear", ["x", "step"], ["q"], precision=TensorProto.FLOAT16)]
    nodes.append(helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT))
    model = write_model(tmp_path / "m.onnx", nodes, {"x": (2, 3)}, ["y"], opset=23, step=1.0)
    done = cli("run", model, "-d", "vulkan", "--strict", status=2)
    assert "run on none of vulkan:0" in done.err or "not supported" in done.err


@needs_models
def test_the_kitten_is_a_tabby_cat_on_every_device(cli: Cli) -> None:
    """In the short run, of GPUs on OpenCL: test_light_networks.py runs a SqueezeNet on Vulkan."""
    devices = ["cpu", "opencl", *["vulkan"] * is_long()]
    done = cli(
        *("run", SHARED / "squeezenet.onnx", "--input", f"data_0={SHARED / 'kitten_224.png'}"),
        *("--bgr", "--mean", "104,117,123", "--labels", SHARED / "imagenet_labels.txt"),
        *("--device", ",".join(devices), "--top", 3),
    )
    assert len(re.findall(r"0\.938\d  tabby, tabby cat", done.out)) == len(devices)
    assert max(map(float, re.findall(r"largest difference from cpu: (\S+)", done.out))) < 1e-5
    assert re.findall(r"nodes: (\w+) \d+$", done.out, re.M) == devices
