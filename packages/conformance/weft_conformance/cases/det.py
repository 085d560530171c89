"""Rows of Det."""

from __future__ import annotations

from math import inf, nan

from weft_conformance.cases.table import Case, case, f16, f32, f64, given

CASES: list[Case] = [
    case("Det", f32(3, 3)),
    case("Det", f32(2, 3, 5, 5)),
    case("Det", given([[0, 0, 2], [0, 3, 1], [4, 1, 1]]), name="permuted"),
    case("Det", given([[1, 2], [2, 4]])),
    case("Det", f32(4, 1, 1)),
    case("Det", f16(2, 2, 2), oracles=("onnx",), unverified="numpy has no determinant of halves"),
    case("Det", f64(4, 4)),
    case("Det", given([[[0, 0], [0, nan]], [[nan, 0], [0, 0]], [[0, 1], [nan, 0]], [[inf, 0], [0, 0]],
                       [[0, inf], [0, 1]], [[0, 0], [0, inf]], [[inf, 1], [1, -1]], [[1, -inf], [2, 3]]]),
         name="special"),
    case("Det", given([[[0, 0, nan], [0, 0, 1], [1, 2, 3]], [[1, 2, 3], [4, 5, 6], [7, nan, 9]],
                       [[1, 2, 3], [4, inf, 6], [7, 8, 9]], [[-0.5, -0.9, 0.3], [-0.8, inf, 0.5], [0.2, -0.6, -0.8]]]),
         name="special"),
    case("Det", given([[0, 1], [nan, 0]], "float64"), name="special", oracles=(),
         unverified="numpy, and so onnx's evaluator, has 0 where a pivot is 0"),
]
