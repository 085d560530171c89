"""Rows of ONNX Runtime's own distances, and of its forms of ONNX's ops."""

from __future__ import annotations

from weft_conformance.cases.table import Case, Input, case, const, f16, f32, f64, of_type

MS = "com.microsoft::"


def _short(*shape: int) -> Input:
    return of_type("int16", *shape, low=-300, high=300)


CASES: list[Case] = [
    case(MS + "CDist", f32(5, 7), f32(3, 7)),
    case(MS + "CDist", f32(5, 16), const(f32(9, 16)), metric="euclidean"),
    case(MS + "CDist", f64(2, 3), f64(4, 3), metric="euclidean"),
    case(MS + "ExpandDims", f32(2, 3), const(1, "int32")),
    case(MS + "ExpandDims", _short(2, 3), const(-1, "int32")),
    case(MS + "Pad", f32(3, 4), const([[0, 1, 2, 0]]), const(1.5, "float32")),
    case(MS + "Pad", f16(3, 4), const([1, 0, 0, 2]), mode="reflect"),
    case(MS + "Range", const(2), const(7)),
    case(MS + "Range", const(1, "float32"), const(5.5, "float32")),
    case(MS + "Range", const(9, "int16"), const(-2, "int16"), const(-3, "int16")),
    case(MS + "MatMulInteger16", _short(3, 5), _short(5, 4)),
    case(MS + "MatMulInteger16", _short(2, 3, 5), const(_short(5, 4))),
    case(MS + "ConvTransposeWithDynamicPads", f32(1, 3, 5, 4), const(f32(3, 2, 3, 3)), const([1, 0, 1, 1]),
         const(f32(2)), strides=(2, 1)),
    case(MS + "ConvTransposeWithDynamicPads", f32(2, 4, 6, 5), const(f32(4, 3, 2, 2)), const([0, 0, 0, 0]),
         group=2, output_padding=(1, 0), strides=(2, 2)),
]
