"""Ops that ONNX Runtime had in its own domain before ONNX had them, which files of older exporters still have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft

RNG = np.random.default_rng(0)
IMAGE = RNG.standard_normal((1, 2, 5, 6)).astype(np.float32)
PLACES = RNG.uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "attributes"),
    [
        ("Trilu", [RNG.standard_normal((2, 4, 5)).astype(np.float32)], [np.int64(1)], {"upper": 0}),
        ("Trilu", [RNG.integers(-9, 9, (4, 4))], [], {}),
        ("GridSample", [IMAGE, PLACES], [], {"mode": "bicubic", "padding_mode": "border", "align_corners": 1}),
        ("GridSample", [IMAGE, PLACES], [], {}),
        ("GatherND", [IMAGE], [np.array([[0, 1, 2], [0, 0, 4]])], {}),
        ("Pad", [IMAGE], [np.array([0, 0, 1, 2, 0, 0, 0, 1]), np.float32(3)], {}),
        ("Pad", [IMAGE], [np.array([0, 0, 1, 2, 0, 0, 0, 1])], {"mode": "reflect"}),
        ("Pad", [IMAGE], [np.array([[0, 0, 1, 2, 0, 0, 0, 1]]), np.float32(3)], {}),
        ("Pad", [IMAGE, np.array([[0, 0, 1, 2, 0, 0, 0, 1]])], [], {"mode": "edge"}),
        ("Range", [np.int64(2), np.int64(11), np.int64(3)], [], {}),
        ("Range", [np.int64(2), np.int64(7)], [], {}),
        ("Range", [np.array([2], np.int16), np.array([7], np.int16)], [], {}),
        ("Range", [], [np.float32(1), np.float32(5.5)], {}),
        ("Range", [], [np.float32(1), np.float32(2), np.float32(0.3)], {}),
    ],
)
def test_older_forms_are_read(
    op: str, inputs: list[Any], constants: list[Any], attributes: dict[str, Any]
) -> None:
    names = [f"x{k}" for k in range(len(inputs) + len(constants))]
    fed = dict(zip(names, (np.asarray(a) for a in inputs), strict=False))
    held = dict(zip(names[len(inputs) :], (np.asarray(a) for a in constants), strict=True))
    kind = helper.np_dtype_to_tensor_dtype(next(iter([*fed.values(), *held.values()])).dtype)
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in fed.items()
    ]
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attributes)
    weights = [numpy_helper.from_array(a, n) for n, a in held.items()]
    made = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", kind, None)], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=8)
    assert kind in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT16)
    (wanted,) = ort.InferenceSession(model.SerializeToString()).run(None, fed)
    with weft.load(model, "cpu") as session:
        (found,) = session.run(fed)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)
