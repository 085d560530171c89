"""Rows of MaxUnpool and MaxRoiPool."""

from __future__ import annotations

from math import inf, nan

from weft_conformance.cases.table import Case, case, const, f32, f64, given

PLACES = given([[[[5, 7], [13, 8]]]], "int64")
REGIONS = given([[0, 0, 0, 5, 4], [1, 1.4, 2.6, 3, 3], [0, 2, 2, 2, 2], [1, 4, 3, 9, 9]])
REGIONS_OF_DOUBLES = given([[0, 0, 0, 5, 4], [1, 1.4, 2.6, 3, 3], [1, 4, 3, 9, 9]], "float64")
CORNERS = [[0, nan, 0, 5, 4], [0, 0, -inf, 5, 4], [0, 1e30, 1e30, 5, 4], [0, 0, 0, nan, 4], [0, 0, 1, 5, inf],
           [0, 0, 0, 1e30, nan], [0, -3e9, 0, 5, 4], [0, -2e9, 0, -1.9e9, 4], [0, 0, 0, 2e9, 4], [0, -1e8, -5, 1e8, 9]]
"""Regions with corners that are no int, or that lie far from the image."""

CASES: list[Case] = [
    case("MaxUnpool", f32(1, 1, 2, 2), PLACES, kernel_shape=(2, 2), strides=(2, 2)),
    # onnxruntime counts the places in the output's shape, and not in that of the pool
    case(
        "MaxUnpool",
        f32(1, 1, 2, 2),
        PLACES,
        const([1, 1, 5, 5]),
        kernel_shape=(2, 2),
        strides=(2, 2),
        oracles=("onnx",),
    ),
    case("MaxUnpool", f32(1, 2, 3), given([[[0, 3, 4], [6, 9, 11]]], "int64"), kernel_shape=(2,), strides=(2,)),
    case("MaxRoiPool", f32(2, 3, 6, 7), REGIONS, opset=21, pooled_shape=(2, 3)),
    case("MaxRoiPool", f32(2, 1, 6, 7), REGIONS, opset=21, pooled_shape=(3, 2), spatial_scale=0.5),
    case("MaxRoiPool", f64(2, 3, 6, 7), REGIONS_OF_DOUBLES, opset=21, pooled_shape=(3, 2), spatial_scale=0.5,
         oracles=(), unverified="onnxruntime computes in float32 alone"),
    case("MaxRoiPool", f32(1, 2, 6, 7), given(CORNERS), opset=21, pooled_shape=(2, 3), name="far"),
    case("MaxRoiPool", given([[[[1, 2, 3, 4], [5, nan, -inf, 6], [inf, 7, 8, nan]]]]),
         given([[0, 0, 0, 3, 2], [0, 1, 1, 2, 1], [0, 2, 0, 3, 1]]), opset=21, pooled_shape=(2, 2), name="special",
         oracles=(), unverified="onnxruntime drops a NaN or keeps it, depending on where it is"),
]
