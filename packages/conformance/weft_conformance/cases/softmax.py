"""Rows of Softmax, LogSoftmax and Hardmax."""

from __future__ import annotations

from math import inf, nan

from weft_conformance.cases.reduce import LINES, ONE_EACH
from weft_conformance.cases.table import Case, case, f16, f32, f64, given

CASES: list[Case] = []
for _op in ("Softmax", "LogSoftmax", "Hardmax"):
    CASES += [
        case(_op, f32(2, 3, 1003), axis=1),
        case(_op, f32(2, 3, 1003, low=-9, high=9)),
        case(_op, f32(2, 3, 5, 7), axis=0),
        case(_op, f32(2, 3, 5, 7), axis=-2),
        case(_op, f32(2, 21, 9, 11), axis=1),
        case(_op, f32(2, 40, 24, 25), axis=1),
        case(_op, f32(2, 4099), axis=1),
        case(_op, f32(3, 5, 64)),
        case(_op, f32(37, 20)),
        case(_op, f32(7, 197)),
        case(_op, f32(2, 2052)),
        case(_op, f32(2, 8196)),
        case(_op, f32(1)),
        case(_op, f32(17)),
        case(_op, f32(3, 1), axis=1),
        case(_op, f32(3, 0), axis=1),
        case(_op, f32(0, 3), axis=1),
        case(_op, f16(3, 65, low=-9, high=9)),
        case(_op, f64(3, 65)),
        case(_op, given([[1e4, 1e4 + 1, -1e4], [-1e4, -1e4, -1e4]]), name="large"),
        case(_op, given([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0]]), name="ties"),
        case(_op, f32(2, 3, 5, 7), axis=1, flatten=True, opset=12),
        case(_op, f32(2, 3, 5, 7), axis=2, flatten=True, opset=12),
        case(_op, f32(2, 3, 5, 7), axis=0, flatten=True, opset=12),
        case(_op, f32(2, 3, 5, 7), axis=-1, flatten=True, opset=12),
        case(_op, f32(17), axis=0, flatten=True, opset=12),
        case(_op, f16(2, 3, 5), axis=1, flatten=True, opset=12),
    ]
CASES += [
    case("Softmax", given([[-inf, 0.0, 1.0], [nan, 0.0, 1.0]]), name="special"),
    case("LogSoftmax", given([[-inf, 0.0, 1.0], [nan, 0.0, 1.0]]), name="special"),
    *(case(op, given(x), axis=axis, name="lines",
           oracles={"Softmax": ("ort", "onnx"), "LogSoftmax": ("ort",), "Hardmax": ("onnx",)}[op])
      for op in ("Softmax", "LogSoftmax", "Hardmax") for x, axis in ((LINES, 1), (LINES.T, 0), (ONE_EACH, 1))),
    case("Hardmax", given([[1, nan, 3], [nan, 1, nan], [2, -inf, 2]]), name="special", oracles=("onnx",)),
]
