"""Rows of DeformConv and Col2Im."""

from __future__ import annotations

import numpy as np

from weft_conformance.cases.table import Case, case, const, f16, f32, f64, given, i32, of_type

EDGES = given([[[[np.inf, 1, np.nan], [2, 3, 4], [-np.inf, 5, np.inf]]]])
"""An image whose corners would spoil what is read outside of it, were they multiplied with 0."""
FAR = given([[[[-3.5, 0, 0.2], [0, 0.5, 0], [5, 0, 9]], [[-2.5, 0, 7], [0.25, 0.5, 0.5], [0.3, 0, 9]]]])
CASES: list[Case] = [
    case("DeformConv", f32(2, 4, 5, 6), f32(3, 4, 2, 2), f32(2, 8, 4, 5), f32(3), f32(2, 4, 4, 5)),
    case(
        "DeformConv",
        f32(1, 4, 6, 5),
        f32(4, 2, 3, 2),
        f32(1, 24, 3, 3, low=-3, high=3),
        group=2,
        offset_group=2,
        pads=(1, 0, 1, 1),
        strides=(2, 2),
    ),
    case("DeformConv", f32(1, 2, 6, 6), f32(2, 2, 2, 2), f32(1, 8, 4, 4), dilations=(2, 2)),
    case("DeformConv", f16(1, 2, 3, 3), f16(1, 2, 2, 2), f16(1, 8, 2, 2), oracles=("onnx",)),
    case("DeformConv", f64(1, 4, 6, 5), f64(4, 2, 3, 2), f64(1, 24, 3, 3, low=-3, high=3), f64(4), f64(1, 12, 3, 3),
         group=2, offset_group=2, pads=(1, 0, 1, 1), strides=(2, 2)),
    # onnxruntime multiplies what lies outside with 0.
    case("DeformConv", EDGES, given([[[[2.0]]]]), FAR, None, f32(1, 1, 3, 3), oracles=("onnx",)),
    case("Col2Im", f32(2, 12, 6), const([3, 4]), const([2, 2])),
    case("Col2Im", f32(1, 9, 9), const([5, 4]), const([3, 3]), pads=(1, 0, 1, 1), strides=(2, 1)),
    case("Col2Im", f32(1, 8, 8), const([6, 5]), const([2, 2]), dilations=(4, 1)),
    case("Col2Im", f32(1, 10, 4), const([8]), const([5])),
    case("Col2Im", f32(1, 2, 24), const([2, 4, 3]), const([1, 1, 1])),
    case("Col2Im", f16(1, 4, 4), const([3, 3]), const([2, 2])),
    case("Col2Im", f64(1, 9, 9), const([5, 4]), const([3, 3]), pads=(1, 0, 1, 1), strides=(2, 1)),
    case("Col2Im", i32(1, 9, 9), const([5, 4]), const([3, 3]), pads=(1, 0, 1, 1), strides=(2, 1)),
    case("Col2Im", of_type("uint8", 1, 4, 4, low=0, high=255), const([3, 3]), const([2, 2])),
    case("Col2Im", of_type("int64", 1, 4, 4, low=-(2**62), high=2**62), const([3, 3]), const([2, 2])),
]
