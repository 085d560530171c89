"""Rows of the transforms of signals."""

from __future__ import annotations

from weft.core.graph.dtypes import DType
from weft_conformance.cases.table import Case, case, const, f16, f32, f64

CASES: list[Case] = [
    case("DFT", f32(2, 7, 1)),
    case("DFT", f32(2, 6, 3, 2), None, const(1)),
    case("DFT", f32(2, 5, 2), const(8), const(1), inverse=1),
    case("DFT", f32(2, 6, 1), const(4), onesided=1),
    case("DFT", f32(3, 5, 1), const(6), onesided=1),
    # onnxruntime returns two parts where opset 20 says one
    case("DFT", f32(2, 4, 2), inverse=1, onesided=1, oracles=("onnx",)),
    case("DFT", f32(2, 4, 3, 2), const(5), const(1), inverse=1, onesided=1, oracles=("onnx",)),
    case("DFT", f64(1, 9, 1)),
    case("DFT", f16(1, 4, 1), oracles=("onnx",)),
    case("DFT", f32(7, 1), None, const(0)),
    case("DFT", f32(6, 2)),
    case("STFT", f32(2, 16, 1), const(4), f32(8)),
    case("STFT", f32(2, 16), const(4), f32(8)),
    case("STFT", f32(3, 11), const(3), None, const(5), onesided=0),
    case("STFT", f32(1, 2), const(1), None, const(2)),
    case("STFT", f32(1, 11, 1), const(3), None, const(5), onesided=0),
    case("STFT", f32(1, 11, 2), const(3), const([0.5, 1, 0.25, 1], "float32"), const(4), onesided=0),
    case("MelWeightMatrix", const(8), const(16), const(8192), const(0.0), const(4096.0)),
    case(
        "MelWeightMatrix",
        const(5, "int32"),
        const(32, "int32"),
        const(8000, "int32"),
        const(100.0),
        const(3000.0),
        output_datatype=DType.FLOAT64,
    ),
]
