"""Rows of ONNX Runtime's own ops in quantised files, and of layers with an activation fused in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft_conformance.cases.table import Case, Input, case, const, f32, given, i8, i32, u8

MS = "com.microsoft::"
Quantised = tuple[Input, ...]


def step(scale: float, zero: int | None = None, dtype: str = "uint8") -> Quantised:
    """Return a scale and a zero point, which are constants."""
    return (const(scale, "float32"), *(() if zero is None else (const(zero, dtype),)))


def softmax(*inputs: Input, axis: int, opset: int) -> Case:
    """Return a row of QLinearSoftmax; what it calls opset is an attribute, not that of the row."""
    to = step(1 / 256, 0) if inputs[0].dtype == "uint8" else step(1 / 256, -128, "int8")
    row = case(MS + "QLinearSoftmax", *inputs, *to, axis=axis, name=f"opset={opset}")
    return replace(row, attributes={**row.attributes, "opset": opset})


X = (u8(2, 3, 4, 5, high=255), *step(0.021, 120))
SIGNED = (i8(2, 3, 4, 5, low=-128, high=127), *step(0.031, -7, "int8"))
TO, TO_SIGNED = step(0.053, 99), step(0.047, 11, "int8")
# With larger weights onnxruntime's sums of two products leave 16 bits on processors without instructions for bytes.
MATRICES = (u8(5, 7, high=255), *step(0.021, 120), i8(7, 3, low=-63, high=63), *step(0.013, 0, "int8"))
PARTS = (u8(2, 3, 4, high=255), *step(0.021, 120), u8(2, 2, 4, high=255), *step(0.04, 7))
SUMS = given([900, -1500, 37], "int32")
CONV: dict[str, Any] = {"pads": (1, 1, 1, 1), "strides": (2, 1)}
STATES: dict[str, Any] = {
    "oracles": (),
    "unverified": "onnxruntime rounds states to 8 bits, in steps that depend on how it divides the batch among threads",
}

CASES: list[Case] = [
    case(MS + "QLinearAdd", *X, u8(3, 1, 5, high=255), *step(0.011, 3), *TO),
    case(MS + "QLinearAdd", *SIGNED, i8(2, 3, 4, 5, low=-128, high=127), *step(0.017, 9, "int8"), *TO_SIGNED),
    case(MS + "QLinearMul", *X, u8(1, 3, 1, 1, high=255), *step(0.011, 3), *TO),
    case(MS + "QLinearMul", u8(9, high=255), *step(0.02), None, u8(9, high=255), *step(0.01), None, *step(0.4),
         oracles=(), unverified="onnxruntime does not load this op without zero points"),
    case(MS + "QLinearSigmoid", *X, *step(1 / 256, 0)),
    case(MS + "QLinearLeakyRelu", *SIGNED, *TO_SIGNED, alpha=0.2),
    softmax(*X, axis=-1, opset=13),
    softmax(*SIGNED, axis=2, opset=12),
    case(MS + "QLinearGlobalAveragePool", *X, *TO),
    case(MS + "QLinearGlobalAveragePool", *SIGNED, *TO_SIGNED, channels_last=1),
    case(MS + "QLinearAveragePool", *X, *TO, kernel_shape=(2, 2), pads=(1, 0, 0, 1)),
    case(MS + "QLinearAveragePool", *X, *TO, kernel_shape=(2, 2), strides=(2, 2), count_include_pad=1, channels_last=1),
    case(MS + "QLinearConcat", *TO, *PARTS, axis=1),
    case(MS + "QLinearWhere", given([[True], [False], [True]], "bool"), u8(3, 4, high=255), *step(0.021, 120),
         u8(1, 4, high=255), *step(0.04, 7), *TO),
    case(MS + "QLinearConv", u8(1, 5, 6, 3, high=255), *step(0.021, 120), const(i8(4, 3, 3, 3, low=-63, high=63)),
         const([0.01, 0.02, 0.03, 0.01]), const([0, 0, 0, 0], "int8"), *TO, const(i32(4, low=-999, high=999)),
         channels_last=1, **CONV),
    case(MS + "QLinearConv", u8(1, 4, 6, high=255), *step(0.021, 120), const(u8(4, 2, 3, high=127)), *step(0.01, 60),
         *TO, group=2, unverified="onnxruntime convolves two dimensions here, and channels last alone", oracles=()),
    case(MS + "NhwcMaxPool", u8(1, 6, 5, 3, high=255), kernel_shape=(3, 2), pads=(1, 0, 1, 1), strides=(2, 1)),
    case(MS + "NhwcMaxPool", i8(1, 6, 5, 3, low=-128, high=127), kernel_shape=(2, 2), ceil_mode=1, strides=(2, 2)),
    case(MS + "DynamicQuantizeLSTM", f32(4, 2, 3), const(i8(1, 3, 8, low=-127, high=127)),
         const(i8(1, 2, 8, low=-127, high=127)), const(f32(1, 16)), None, None, None, None, const([0.01]),
         const([0], "int8"), const([0.008]), const([0], "int8"), hidden_size=2, outputs=3, **STATES),
    case(MS + "DynamicQuantizeLSTM", f32(3, 1, 4), const(u8(2, 4, 12, high=255)), const(u8(2, 3, 12, high=255)),
         const(f32(2, 24)), given([2], "int32"), f32(2, 1, 3), f32(2, 1, 3), const(f32(2, 9)),
         const(f32(2, 12, low=0.002, high=0.01)), const(u8(2, 12, low=99, high=140)),
         const(f32(2, 12, low=0.002, high=0.01)), const(u8(2, 12, low=99, high=140)), hidden_size=3,
         direction="bidirectional", outputs=1, **STATES),
    case(MS + "QGemm", *MATRICES, SUMS, *TO, alpha=0.5),
    case(MS + "QGemm", u8(7, 5, high=255), *step(0.02, 120), u8(3, 7, high=127), *step(0.01, 99), transA=1, transB=1),
    case(MS + "MatMulIntegerToFloat", u8(2, 5, 7, high=255), i8(7, 3, low=-63, high=63), const(0.02, "float32"),
         const([0.01, 0.02, 0.03]), const(120, "uint8"), None, const(f32(3))),
    case(MS + "DynamicQuantizeMatMul", f32(2, 5, 7), const(i8(7, 3, low=-63, high=63)), const(0.02, "float32"),
         const(3, "int8"), const(f32(3))),
    case(MS + "FusedConv", f32(1, 3, 6, 5), const(f32(4, 3, 3, 3)), const(f32(4)), activation="Relu", **CONV),
    case(MS + "FusedConv", f32(1, 3, 6, 5), const(f32(4, 3, 3, 3)), None, f32(1, 4, 3, 5), activation="HardSigmoid",
         activation_params=(0.2, 0.4), **CONV),
    case(MS + "FusedConv", f32(1, 4, 6), const(f32(4, 2, 3)), const(f32(4)), activation="Clip",
         activation_params=(-0.3, 0.4), group=2),
    case(MS + "FusedGemm", f32(3, 4), const(f32(5, 4)), const(f32(5)), activation="LeakyRelu", activation_alpha=0.2,
         transB=1, alpha=0.5),
    case(MS + "FusedGemm", f32(3, 4), f32(4, 5), activation="Tanh"),
]
