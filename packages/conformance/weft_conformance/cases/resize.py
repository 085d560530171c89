"""Rows of Resize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft_conformance.cases.table import Case, Input, case, const, f16, f32, f64, given, i8, i32, of_type, u8


def scaled(x: Input, *scales: float, **attributes: Any) -> Case:
    """Return a row of Resize by scales."""
    return case("Resize", x, None, const(scales, "float32"), **attributes)


def sized(x: Input, *sizes: int, roi: Sequence[float] = (), **attributes: Any) -> Case:
    """Return a row of Resize to sizes."""
    region = const(roi, "float32") if roi else None
    return case("Resize", x, region, None, const(sizes, "int64"), **attributes)


WHOLE = (("int8", -128, 127), ("uint8", 0, 255), ("int16", -999, 999), ("uint16", 0, 65535), ("int32", -99, 99),
         ("uint32", 0, 99), ("int64", -(2**40), 2**40), ("uint64", 0, 2**40))
IN_ONNXRUNTIME = (("uint8", "linear"), ("int32", "linear"))
"""Of these, those that onnxruntime has, which are rows of their own."""

CASES: list[Case] = []
for _mode in ("nearest", "linear", "cubic"):
    for _at in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"):
        _how: dict[str, Any] = {"mode": _mode, "coordinate_transformation_mode": _at}
        # onnxruntime 1.23 picks other pixels than the specification and onnx's evaluator.
        _odd = ("onnx",) if (_mode, _at) == ("nearest", "half_pixel_symmetric") else ("ort", "onnx")
        CASES += [
            scaled(f32(1, 3, 4, 5), 1, 1, 2, 3, **_how),
            scaled(f32(1, 2, 7, 8), 1, 1, 0.6, 0.5, oracles=_odd, **_how),
            sized(f32(1, 2, 5, 6), 1, 2, 9, 4, **_how),
        ]
    _crop: dict[str, Any] = {"mode": _mode, "coordinate_transformation_mode": "tf_crop_and_resize"}
    CASES += [
        sized(f32(1, 1, 4, 4), 1, 1, 3, 3, roi=(0, 0, 0.4, 0.6, 1, 1, 0.6, 0.8), **_crop),
        sized(
            f32(1, 1, 4, 4),
            *(1, 1, 3, 5),
            roi=(0, 0, -0.25, 0.6, 1, 1, 1.2, 1.7),
            extrapolation_value=10.0,
            **_crop,
        ),
        sized(f32(2, 1, 5, 4), 2, 1, 1, 3, roi=(0, 0, 0.1, 0.2, 1, 1, 0.4, 1), **_crop),
        sized(f32(1, 3, 4, 6), 8, 9, axes=(2, 3), mode=_mode),
        sized(f32(1, 3, 4, 6), 8, 9, axes=(2, 3), mode=_mode, keep_aspect_ratio_policy="not_larger"),
        sized(f32(1, 3, 4, 6), 7, 8, axes=(2, 3), mode=_mode, keep_aspect_ratio_policy="not_smaller"),
        sized(f32(1, 3, 4, 6), 7, 8, axes=(3, 2), mode=_mode),
        scaled(f16(1, 3, 4, 6), 1, 1, 2, 2, mode=_mode),
    ]
for _nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    for _at in ("half_pixel", "align_corners", "asymmetric"):
        _how = {"nearest_mode": _nearest, "coordinate_transformation_mode": _at}
        CASES += [
            scaled(f32(1, 2, 5, 4), 1, 1, 2, 0.8, **_how),
            sized(f32(1, 2, 5, 4), 1, 2, 8, 7, **_how),
        ]
for _before_11 in ((0.6, 0.5), (2.5, 3.5), (0.6, 2.5), (1, 0.6)):
    # Resize of opset 10, as onnxruntime reads it.
    CASES.append(
        case("Resize", f32(1, 2, 5, 7), None, const([1, 1, *_before_11], "float32"), opset=10,
             nearest_mode="ceil_if_shrunk", coordinate_transformation_mode="asymmetric")
    )
CASES += [
    scaled(f32(1, 2, 6, 7), 1, 1, 0.8, 1.5, mode="cubic", cubic_coeff_a=-0.5),
    scaled(f32(1, 2, 6, 7), 1, 1, 0.8, 1.5, mode="cubic", exclude_outside=1),
    scaled(f32(1, 17, 6, 7), 1, 1, 2, 2, mode="linear"),
    scaled(f32(1, 2, 5), 1, 1, 2.5, mode="linear"),
    scaled(f32(4, 5), 2, 2, mode="linear"),
    scaled(f32(1, 2, 3, 4, 5), 1, 1, 2, 2, 2, mode="linear"),
    scaled(f32(1, 2, 3, 4, 5), 1, 1, 2, 2, 1),
    scaled(f32(1, 4, 4, 4), 1, 1, 1, 1, mode="linear"),
    sized(f32(1, 4, 1, 1), 1, 4, 5, 5, mode="linear", coordinate_transformation_mode="align_corners"),
    sized(f32(1, 4, 6, 6), 1, 4, 1, 1, mode="linear", coordinate_transformation_mode="align_corners"),
    # onnxruntime leaves pixels outside out of the sum, onnx's evaluator repeats the last one, as the text has it
    scaled(f32(1, 2, 8, 7), 1, 1, 0.4, 0.6, mode="linear", antialias=1, oracles=("onnx",)),
    scaled(f32(1, 2, 8, 7), 1, 1, 0.4, 1.6, mode="cubic", antialias=1, oracles=("onnx",)),
    sized(f32(1, 1, 9, 8), 1, 1, 4, 3, mode="linear", antialias=1, exclude_outside=1, oracles=("onnx",)),
    scaled(f16(1, 2, 8, 7), 1, 1, 0.4, 0.6, mode="linear", antialias=1, oracles=("onnx",)),
    scaled(f64(1, 2, 3, 4, low=1, high=1 + 2.0**-40), 1, 1, 2, 1.5, mode="linear"),
    scaled(f64(1, 2, 4, 5), 1, 2, 0.5, 2, mode="cubic"),
    sized(f64(1, 1, 4, 4), 1, 1, 3, 5, roi=(0, 0, -0.25, 0.5, 1, 1, 1.25, 1.75), extrapolation_value=10.0,
          mode="linear", coordinate_transformation_mode="tf_crop_and_resize"),
    scaled(f64(1, 2, 3, 4), 1, 1, 2, 1.5),
    scaled(u8(1, 2, 3, 4, high=255), 1, 1, 2, 1.5, mode="linear"),
    scaled(i32(1, 2, 3, 4, low=-99, high=99), 1, 1, 2, 1.5, mode="linear"),
    # With antialiasing, both round integers to the nearest; onnxruntime does so after each axis, and clips int8 at 0.
    sized(u8(1, 2, 3, 7, high=255), 1, 2, 3, 3, mode="linear", antialias=1, exclude_outside=1),
    sized(u8(1, 2, 3, 7, high=255), 1, 2, 3, 11, mode="cubic", antialias=1, exclude_outside=1),
    sized(u8(1, 2, 9, 7, high=255), 1, 2, 4, 11, mode="cubic", antialias=1, oracles=("onnx",)),
    sized(i32(1, 2, 9, 7, low=-99, high=99), 1, 2, 9, 4, mode="linear", antialias=1, exclude_outside=1),
    sized(i8(1, 5, 4, low=-128, high=127), 1, 7, 3, axes=(0, 2, 1), mode="linear", antialias=1, exclude_outside=1,
          oracles=("onnx",)),
    *(case("Resize", of_type(dtype, 1, 2, 9, 4, low=low, high=min(high, 99999)), None, const([1.0, 1, 0.37, 1.7]),
           mode="linear", antialias=1, oracles=("onnx",))  # below 2**24 float32 computes as the evaluator's float64
      for dtype, low, high in WHOLE if low >= -(2**24)),
    # Without, onnxruntime interpolates 8 and 32 bits linearly, to the nearest below; onnx's evaluator to the nearest.
    *(case("Resize", of_type(dtype, 1, 2, 3, 4, low=low, high=high), None, const([1.0, 1, 2, 1.5]), mode=mode,
           oracles=(), unverified="onnxruntime has no such type or mode, and onnx's evaluator rounds to the nearest")
      for dtype, low, high in WHOLE for mode in ("linear", "cubic") if (dtype, mode) not in IN_ONNXRUNTIME),
    sized(given(np.full((1, 2, 5, 4), 102), "uint8"), 1, 2, 7, 9, mode="linear", name="even",
          oracles=(), unverified="onnxruntime has 101 in other places, as its sums are in another order"),
    sized(i32(1, 1, 4, 4, low=-99, high=99), 1, 1, 3, 5, roi=(0, 0, -0.25, 0.5, 1, 1, 1.25, 1.75), mode="linear",
          extrapolation_value=3e9, coordinate_transformation_mode="tf_crop_and_resize", oracles=(),
          unverified="onnxruntime makes the least integer of a value that is too large"),
    case("Resize", of_type("uint64", 1, 2, 5, low=0, high=2**64 - 1), None, None, const([1, 4, 3]), mode="cubic",
         name="wide", oracles=(), unverified="onnxruntime has no such type, and onnx's evaluator computes in float64"),
]
