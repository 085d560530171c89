"""Rows of the reductions and running sums."""

from __future__ import annotations

from math import inf, nan

import numpy as np

from weft.core.graph.dtypes import DType
from weft_conformance.cases.table import (
    Case,
    Input,
    boolean,
    case,
    const,
    f16,
    f32,
    f64,
    given,
    i8,
    i32,
    i64,
    of_type,
    u8,
)

SUMS = ("ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare")
LOGS = ("ReduceLogSum", "ReduceLogSumExp")
EXTREMES = ("ReduceMax", "ReduceMin")
NO_AXES = const([], "int64")
LINES = np.array(
    [
        *([nan, 1, 2, 3], [1, 2, 3, nan], [1, nan, inf, -inf], [nan] * 4, [nan, nan, 1, 1]),
        *([inf, inf, 1, 0], [-inf] * 4, [inf, -inf, 1, 2], [-inf, 1, 2, 3], [inf, 1, 2, 3]),
        *([0.0, -0.0, 0.0, -0.0], [-0.0] * 4, [1e20] * 4, [200, -200, 100, 88]),
    ]
)
"""What reductions and norms of each line show: whether NaN wins, what infinities add up to, and what overflows."""
ONE_EACH = np.array([[nan], [inf], [-inf], [1.0], [0.0]])
"""Lines of one element, which is its own mean and its own maximum."""


def _positive(*shape: int) -> Input:
    """Return numbers whose sums have logarithms and whose products stay near 1."""
    return f32(*shape, low=0.5, high=1.5)


STEPS = "an op of ours: a Mul and an Add for each step"
CASES: list[Case] = []
for _op in SUMS + LOGS + EXTREMES:
    CASES += [
        case(_op, _positive(2, 3, 5, 7), name="all"),
        case(_op, _positive(2, 3, 5, 7), keepdims=0),
        case(_op, _positive(2, 3, 5, 7), const([1]), name="axis1"),
        case(_op, _positive(2, 3, 5, 7), const([-1]), name="last", keepdims=0),
        case(_op, _positive(2, 3, 5, 7), const([2, 3]), name="spatial"),
        case(_op, _positive(2, 3, 5, 7), const([-1, 0]), name="outer", keepdims=0),
        case(_op, _positive(2, 3, 5, 7), const([0, 1, 2, 3]), name="every"),
        case(_op, _positive(2, 3, 5, 7), NO_AXES, name="none"),
        case(_op, _positive(2, 3, 5, 7), NO_AXES, name="none", noop_with_empty_axes=1),
        case(_op, _positive(2, 3, 5, 7), noop_with_empty_axes=1),
        case(_op, _positive(2, 3, 5, 7), const([1]), name="axis1", noop_with_empty_axes=1),
        case(_op, _positive(), name="scalar"),
        case(_op, _positive(), name="scalar", keepdims=0),
        case(_op, _positive(1), const([0]), keepdims=0),
        case(_op, _positive(1003), const([0])),
        # ONNX does not define the mean of no elements; onnxruntime gives 0, numpy and onnx NaN.
        case(
            _op, _positive(3, 0, 2), const([1]), oracles=("onnx",) if _op == "ReduceMean" else ("ort", "onnx")
        ),
        case(_op, f16(3, 37, low=0.5, high=1.5), const([1])),
        case(_op, f64(3, 37, low=0.5, high=1.5), const([0])),
    ]
for _op in SUMS + EXTREMES:
    CASES += [
        case(_op, f32(2, 3, 5, 7), const([1, 2])),
        case(_op, i32(3, 4, low=1, high=4), const([1])),
        case(_op, i64(3, 4, low=1, high=4), const([0]), keepdims=0),
    ]
CASES += [
    case("ReduceMean", given([[-7, 2], [7, 2]], "int32"), const([1]), name="truncates"),
    case("ReduceMax", i8(3, 4), const([1])),
    case("ReduceL2", i32(3, 40, low=-9999, high=9999), const([1])),
    case("ReduceL2", of_type("uint64", 2, 3, low=0, high=2**31), const([0]), keepdims=0),
    case("ReduceMean", f32(2, 3, 2, 3, 2, 3, 2), const([0, 2, 4, 6]), keepdims=0, name="runs"),
    case("ReduceL2", i64(2, 3, 2, 3, 2, 3, 2), const([1, 3, 5]), name="runs"),
    case("ReduceSum", f32(2, 3), given([], "int64")),
    case("ReduceSum", f32(2, 3), given([], "int64"), noop_with_empty_axes=1),
    # onnxruntime adds int64 in double.
    case("ReduceSum", i64(3, 1009, low=-(2**60), high=2**60), const([1]), name="wide", oracles=("onnx",)),
    case("ReduceMean", i64(3, 1009, low=-(2**40), high=2**40), const([1]), name="wide"),
    case("ReduceMax", i64(2, 3, 5, 7, low=-(2**62), high=2**62), const([1, 3])),
    case("ReduceMin", of_type("uint64", 65, 3, low=0, high=2**64 - 1), const([0])),
    case("ReduceL1", i64(3, 70, low=-(2**50), high=2**50), const([1])),
    case("ReduceSumSquare", i32(3, 70, low=-999, high=999), const([0])),
    case("ReduceMax", boolean(3, 99), const([1])),
    case("ReduceSum", f32(2, 1, 3, 2, 2, 2, 3), const([1, 4, 6])),
    case("ReduceSum", f32(2, 3, 2, 3, 2, 3, 2), const([1, 3, 5]), name="runs"),
    case("ReduceMin", u8(3, 4), const([1])),
    case("ReduceMax", boolean(3, 2), const([1])),
    case("ReduceMin", boolean(3, 2), const([1])),
    case("ReduceMax", i8(3, 0), const([1])),
    case("ReduceMin", i32(3, 0), const([1])),
    case("ReduceMax", given([[nan, 1], [inf, 1], [-inf, -inf]]), const([1]), name="special"),
    case("ReduceMin", given([[nan, 1], [inf, 1], [-inf, -inf]]), const([1]), name="special"),
    case("ReduceSum", given([[nan, 1], [inf, 1], [-inf, inf]]), const([1]), name="special"),
    # ONNX Runtime 1.32 does not subtract the maximum before the exponentials, and overflows.
    case(
        "ReduceLogSumExp",
        given([[1000.0, 1000.0], [-1000.0, -1001.0]]),
        const([1]),
        name="large",
        oracles=("onnx",),
    ),
    case("ReduceLogSumExp", given([[-inf, 1.0], [-inf, -inf]]), const([1]), name="special"),
    case("ReduceSum", f32(3, 100003), const([1]), name="long"),
    case("ReduceMean", f32(1, 64, 33, 31), const([2, 3]), name="pool"),
    case("ReduceMean", f32(100003, 3), const([0]), name="tall"),
]
for _op in SUMS + LOGS + EXTREMES:
    # Of NaN onnxruntime takes some for the least number; of large ones it has exponentials.
    _oracles = ("onnx",) if _op in EXTREMES else ("ort", "onnx")
    _lines = LINES[LINES[:, 0] != 1e20] if _op == "ReduceLogSumExp" else LINES
    CASES += [
        case(_op, given(_lines), const([1]), name="lines", oracles=_oracles),
        case(_op, given(_lines.T), const([0]), name="lines", oracles=_oracles),
        case(_op, given(ONE_EACH), const([1]), name="one", oracles=_oracles),
    ]
    if _op in SUMS:
        CASES += [
            case(_op, given([[most, most, 1], [least, least, 1], [most, least, 0]], kind.value), const([1]),
                 name="wraps", oracles=("onnx",) if _op == "ReduceSum" else (),
                 unverified="" if _op == "ReduceSum" else "onnxruntime computes in doubles and limits what comes out")
            for kind in (DType.INT32, DType.INT64, DType.UINT32, DType.UINT64)
            for least, most in [kind.limits]
        ]
for _op in ("ArgMax", "ArgMin"):
    CASES += [
        case(_op, given(LINES), axis=1, name="lines", select_last_index=last, oracles=("onnx",)) for last in (0, 1)
    ]
for _op in ("CumSum", "CumProd"):
    CASES += [
        case(_op, given(LINES), const(1), name="lines"),
        case(_op, given(LINES), const(1), name="lines", exclusive=1, reverse=1),
        case(_op, given([2**31 - 1, 1, -(2**31), -1], "int32"), const(0), name="wraps"),
        case(_op, given([2**63 - 1, 1, -(2**63), -1], "int64"), const(0), name="wraps"),
    ]
for _op in ("ArgMax", "ArgMin"):
    CASES += [
        case(_op, f32(3, 5, 7)),
        case(_op, f32(3, 5, 7), axis=1),
        case(_op, f32(3, 5, 7), axis=-1, keepdims=0),
        case(_op, f32(1003)),
        case(_op, f32(1003), keepdims=0),
        case(_op, i32(3, 20), axis=1, name="ties"),
        case(_op, i32(3, 20), axis=1, select_last_index=1),
        case(_op, given([[2, 1, 2, 1], [1, 1, 1, 1]]), axis=-1, select_last_index=1),
        case(_op, given([[2, 1, 2, 1], [1, 1, 1, 1]]), axis=-1),
        case(_op, f16(3, 5), axis=1),
        case(_op, u8(3, 5), axis=1),
        case(_op, i64(1003), keepdims=0),
        case(_op, given([[-(2**62) - 1, -(2**62), 2**62, 2**62 + 1]], "int64"), axis=1, name="int64"),
        case(_op, given([[2**63 + 1, 2**63 - 1, 2**63]] * 2, "uint64"), axis=1, oracles=("onnx",), name="uint64"),
        *(case(_op, of_type(t, 3, 20, low=0, high=9), axis=1, name="ties") for t in ("int16", "uint16", "uint32")),
        case(_op, i8(3, 20), axis=1, select_last_index=1, name="ties"),
        case(_op, given([[-(2**31), 2**31 - 1, 0, -1]], "int32"), axis=1, name="signs"),
        case(_op, given([[2**31, 2**31 - 1, 0, 2**32 - 1]], "uint32"), axis=1, name="signs"),
        # The last two differ by less than float32 can tell.
        case(_op, f64(3, 5), axis=0),
        case(_op, given([[0.5, 1 + 2.0**-40, 1 + 2.0**-50] * 13] * 2, "float64"), axis=1, name="near"),
    ]
for _op in ("CumSum", "CumProd"):
    CASES += [
        case(_op, f32(3, 5, 7), const(1)),
        case(_op, f32(3, 5, 7), const(-1), exclusive=1),
        case(_op, f32(3, 5, 7), const(0), reverse=1),
        case(_op, f32(3, 5, 7), const(2), reverse=1, exclusive=1),
        case(_op, f32(37), const(0, "int32")),
        case(_op, f32(1), const(0), exclusive=1),
        case(_op, f32(3, 0), const(1), exclusive=1),
        case(_op, i64(3, 5, low=1, high=3), const(1)),
        case(_op, i32(5, low=1, high=3), given(0, "int64")),
        case(_op, i32(3, 5, low=1, high=3), given(-2, "int32"), reverse=1),
        case(_op, f32(3, 5, 2), given(1, "int64"), exclusive=1),
        case(_op, i64(2, 199, low=-3, high=3), const(1), exclusive=1),
        case(_op, f32(99, 3, low=0.9, high=1.1), const(0), reverse=1, exclusive=1),
        case(_op, f16(3, 37), const(1)),
        case(_op, f64(3, 5), const(1)),
        case(_op, f64(2, 40), const(1), exclusive=1),
    ]
CASES += [
    case("weft::LinearRecurrence", f32(3, 5, 7), f32(3, 5, 7), f32(3, 7), axis=1, unverified=STEPS),
    case("weft::LinearRecurrence", f32(4, 9), f32(4, 9), f32(4), axis=-1, unverified=STEPS),
    case("weft::LinearRecurrence", f32(6, 2, 3), f32(6, 2, 3), f32(2, 3), unverified=STEPS),
    case("weft::LinearRecurrence", f16(2, 9, 40), f16(2, 9, 40), f16(2, 40), axis=1, unverified=STEPS),
    case("weft::LinearRecurrence", f64(3, 5), f64(3, 5), f64(5), unverified=STEPS),
]
