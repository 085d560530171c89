"""Rows of MaxUnpool and MaxRoiPool."""

from __future__ import annotations

from weft.conformance.cases.table import Case, case, const, f32, f64, given

PLACES = given([[[[5, 7], [13, 8]]]], "int64")
REGIONS = given([[0, 0, 0, 5, 4], [1, 1.4, 2.6, 3, 3], [0, 2, 2, 2, 2], [1, 4, 3, 9, 9]])
REGIONS_OF_DOUBLES = given([[0, 0, 0, 5, 4], [1, 1.4, 2.6, 3, 3], [1, 4, 3, 9, 9]], "float64")

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
]
