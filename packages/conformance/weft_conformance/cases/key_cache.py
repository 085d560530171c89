"""Rows of caches that grow, and of the convolution with a state."""

from __future__ import annotations

from weft_conformance.cases.table import Case, boolean, case, const, f16, f32, given, i8, i64, of_type

CASES: list[Case] = [
    case("TensorScatter", f32(2, 3, 5, 4), f32(2, 3, 2, 4), given([1, 3], "int64")),
    case("TensorScatter", f32(2, 5, 4), f32(2, 2, 4), given([4, 5], "int64"), mode="circular"),
    case("TensorScatter", f16(2, 3, 5), f16(2, 3, 2), axis=2),
    case("TensorScatter", f32(2, 6, 4), f32(2, 2, 4), given([2**40 + 5, -1], "int64"), mode="circular"),
    case("TensorScatter", f32(2, 3, 5, 3), f32(2, 3, 2, 3), given([4, -1], "int64"),
         unverified="ONNX allows no row outside of the cache"),
    case("TensorScatter", i8(2, 4, 8), i8(2, 2, 8), given([1, 2], "int64"), axis=1),
    case("TensorScatter", boolean(1, 4, 3), boolean(1, 1, 3), given([3], "int64")),
    case("TensorScatter", i64(2, 4, 3), i64(2, 4, 3)),
    case("TensorScatter", of_type("bfloat16", 2, 4, 6), of_type("bfloat16", 2, 1, 6), given([0, 3], "int64")),
    case("CausalConvWithState", f32(2, 3, 5), f32(3, 1, 4), f32(3), f32(2, 3, 3), activation="silu", outputs=2),
    case("CausalConvWithState", f32(2, 3, 5), const(f32(3, 1, 4)), outputs=2),
    case("CausalConvWithState", f32(2, 3, 1), const(f32(3, 1, 4)), const(f32(3)), f32(2, 3, 3), outputs=2),
]
