"""What the command line feeds to a network: pictures, arrays, random numbers, and the errors for bad ones."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

from tests.helpers.cli import Cli, double, write_model
from weft.cli.inputs import Preparation, collect, read
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.tensor import TensorSpec
from weft.errors import InputError


def spec(*shape: int | str, dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec(shape, dtype)


@pytest.mark.parametrize("name", ["x.png", "x.tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_grey_picture_of_16_bits_is_scaled(tmp_path: Path, name: str, channels: int) -> None:
    deep = np.array([[0, 257], [32896, 65535]], np.uint16)
    Image.fromarray(deep).save(tmp_path / name)
    found = read(tmp_path / name, spec(1, channels, 2, 2), Preparation())
    assert np.array_equal(found, np.broadcast_to(np.array([[0, 1], [128, 255]], np.float32), (1, channels, 2, 2)))
    assert read(tmp_path / name, spec(1, 5, 4, channels), Preparation()).max() == 255


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_a_picture_of_unknown_range_is_refused(tmp_path: Path, dtype: type) -> None:
    Image.fromarray(np.zeros((4, 4), dtype)).save(tmp_path / "x.tif")
    with pytest.raises(InputError, match=r"range of the picture .* is not known") as caught:
        read(tmp_path / "x.tif", spec(1, 3, 4, 4), Preparation())
    assert "8 or 16 bits" in caught.value.fix and ".npy" in caught.value.fix


@pytest.mark.parametrize(
    "arguments", [("-i", "x=a.npy", "-i", "x=b.npy"), ("--shape", "x=1,4", "--shape", "x=2,4"),
                  ("-o", "x=a.npy", "-o", "x=b.npy"), ("--hint", "x=cpu", "--hint", "x=opencl")],
    ids=" ".join,
)
def test_a_name_is_given_once(cli: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    said = cli("run", double(tmp_path / "m.onnx"), "-d", "cpu", *arguments, status=2).err
    assert "error: 'x' is given twice" in said and "next: keep one --" in said
    assert arguments[1] in said and arguments[3] in said


@pytest.mark.parametrize(
    "given", [("-d", "cpu", "--device=opencl"), ("--precision", "high", "--precision", "low"),
              ("--iterations", "1", "--iterations", "1")], ids=" ".join,
)
def test_an_option_is_given_once(cli: Cli, tmp_path: Path, given: tuple[str, ...]) -> None:
    name = {"-d": "--device"}.get(given[0], given[0])
    said = cli("bench", double(tmp_path / "m.onnx"), *given, status=2).err
    assert f"error: {name} is given twice" in said
    assert ("next: give it once, with commas between several" in said) == (name != "--iterations")


def test_a_shape_that_contradicts_the_array(cli: Cli, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    given = ("run", double(tmp_path / "m.onnx"), "-d", "cpu", "-i", f"x={tmp_path / 'x.npy'}", "--shape")
    said = cli(*given, "x=3,4", status=2).err
    assert "--shape x=3,4, and" in said and "x.npy has the shape 2,4" in said and "next: leave --shape" in said
    assert "float32[2x4]" in cli(*given, "x=2,4").out


def test_an_input_without_a_shape_needs_one_or_a_file(cli: Cli, tmp_path: Path) -> None:
    path = double(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    said = cli("run", path, "-d", "cpu", status=2).err
    assert "how many dimensions 'x' has" in said and "--shape x=1,3,224,224" in said
    assert "float32[2x1x4]" in cli("run", path, "-d", "cpu", "--shape", "x=2,1,4").out
    np.save(tmp_path / "x.npy", np.zeros((3, 1, 4), np.float32))
    assert "float32[3x1x4]" in cli("run", path, "-d", "cpu", "-i", f"x={tmp_path / 'x.npy'}").out
    assert "x: float32[...]" in cli("inspect", path, "-d", "cpu", "--shape", "x=2,1,4").out


def two_inputs(path: Path) -> Path:
    """Write the sum of an input of n rows and one of n rows and m columns."""
    nodes = [helper.make_node("Add", ["first", "second"], ["y"])]
    return write_model(path, nodes, {"first": ("n", 1), "second": ("n", "m")}, ["y"])


@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        (("n=3",), ("3x1", "3x1")),
        (("n=3", "m=5"), ("3x1", "3x5")),
        (("m=5", "first=2,1"), ("2x1", "2x5")),
        (("m=5",), ("1x1", "1x5")),
    ],
)
def test_a_size_may_be_given_by_the_name_of_its_dimension(
    cli: Cli, tmp_path: Path, given: tuple[str, ...], shapes: tuple[str, str]
) -> None:
    model = two_inputs(tmp_path / "m.onnx")
    said = cli("run", model, "-d", "cpu", *(part for each in given for part in ("--shape", each))).err
    for name, shape in zip(("first", "second"), shapes, strict=True):
        assert f"'{name}': random numbers, float32[{shape}]" in said


def test_every_command_takes_named_dimensions(cli: Cli, tmp_path: Path) -> None:
    model, sizes = two_inputs(tmp_path / "m.onnx"), ("--shape", "n=3", "--shape", "m=5")
    for command, *more in (("bench", "-d", "cpu", "--iterations", "1"), ("compare", "-d", "cpu,opencl")):
        assert "float32[3x5]" in cli(command, model, *more, *sizes).err
    remark = "sizes that the model leaves open are taken as 1 for second (m); to change one, --shape m=2"
    assert remark in cli("inspect", model, *sizes[:2]).err
    assert remark in cli("run", model, "-d", "cpu", *sizes[:2]).err
    assert "leaves open" not in cli("inspect", model, *sizes).err
    cli("optimize", model, "-d", "cpu", "-o", tmp_path / "m.weft", *sizes)
    assert "float32[3x5]" in cli("run", tmp_path / "m.weft").err
    assert "--shape second=3,1" in cli("optimize", model, "-d", "cpu", *sizes[:2], status=2).err


def test_an_input_goes_before_a_dimension_of_its_name(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["n"], ["y"])]
    model = write_model(tmp_path / "m.onnx", nodes, {"n": ("n",)}, ["y"])
    assert "'n': random numbers, float32[4]" in cli("run", model, "-d", "cpu", "--shape", "n=4").err


def test_what_is_no_size_of_a_dimension_is_answered_with_an_example(cli: Cli, tmp_path: Path) -> None:
    model = two_inputs(tmp_path / "m.onnx")
    example = "--shape n=2 or, for the whole shape of an input, --shape first=2,1"
    said = cli("inspect", model, "--shape", "n=2,1", status=2).err.replace("\n", " ")
    assert "--shape n=2,1 gives a dimension 2 sizes" in said and "it is a dimension of first, second" in said
    assert f"next: write one number, {example}" in said
    for command in ("inspect", "run", "optimize"):
        said = cli(command, model, "-d", "cpu", "--shape", "k=2", status=2).err.replace("\n", " ")
        assert "the network has no input 'k'" in said and "the dimensions m, n" in said and "--shape m=2 or" in said


def test_a_named_size_that_contradicts_a_shape_or_an_array(cli: Cli, tmp_path: Path) -> None:
    model = two_inputs(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.zeros((2, 1), np.float32))
    for more in (("--shape", "first=2,1"), ("-i", f"first={tmp_path / 'x.npy'}")):
        said = cli("run", model, "-d", "cpu", "--shape", "n=3", *more, status=2).err
        assert "'first' cannot have shape (2, 1): dimension 0 is 2 instead of 3" in said


def test_a_file_that_is_no_input_is_answered_with_advice(tmp_path: Path) -> None:
    folder, archive, cut, picture = (tmp_path / name for name in ("a.npy", "b.npz", "c.npy", "d.png"))
    folder.mkdir()
    np.savez(archive, x=np.zeros(4))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(picture)
    picture.write_bytes(picture.read_bytes()[:1000])
    for path, said, fix in (
        (folder, "is a folder", "one of its files"),
        (archive, "archive of arrays", "save one array with numpy.save"),
        (picture, "damaged or cut off", "once more"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            read(path, spec(1, 3, 4, 4), Preparation())
        assert fix in caught.value.fix
    picture.write_bytes(b"P6 4x 4 255 ")
    with pytest.raises(InputError, match="damaged or cut off"):
        read(picture, spec(1, 3, 4, 4), Preparation())
    np.save(cut, np.zeros((4, 4), np.float32))
    whole = cut.read_bytes()
    for count in (20, 140, len(whole) - 1):
        cut.write_bytes(whole[:count])
        with pytest.raises(InputError, match="is cut off"):
            read(cut, spec(4, 4), Preparation())


def test_a_dimension_has_the_size_of_its_name_in_another_input(tmp_path: Path) -> None:
    specs = {"ids": spec("batch", "words"), "mask": spec("words"), "rest": spec("other", "batch")}
    graph = Graph("g", list(specs), ["ids"], [], dict(specs), {})
    arrays, remarks = collect(graph, {"ids": (2, 7)}, {}, Preparation())
    assert [arrays[name].shape for name in specs] == [(2, 7), (7,), (1, 2)]
    assert "taken as 1 for rest (other)" in remarks[0]
    assert "for 'mask': random numbers, float32[7]" in remarks[2]
    np.save(tmp_path / "mask.npy", np.zeros(5, np.float32))
    arrays, _ = collect(graph, {}, {"mask": str(tmp_path / "mask.npy")}, Preparation())
    assert [arrays[name].shape for name in specs] == [(1, 5), (5,), (1, 1)]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.UINT8, DType.INT64, DType.BOOL])
def test_random_numbers_take_no_memory_twice(dtype: DType) -> None:
    graph = Graph("g", ["x"], ["x"], [], {"x": spec(1000, 1000, dtype=dtype)}, {})
    tracemalloc.start()
    arrays, _ = collect(graph, {}, {}, Preparation())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    x = arrays["x"]
    assert x.dtype == dtype.numpy and 0 <= x.min() < x.max() <= 1
    assert most < 1.5 * x.nbytes


def test_an_input_that_is_too_large_is_named(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["first", "second"], ["y"])]
    model = write_model(tmp_path / "m.onnx", nodes, {"first": (1,), "second": ("n",)}, ["y"])
    said = cli("run", model, "-d", "cpu", "--shape", f"second={10**15}", status=2).err
    assert "does not have enough memory" in said and "for the input 'second'" in said and "next: " in said
