"""Rows of the ops that select elements, and of those on boxes."""

from __future__ import annotations

import numpy as np

from weft_conformance.cases.table import Case, Input, boolean, case, const, f16, f32, f64, given, i32, i64

SPECIAL = given([[1, np.nan, -np.inf, 2, 1, np.nan], [0, -0.0, np.inf, -1, 2, 2]])


def corners(*shape: int) -> Input:
    """Return boxes, some of which overlap."""
    low = np.random.default_rng(7).uniform(0, 8, (*shape, 2))
    return given(np.concatenate([low, low + np.random.default_rng(8).uniform(0.5, 4, (*shape, 2))], -1))


CASES: list[Case] = [
    case("TopK", f32(3, 7), const([3])),
    case("TopK", f32(2, 5, 4), const([2]), axis=1, largest=0),
    case("TopK", f16(9), const([9])),
    case("TopK", SPECIAL, const([6])),
    case("TopK", SPECIAL, const([4]), largest=0),
    case("TopK", i64(4, 6, low=-(2**40), high=2**40), const([2])),
    case("TopK", i32(2, 2100, low=-50, high=50), const([40])),
    case("TopK", f32(2, 5000), const([7])),
    case("TopK", f32(1, 3), const([0])),
    # Numbers that float32 does not tell apart, and one that it does not have.
    case("TopK", given([1, 1 + 2.0**-50, 1 + 2.0**-40, 5e-324], "float64"), const([3])),
    case("NonZero", given([0, 5e-324, -0.0, 1], "float64"), bounded=True),
    case("TopK", given(np.array([1, 2**63 + 5, 2**62], np.uint64), "uint64"), const([2])),
    case("NonZero", i64(3, 5, low=-1, high=1), bounded=True),
    case("NonZero", boolean(2, 3, 171), bounded=True),
    case("NonZero", given([0, 0.5, -0.0, np.nan]), bounded=True),
    case("Compress", f32(3, 4, 2), boolean(4), axis=1, bounded=True),
    case("Compress", i64(3, 4), boolean(9), bounded=True),
    case("Compress", f16(3, 5), given([True, False], "bool"), axis=-1, bounded=True),
    case("Unique", given([2, 1, 1, 3, 4, 3]), bounded=True),
    case("Unique", given([[1, 0], [1, 0], [0, 2]], "int64"), axis=0, sorted=0, bounded=True),
    case("Unique", given([[1, -np.inf, 2, 1, np.inf], [0, -0.0, np.inf, -1, 2]]), bounded=True),
    case("Unique", i64(2, 9, 2, low=-1, high=0), axis=1, bounded=True),
    case("Unique", given(np.array([1, 2**63 + 5, 2**62, 1, 2**63], np.uint64), "uint64"), bounded=True),
    case("Unique", i32(300, low=-9, high=9), sorted=0, bounded=True),
    case("Unique", boolean(7), bounded=True),
    case("Unique", given([1, 1 + 2.0**-50, -np.inf, 1, 5e-324, 1e300, 1 + 2.0**-40], "float64"), bounded=True),
    case("NonMaxSuppression", corners(2, 40), f32(2, 3, 40), const([5]), const(0.3, "float32"),
         bounded=True, most=5),
    case("NonMaxSuppression", corners(1, 9), f32(1, 2, 9), given([20], "int64"), given([0.5]), given([0.1]),
         bounded=True, center_point_box=1),
    *(case("NonMaxSuppression", corners(1, 9), f32(1, 2, 9), given([limit], "int64"), bounded=True)
      for limit in (2**32 + 1, -(2**32) + 1)),
    case("NonMaxSuppression", corners(1, 6), given([[[0.1, np.nan, 0.3, np.nan, 0.5, 0.6]]]), const([6]),
         const(0.9, "float32"), bounded=True, most=6),
    case("RoiAlign", f32(2, 3, 9, 7), given([[0, 0, 12, 10], [4, 2, 9, 13.5], [-3, 1, 20, 30]]),
         given([0, 1, 1], "int64"), output_height=3, output_width=2, sampling_ratio=2, spatial_scale=0.5),
    case("RoiAlign", f32(1, 2, 8, 8), given([[0.5, 1, 7, 5], [2, 2, 2.2, 2.1]]), given([0, 0], "int64"),
         output_height=2, output_width=2, coordinate_transformation_mode="output_half_pixel"),
    case("RoiAlign", f32(1, 2, 8, 8), given([[0.5, 1, 7, 5]]), given([0], "int64"), output_height=2, output_width=3,
         sampling_ratio=2, mode="max"),
    case("RoiAlign", f64(2, 3, 9, 7), given([[0, 0, 12, 10], [4, 2, 9, 13.5], [-3, 1, 20, 30]], "float64"),
         given([0, 1, 1], "int64"), output_height=3, output_width=2, spatial_scale=0.5),
    case("RoiAlign", f64(1, 2, 8, 8), given([[0.5, 1, 7, 5]], "float64"), given([0], "int64"), output_height=2,
         output_width=3, sampling_ratio=2, mode="max"),
    case("RoiAlign", f32(1, 1, 4, 4), given([[0, 0, 1e9, 3], [0, 0, np.nan, np.inf]]), given([0, 0], "int64"),
         oracles=(), unverified="onnxruntime runs out of memory for the first roi, and refuses the second"),
    # Points outside of the map read nothing of it, also where the nearest pixel is NaN.
    *(case("RoiAlign", given([[[[0.5, 1, 2, np.inf], [3, 4, 5, 6], [-np.inf, 7, 8, np.nan]]]]),
           given([[-4, -4, 1, 1], [0, 0, 3, 2], [1.5, 0.5, 6, 5], [9, 1, 12, 3.5]]), given([0] * 4, "int64"),
           output_height=2, output_width=2, sampling_ratio=2, mode=mode, name="special", oracles=oracles,
           unverified=why)
      for mode, oracles, why in (("avg", ("ort", "onnx"), ""), ("max", (), "onnxruntime drops a NaN or keeps it"))),
]
