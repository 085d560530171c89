"""Rows of the pools."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np

from weft_conformance.cases.reduce import LINES, ONE_EACH
from weft_conformance.cases.table import Case, Input, case, f16, f32, f64, given, i8, of_type, u8

OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("MaxPool", {}),
    ("AveragePool", {}),
    ("AveragePool", {"count_include_pad": 1}),
    ("LpPool", {}),
    ("LpPool", {"p": 3}),
)
CASES: list[Case] = []
for _pool, _also in OPTIONS:
    CASES += [
        case(_pool, f32(1, 3, 8, 8), kernel_shape=(2, 2), strides=(2, 2), **_also),
        case(_pool, f32(3, 5, 7, 9), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), **_also),
        case(_pool, f32(1, 17, 7, 6), kernel_shape=(3, 2), pads=(0, 1, 2, 0), **_also),
        case(_pool, f32(1, 4, 9, 7), kernel_shape=(2, 2), strides=(3, 4), **_also),
        case(_pool, f32(1, 8, 8, 9), kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1, **_also),
        case(_pool, f32(1, 2, 6, 7), kernel_shape=(3, 3), strides=(2, 3), auto_pad="VALID", ceil_mode=1, **_also),
        case(
            _pool,
            f32(1, 1, 6, 7),
            kernel_shape=(2, 3),
            strides=(3, 3),
            pads=(1, 1, 1, 1),
            ceil_mode=1,
            **_also,
        ),
        case(_pool, f32(1, 7, 9, 10), kernel_shape=(3, 2), dilations=(2, 3), **_also),
        case(
            _pool,
            f32(1, 4, 9, 10),
            kernel_shape=(3, 3),
            dilations=(2, 2),
            pads=(2, 1, 2, 1),
            strides=(2, 2),
            **_also,
        ),
        case(_pool, f32(1, 3, 7, 8), kernel_shape=(3, 2), auto_pad="SAME_UPPER", strides=(2, 2), **_also),
        case(_pool, f32(1, 3, 7, 8), kernel_shape=(4, 3), auto_pad="SAME_LOWER", strides=(2, 1), **_also),
        case(_pool, f32(1, 3, 7, 8), kernel_shape=(3, 2), auto_pad="VALID", strides=(2, 2), **_also),
        case(_pool, f32(2, 3, 17), kernel_shape=(4,), strides=(3,), pads=(1, 2), **_also),
        case(
            _pool,
            f32(1, 5, 5, 6, 7),
            kernel_shape=(3, 2, 3),
            strides=(2, 1, 2),
            pads=(1, 0, 1, 1, 0, 1),
            **_also,
        ),
        case(_pool, f16(1, 4, 8, 8), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), **_also),
        case(_pool, f32(1, 4, 5, 5), kernel_shape=(5, 5), **_also),
        case(_pool, f64(2, 5, 7, 9), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1), ceil_mode=1, **_also),
        case(_pool, f64(1, 2, 5, 6, 7), kernel_shape=(2, 3, 2), dilations=(2, 1, 2), **_also),
    ]
CASES += [
    case("MaxPool", f32(3, 5, 7, 9), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), outputs=2),
    case("MaxPool", f32(2, 3, 7, 9), kernel_shape=(3, 2), dilations=(2, 1), outputs=2),
    case("MaxPool", f32(2, 3, 7, 9), kernel_shape=(3, 2), storage_order=1, outputs=2),
    case("MaxPool", f32(2, 3, 9), kernel_shape=(3,), pads=(1, 1), outputs=2),
    case("MaxPool", f32(2, 3, 5, 4, 6), kernel_shape=(2, 2, 2), strides=(2, 2, 2), ceil_mode=1, outputs=2),
    case("MaxPool", f32(1, 3, 7, 9, low=-9, high=-5), kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    case("MaxPool", given([[[1.0, 1.0, 0.0, 1.0, -inf]]]), kernel_shape=(2,), outputs=2, name="ties"),
    case("MaxPool", i8(1, 3, 6, 5), kernel_shape=(2, 3), strides=(2, 1), pads=(1, 1, 1, 1)),
    case("MaxPool", u8(1, 3, 6, 5), kernel_shape=(3, 2), dilations=(2, 1)),
    case("MaxPool", i8(2, 3, 9), kernel_shape=(3,), strides=(2,), outputs=2),
    case("MaxPool", given([[[1, 1 + 2.0**-50, 1 + 2.0**-40, -inf, -1e300]]], "float64"), kernel_shape=(2,), outputs=2),
    case(
        "weft::PlanarMaxPool", of_type("uint64", 1, 2, 4, 5, low=0, high=2**64 - 1), kernel_shape=(2, 3), outputs=2,
        unverified="an op of ours: MaxPool in another layout",
    ),
    # The oracles drop NaN, or not, by where it lies; maxima of ours are NaN where there is one.
    case(
        "weft::PlanarMaxPool", given([[[nan, 1, 2, nan, 0, nan]]]), kernel_shape=(2,), outputs=2,
        unverified="an op of ours: MaxPool in another layout",
    ),
    case(
        "weft::PlanarAveragePool", f64(1, 3, 5, 4), kernel_shape=(2, 3),
        unverified="an op of ours: AveragePool in another layout",
    ),
    case(
        "weft::PlanarLpPool", f64(1, 3, 5, 4), kernel_shape=(2, 3),
        unverified="an op of ours: LpPool in another layout",
    ),
    case("MaxPool", f32(1, 16, 35, 33), kernel_shape=(5, 5), pads=(2, 2, 2, 2)),
    case("AveragePool", f32(1, 12, 35, 33), kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    case("GlobalAveragePool", f32(1, 3, 7, 7)),
    case("GlobalAveragePool", f32(3, 17, 5, 4)),
    case("GlobalAveragePool", f32(2, 5, 9)),
    case("GlobalAveragePool", f32(2, 4, 3, 4, 5)),
    case("GlobalAveragePool", f16(1, 8, 7, 7)),
    case("GlobalAveragePool", f64(2, 7, 5, 4)),
    case("GlobalAveragePool", f32(2, 77, 5, 4)),
    case("GlobalAveragePool", f32(2, 12, 1, 1)),
    case("GlobalMaxPool", f32(1, 3, 7, 7)),
    case("GlobalMaxPool", f32(3, 17, 5, 4)),
    case("GlobalMaxPool", f32(2, 5, 9)),
    case("GlobalMaxPool", f32(2, 4, 3, 4, 5)),
    case("GlobalMaxPool", f32(2, 77, 17, 21)),
    case("GlobalMaxPool", f16(1, 8, 7, 7)),
    case("GlobalMaxPool", f64(2, 5, 3, 4)),
    case("GlobalLpPool", f32(2, 5, 4, 3), opset=21),
    case("GlobalLpPool", f32(1, 3, 7), p=1, opset=21),
    case("GlobalLpPool", f32(2, 3, 2, 3, 4), p=3, opset=21),
    case("GlobalLpPool", f16(1, 4, 3, 3), p=3, opset=21),
    case("GlobalLpPool", f64(1, 4, 3, 3), opset=21, unverified="onnxruntime has no GlobalLpPool of float64"),
]


def _spoiled() -> Input:
    """Return images of seven channels: of one number that is none or infinite, of many, and of large ones."""
    image = np.tile(np.arange(1.0, 37).reshape(1, 1, 6, 6), (1, 7, 1, 1))
    for channel, number in enumerate((nan, inf, -inf, 1e38)):
        image[0, channel, channel, 2 * channel % 6] = number
    image[0, 4:] = np.array([nan, -inf, -1e38]).reshape(3, 1, 1)
    return given(image)


CASES += [
    # Of NaN, onnx's sums are the rest of a window.
    case(op, _spoiled(), name="spoiled", oracles=() if op == "MaxPool" else ("ort",),
         unverified="of NaN, the oracles' maxima are the rest of a window, or not, by where it lies"
         if op == "MaxPool" else "", **window, **also)
    for op, also in OPTIONS
    for window in (
        {"kernel_shape": (2, 2), "strides": (2, 2)},
        {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)},
        {"kernel_shape": (6, 6)},
    )
]
CASES += [
    case("GlobalAveragePool", given(LINES.reshape(1, -1, 1, 4)), name="lines"),
    case("GlobalMaxPool", given(LINES.reshape(1, -1, 1, 4)), name="lines", oracles=("onnx",)),
    case("GlobalAveragePool", given(ONE_EACH.reshape(1, -1, 1, 1)), name="one"),
    case("GlobalMaxPool", given(ONE_EACH.reshape(1, -1, 1, 1)), name="one", oracles=("onnx",)),
]
