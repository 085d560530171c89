"""Rows of caches that grow, and of the convolution with a state."""

from __future__ import annotations

from weft.conformance.cases.table import Case, case, const, f16, f32, given

CASES: list[Case] = [
    case("TensorScatter", f32(2, 3, 5, 4), f32(2, 3, 2, 4), given([1, 3], "int64")),
    case("TensorScatter", f32(2, 5, 4), f32(2, 2, 4), given([4, 5], "int64"), mode="circular"),
    case("TensorScatter", f16(2, 3, 5), f16(2, 3, 2), axis=2),
    case("CausalConvWithState", f32(2, 3, 5), f32(3, 1, 4), f32(3), f32(2, 3, 3), activation="silu", outputs=2),
    case("CausalConvWithState", f32(2, 3, 5), const(f32(3, 1, 4)), outputs=2),
    case("CausalConvWithState", f32(2, 3, 1), const(f32(3, 1, 4)), const(f32(3)), f32(2, 3, 3), outputs=2),
]
