"""Element types that numpy lacks: conversions of every bit pattern, on every device, and their way through files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import weft
from tests.helpers.op_rows import run
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph, Node
from weft.core.graph.layout import Array
from weft.core.graph.op import Op, op_types
from weft.core.graph.tensor import TensorSpec
from weft.frontends.onnx.tensors import DTYPES
from weft.ops.conversion import convert
from weft.ops.unary import BitCast, Cast
from weft_conformance.cases.table import comparable

CODED = [t for t in DType if t.is_small_float or t is DType.BFLOAT16]
PACKED = [t for t in DType if t.is_integer and t.bits < 8]
DEVICES = ("cpu", "opencl", "vulkan")


def one_node(op: Op, x: Array) -> Graph:
    specs = {"x": TensorSpec(x.shape, DType.of(x.dtype))}
    return Graph("one", ["x"], ["y"], [Node("node", op, ("x",), ("y",))], specs)


def every(dtype: DType) -> Array:
    """Return every number of a type of up to 16 bits."""
    return np.arange(1 << dtype.bits, dtype=dtype.raw).view(dtype.numpy)


def assert_same(actual: Array, expected: Array) -> None:
    """Fail unless all numbers are equal; one below float32's normal ones may be zero, as a device may have it."""
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(comparable(actual), comparable(expected), 0, 1.2e-38, equal_nan=True)


def hard_floats() -> Array:
    """Return float32 numbers of every kind: random bits, and those beside and between numbers of short types."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 3000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    tiny, huge = rng.standard_normal((2, 500)).astype(np.float32)
    coarse = (rng.integers(-512, 512, 1500) * 2.0 ** rng.integers(-20, 18, 1500)).astype(np.float32)
    edges = np.array([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 240, 57344, 61439, 61440, 3.4e38], np.float32)
    return np.concatenate([bits, tiny * 1e-3, huge * 1e4, coarse, edges])


@pytest.mark.parametrize("dtype", CODED, ids=lambda t: str(t.value))
@pytest.mark.parametrize("device", DEVICES)
def test_every_number_of_a_type_is_read_exactly(device: str, dtype: DType) -> None:
    x = every(dtype)
    (y,) = run(one_node(Cast(DType.FLOAT32), x), {"x": x}, device)
    with np.errstate(invalid="ignore"):
        assert_same(y, x.astype(np.float32))


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("dtype", CODED, ids=lambda t: str(t.value))
@pytest.mark.parametrize("device", DEVICES)
def test_floats_are_rounded_to_the_nearest_number_of_a_type(device: str, dtype: DType, saturate: int) -> None:
    x = hard_floats()
    (y,) = run(one_node(Cast(dtype, saturate=saturate), x), {"x": x}, device)
    assert_same(y, convert(x, dtype, bool(saturate)))


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_float64_is_rounded_once(device: str) -> None:
    with np.errstate(invalid="ignore"):
        wide = hard_floats().astype(np.float64)
    rng = np.random.default_rng(1)
    halfway = [1e-45, 7e-46, 3.5e38, 1e300, 2.0**-150, 1.5 * 2.0**-149, 2.0**-126 * (1 - 2.0**-25)]
    x = np.concatenate([wide, rng.standard_normal(999), np.array(halfway)])
    (y,) = run(one_node(Cast(DType.FLOAT32), x), {"x": x}, device)
    with np.errstate(all="ignore"):
        assert_same(y, x.astype(np.float32))


@pytest.mark.parametrize("dtype", [DType.INT64, DType.UINT32, DType.INT16, DType.INT4], ids=lambda t: str(t.value))
def test_integers_keep_the_bits_that_fit(dtype: DType) -> None:
    """Convert the edges of a type to every integer type in one network, so that a driver is started once."""
    least, most = dtype.limits
    x = np.array([least, most, 0, 1, most // 3], np.uint64 if most >= 1 << 63 else np.int64).astype(dtype.numpy)
    targets = [t for t in DType if t.is_integer or t is DType.BOOL]
    nodes = [Node(t.value, Cast(t), ("x",), (f"y.{t.value}",)) for t in targets]
    outputs = [node.outputs[0] for node in nodes]
    for device in DEVICES:
        graph = Graph("casts", ["x"], outputs, list(nodes), {"x": TensorSpec(x.shape, dtype)})
        for y, t in zip(run(graph, {"x": x}, device), targets, strict=True):
            assert_same(y, convert(x, t))


@pytest.mark.parametrize("device", DEVICES)
def test_bits_of_a_short_float_are_those_of_the_model_and_not_of_what_is_computed_in(device: str) -> None:
    """Compute in bfloat16, take the bits, change them and go on: the passes store floats as float32 around that."""
    x = np.array([1.0, 2.5, -3.0], DType.BFLOAT16.numpy)
    op = op_types()
    nodes = [
        Node("double", op["Add"](), ("x", "x"), ("twice",)),
        Node("bits", BitCast(DType.INT16), ("twice",), ("bits",)),
        Node("back", BitCast(DType.BFLOAT16), ("bits",), ("same",)),
        Node("more", op["Add"](), ("same", "x"), ("y",)),
    ]
    graph = Graph("bits", ["x"], ["bits", "y"], nodes, {"x": TensorSpec(x.shape, DType.BFLOAT16)})
    bits, y = run(graph, {"x": x}, device)
    np.testing.assert_array_equal(bits, (x + x).view(np.int16))
    assert_same(y, x + x + x)


# -- files ---------------------------------------------------------------------------------------------------


def model_of(constant: onnx.TensorProto, dtype: DType) -> onnx.ModelProto:
    """Return a model that gives a constant and an input, joined."""
    code = {d: c for c, d in DTYPES.items()}[dtype]
    graph = helper.make_graph(
        [helper.make_node("Concat", ["x", "c"], ["y"], axis=0)],
        "joined",
        [helper.make_tensor_value_info("x", code, [1])],
        [helper.make_tensor_value_info("y", code, None)],
        [constant],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "field"])
@pytest.mark.parametrize("dtype", [*CODED, *PACKED, DType.COMPLEX64, DType.COMPLEX128], ids=lambda t: str(t.value))
def test_a_file_holds_every_type(dtype: DType, raw: bool, tmp_path: Path) -> None:
    """Read a constant of five elements, which do not fill the last byte, and save what was read."""
    limits = dtype.limits if dtype.is_integer else (-3, 3)
    value = np.linspace(*limits, 5).astype(np.int8 if dtype.is_integer else np.float32).astype(dtype.numpy)
    code = {d: c for c, d in DTYPES.items()}[dtype]
    tensor = numpy_helper.from_array(value, "c") if raw else helper.make_tensor("c", code, [5], value)
    model = model_of(tensor, dtype)
    x = value[:1]
    (y,) = weft.load(model, "cpu").run(x)
    assert_same(y, np.concatenate([x, value]))
    file = tmp_path / "saved.weft"
    weft.optimize(model, "cpu").save(file)
    (again,) = weft.load(file).run(x)
    assert_same(again, y)


def test_numbers_are_taken_for_a_type_that_holds_them() -> None:
    x = np.array([1.0, 2.0], DType.BFLOAT16.numpy)
    with weft.load(one_node(Cast(DType.FLOAT32), x), "cpu") as session:
        for given in ([1, 2], np.array([1, 2], np.float32), x.view("V2")):
            np.testing.assert_array_equal(session.run(np.asarray(given))[0], [1, 2])
        with pytest.raises(weft.errors.InputError, match="does not hold all"):
            session.run(np.array([1e300, 1]))
    four = one_node(Cast(DType.FLOAT32), np.zeros(2, DType.INT4.numpy))
    with weft.load(four, "cpu") as session:
        np.testing.assert_array_equal(session.run(np.array([-8, 7]))[0], [-8, 7])
        with pytest.raises(weft.errors.InputError, match="does not hold all"):
            session.run(np.array([8, 0]))
        with pytest.raises(weft.errors.InputError, match="is needed"):
            session.run(np.array([1.5, 0]))
