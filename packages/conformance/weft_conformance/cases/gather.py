"""Rows of the ops that read or write at given places."""

from __future__ import annotations

import numpy as np

from weft_conformance.cases.table import Case, boolean, case, const, f16, f32, f64, given, i32, i64, u8

CASES: list[Case] = [
    case("Gather", f32(5, 7), const([0, 2, 4])),
    case("Gather", f32(5, 7), given([[-1, 0], [3, -5]], "int64"), axis=0),
    case("Gather", f32(5, 7), given([[-1, 0, 6]], "int64"), axis=1),
    case("Gather", f32(2, 5, 7), given([3, 3], "int32"), axis=-2),
    case("Gather", f32(2, 5, 7), given(1, "int64"), axis=2),
    case("Gather", f16(17, 8), given([16, 0, 5], "int64")),
    case("Gather", i64(6), const(2)),
    case("Gather", f32(1, 8, 3, 3), const([7, 1, 2]), axis=1),
    # slices that are moved in pieces: floats by fours, other types 4, 8 or 16 bytes at a time
    case("Gather", f32(9, 12), given([[-1, 0], [8, 3]], "int64")),
    case("Gather", f32(2, 5, 4), given([4, 1, -2], "int64"), axis=1),
    case("Gather", f32(3, 6), given([2, 0], "int64")),
    *(case("Gather", i32(5, inner), given([4, 0, -2], "int64")) for inner in (3, 2, 4, 6)),
    case("Gather", u8(5, 12), given([4, 0, -2], "int64")),
    case("Gather", boolean(5, 2), given([4, 0, -2], "int64")),
    case("Gather", f64(5, 3), given([4, 0, -2], "int64")),
    case("GatherND", f16(3, 4, 8), given([[0, 1], [2, -1]], "int64")),
    case("GatherND", i64(3, 4, 2), given([[0, 1], [2, -1]], "int64")),
    case("GatherElements", f32(3, 4), given([[0, 2, -1, 1], [2, 2, 0, 0]], "int64")),
    case("GatherElements", f32(3, 4), given([[0, 3], [-4, 1], [2, 2]], "int64"), axis=1),
    case("GatherElements", f32(2, 3, 4), given([[[0, 3, 1]], [[-1, 0, 2]]], "int64"), axis=-1),
    case("GatherElements", f16(5), given([4, 4, 0], "int32")),
    case("GatherND", f32(3, 4, 5), given([[0, 1], [2, -1]], "int64")),
    case("GatherND", f32(3, 4, 5), given([[0, 1, 2], [2, -1, -5]], "int64")),
    case("GatherND", f32(3, 4, 5), given([[[1]], [[2]]], "int64")),
    case("GatherND", f32(2, 3, 4), given([[1], [-1]], "int64"), batch_dims=1),
    case(
        "GatherND",
        f32(2, 3, 4, 2),
        given([[[[1], [0]], [[2], [3]], [[0], [0]]], [[[1], [1]], [[2], [0]], [[3], [-1]]]], "int64"),
        batch_dims=2,
    ),
    case("GatherND", i64(4, 3), given([[1], [3]], "int64")),
]
for _reduction in ("none", "add", "mul", "max", "min"):
    CASES += [
        case(
            "ScatterElements",
            f32(3, 4),
            given([[0, 1, 2, 0], [1, 2, -3, -1]], "int64"),
            f32(2, 4),
            reduction=_reduction,
        ),
        case(
            "ScatterElements",
            f32(3, 4),
            given([[1, -1], [0, 2], [3, 0]], "int64"),
            f32(3, 2),
            axis=-1,
            reduction=_reduction,
        ),
        case("ScatterND", f32(5, 3), given([[4], [0], [-2]], "int64"), f32(3, 3), reduction=_reduction),
        case("ScatterND", f32(4, 3), given([[[0, 1], [3, -1]]], "int64"), f32(1, 2), reduction=_reduction),
    ]
CASES += [
    case("ScatterElements", f16(5), given([1, 3], "int64"), f16(2)),
    case("ScatterElements", i64(2, 3, 2), given([[[1, 0]]], "int64"), i64(1, 1, 2), axis=1),
    case("ScatterND", u8(4, 2, 3), given([[3], [0]], "int64"), u8(2, 2, 3)),
    case("ScatterND", f32(2, 3, 2, 2), given([[0, 1], [1, 2], [0, 1]], "int64"), f32(3, 2, 2), reduction="add"),
    case("ScatterND", i32(4), given([[1], [1]], "int64"), i32(2), reduction="add"),
    case("ScatterND", f64(4), given([[1], [1]], "int64"), f64(2), reduction="add"),
    *(case("ScatterElements", i64(3, 2, low=-(2**40), high=2**40), given([[1, 0], [1, 2], [-2, 2]], "int64"),
           i64(3, 2, low=-(2**40), high=2**40), reduction=_reduction) for _reduction in ("add", "mul", "max", "min")),
    case("ScatterND", given(np.array([1, 2**63, 3], np.uint64), "uint64"), given([[0], [1], [0]], "int64"),
         given(np.array([2**63 + 1, 5, 7], np.uint64), "uint64"), reduction="max"),
    case("ScatterND", u8(4), given([[1], [1]], "int64"), u8(2), reduction="mul"),
    *(case("ScatterND", given([True, False, True, False], "bool"), given([[0], [1], [2], [3], [0]], "int64"),
           given([False, True, True, False, True], "bool"), reduction=_reduction)
      for _reduction in ("add", "mul")),
]
