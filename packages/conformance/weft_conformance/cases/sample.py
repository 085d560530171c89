"""Rows of the ops that sample images at given places."""

from __future__ import annotations

import numpy as np

from weft_conformance.cases.table import Case, boolean, case, const, f16, f32, f64, given, i64, u8

EDGES = given([[[[np.inf, 1, np.nan], [2, 3, 4], [-np.inf, 5, np.inf]]]])
"""An image whose corners would spoil what is read outside of it, were they multiplied with 0."""
OUTSIDE = given([[[[-1.8, -1.9], [0, 0.1], [1.7, 2], [0.2, -0.1], [5, -3], [-2, 0]]]])
NOWHERE = given(
    [[[[np.nan, np.nan], [0, np.nan], [np.inf, 0], [0, -np.inf], [1e30, 0], [-1, 1], [1e10, 3e38], [5e9, 0]]]]
)
"""Places that are none, infinitely far, or too far for an integer."""
CASES: list[Case] = [
    *(case("GridSample", f32(1, 1, 3, 4), NOWHERE, mode=mode, padding_mode=padding, name="nowhere", oracles=(),
           unverified="onnxruntime makes integers of such places, and onnx's evaluator refuses most")
      for mode in ("nearest", "linear", "cubic") for padding in ("zeros", "border", "reflection")),
    *(
        case("GridSample", f32(2, 3, 4, 5), f32(2, 3, 2, 2, low=-1.4, high=1.4), mode=mode, padding_mode=padding)
        for mode in ("nearest", "linear", "cubic")
        for padding in ("zeros", "border", "reflection")
    ),
    *(
        case(
            "GridSample",
            f32(1, 2, 4, 3),
            f32(1, 5, 2, 2, low=-2.7, high=2.7),
            mode=mode,
            padding_mode="reflection",
            align_corners=1,
        )
        for mode in ("nearest", "linear", "cubic")
    ),
    *(
        case("GridSample", f32(2, 2, 3, 4, 2), f32(2, 2, 3, 1, 3, low=-1.4, high=1.4), mode=mode, padding_mode=padding)
        for mode, padding in (("nearest", "border"), ("linear", "zeros"), ("linear", "reflection"))
    ),
    *(case("GridSample", EDGES, OUTSIDE, mode=mode, name="padding") for mode in ("nearest", "linear", "cubic")),
    case("GridSample", f16(1, 5, 3, 3), f16(1, 2, 3, 2), align_corners=1),
    case("GridSample", f64(1, 1, 3, 3), f64(1, 2, 3, 2)),
    case("GridSample", i64(1, 2, 3, 3), f32(1, 2, 3, 2), mode="nearest"),
    case("GridSample", i64(1, 2, 3, 3, low=2**40, high=2**41), f32(1, 5, 3, 2, low=-2, high=2), mode="nearest"),
    case("GridSample", u8(1, 2, 3, 4), f64(1, 5, 3, 2, low=-2, high=2), mode="nearest", padding_mode="reflection"),
    case("GridSample", boolean(1, 2, 3, 4, 2), f32(1, 5, 3, 2, 3, low=-2, high=2), mode="nearest",
         padding_mode="border"),
    case("AffineGrid", f32(2, 2, 3), const([2, 3, 4, 5])),
    case("AffineGrid", f32(1, 2, 3), const([1, 1, 2, 3]), align_corners=1),
    case("AffineGrid", f32(1, 3, 4), const([1, 2, 2, 3, 4])),
    case("AffineGrid", f16(1, 2, 3), const([1, 1, 2, 3])),
    case("AffineGrid", f64(1, 2, 3), const([1, 1, 4, 5])),
]
