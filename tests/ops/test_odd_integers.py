"""Integers that decide a shape, written as a scalar, as one row or twice: what ONNX Runtime takes runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import weft
from tests.helpers.onnx_models import make_model, node
from weft.core.graph.layout import Array
from weft.errors import ModelError, WeftError

X = np.arange(6, dtype=np.float32).reshape(1, 2, 1, 3)
TAKEN: dict[str, tuple[str, dict[str, Any], list[Array | None], Array]] = {
    "Squeeze of a scalar": ("Squeeze", {}, [np.array(2)], X.reshape(1, 2, 3)),
    "Squeeze of an axis twice": ("Squeeze", {}, [np.array([0, -4])], X.reshape(2, 1, 3)),
    "Unsqueeze of a scalar": ("Unsqueeze", {}, [np.array(0)], X[None]),
    "ReduceSum of a scalar": ("ReduceSum", {}, [np.array(3)], X.sum(3, keepdims=True)),
    "ReduceSum of an axis twice": ("ReduceSum", {"keepdims": 0}, [np.array([3, -1])], X.sum(3)),
    "ReduceMax of an axis twice": ("ReduceMax", {}, [np.array([1, 1, 3])], X.max((1, 3), keepdims=True)),
    "Slice of scalars": ("Slice", {}, [np.array(1), np.array(2), np.array(3)], X[..., 1:2]),
    "Pad of a row": ("Pad", {}, [np.array([[0, 0, 0, 1, 0, 0, 0, 0]])], np.pad(X, [(0, 0)] * 3 + [(1, 0)])),
    "Pad of a scalar axis": ("Pad", {}, [np.array([1, 0]), None, np.array(3)], np.pad(X, [(0, 0)] * 3 + [(1, 0)])),
    "Tile of a row": ("Tile", {}, [np.array([[1, 1, 2, 1]])], np.tile(X, (1, 1, 2, 1))),
    "Reshape to a scalar": ("Reshape", {}, [np.array(6)], X.reshape(6)),
}


@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "of a run"])
@pytest.mark.parametrize("name", TAKEN)
def test_integers_in_an_odd_shape_mean_what_they_say(name: str, constant: bool, device: str) -> None:
    kind, attributes, given, expected = TAKEN[name]
    names = [f"i{k}" if value is not None else "_" for k, value in enumerate(given)]
    values: dict[str, Array] = {n: v for n, v in zip(names, given, strict=True) if v is not None}
    inputs: dict[str, tuple[int, tuple[int, ...]]] = {"x": (TensorProto.FLOAT, X.shape)}
    if not constant:
        inputs |= {n: (TensorProto.INT64, v.shape) for n, v in values.items()}
    nodes = [node(kind, " ".join(["x", *names]), **attributes)]
    model = make_model(nodes, inputs, constants=values if constant else {}, opset=18)
    with weft.load(model, device) as session:
        feeds = {"x": X} | ({} if constant else values)
        np.testing.assert_allclose(session.run(feeds)[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("Squeeze", [[0, 2], [0, 2]]), ("Reshape", [[2], [3]]), ("Squeeze", [1]),
        ("Unsqueeze", [0, 0]), ("ReduceSum", [9]),
    ],
)
def test_what_makes_no_sense_is_an_error_of_wefts_own(kind: str, values: list[int]) -> None:
    model = make_model([node(kind, "x i")], {"x": (TensorProto.FLOAT, X.shape)}, constants={"i": np.array(values)})
    with pytest.raises(WeftError, match=kind):
        weft.load(model, "cpu")


@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_training_is_refused_in_its_own_words(device: str) -> None:
    model = make_model([node("Dropout", "x _ t")], constants={"t": np.array(True)})
    with pytest.raises(ModelError, match=r"node 'Dropout_0' \(Dropout\) cannot run") as caught:
        weft.load(model, device)
    assert "training mode is not supported" in caught.value.why and "model.eval()" in caught.value.fix
    asked = make_model([node("Dropout", "x _ t")], {"x": (TensorProto.FLOAT, (2, 3)), "t": (TensorProto.BOOL, ())})
    asked.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    with weft.load(asked, device) as session:
        x = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(session.run({"x": x, "t": np.array(False)})[0], x)
        with pytest.raises(WeftError, match="training mode is not supported"):
            session.run({"x": x, "t": np.array(True)})
