"""Rows of Det."""

from __future__ import annotations

from weft.conformance.cases.table import Case, case, f16, f32, f64, given

CASES: list[Case] = [
    case("Det", f32(3, 3)),
    case("Det", f32(2, 3, 5, 5)),
    case("Det", given([[0, 0, 2], [0, 3, 1], [4, 1, 1]]), name="permuted"),
    case("Det", given([[1, 2], [2, 4]])),
    case("Det", f32(4, 1, 1)),
    case("Det", f16(2, 2, 2), oracles=("onnx",), unverified="numpy has no determinant of halves"),
    case("Det", f64(4, 4)),
]
