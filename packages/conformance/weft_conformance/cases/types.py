"""Rows for element types: conversions from and to each, and ops on types that kernels do not compute in."""

from __future__ import annotations

from math import inf, nan

from weft.core.graph.dtypes import DType
from weft_conformance.cases.table import (
    Input,
    boolean,
    case,
    const,
    f16,
    f32,
    f64,
    given,
    i32,
    i64,
    of_type,
    u8,
)

SMALL_FLOATS = [t for t in DType if t.is_small_float]
FEW_BITS = [t for t in DType if t.is_integer and t.bits < 8]
WIDTHS = [DType.INT16, DType.UINT16, DType.UINT32, DType.UINT64]
EDGES = given([0.0, -0.0, 1e-9, 2.0**-9, 3 * 2.0**-11, 0.3, 17.5, 447.9, 464.0, 465.0, -6e4, 1e6, inf, -inf, nan])
NARROWED = given([0.0, -0.0, 2.0**-25, 3 * 2.0**-26, 2.0**-24, 2.5 * 2.0**-24, 2.0**-14 - 2.0**-26, 1 + 2.0**-11,
                  1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 / 3, 65504, 65519.99, 65520, -65520, 1e6, 3.3e38,
                  3.4e38, inf, -inf, nan])
"""Numbers halfway between those of float16 and bfloat16, at the ends of these types, and beside them."""
BF16 = "bfloat16"

OPERATIONS = "Div Mod Max Less BitwiseAnd BitwiseOr BitwiseXor".split()


def whole(dtype: DType, *shape: int) -> Input:
    """Return an input of integers of any size."""
    return of_type(dtype.value, *shape, low=dtype.limits[0], high=dtype.limits[1])


CASES = [
    *(case("Cast", EDGES, to=to) for to in SMALL_FLOATS if to is not DType.FLOAT8E8M0),
    *(case("Cast", EDGES, to=to, saturate=0) for to in (DType.FLOAT8E4M3FN, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ)),
    *(case("Cast", EDGES, to=DType.FLOAT8E8M0, round_mode=mode) for mode in ("up", "down", "nearest")),
    case("Cast", given([2.0**127, 3e38]), to=DType.FLOAT8E8M0, saturate=0),
    case("Cast", u8(5), to=DType.FLOAT8E8M0),
    case("Cast", given([2**63 + 2**40, 3], "uint64"), to=DType.FLOAT32),
    case("Cast", given([1e19, 3, 2.0**63]), to=DType.UINT64),
    *(case("Cast", of_type(t.value, 7, low=-3, high=3), to=DType.FLOAT32) for t in SMALL_FLOATS),
    case("Cast", f16(6, low=-500, high=500), to=DType.FLOAT8E4M3FN),
    case("Cast", of_type("float8_e5m2", 6, low=-9, high=9), to=DType.FLOAT16),
    case("Cast", of_type("float4_e2m1fn", 6, low=-9, high=9), to=DType.FLOAT8E4M3FN),
    case("Cast", i32(6, low=-900, high=900), to=DType.FLOAT8E4M3FN),
    case("Cast", of_type("float8_e4m3fn", 6, low=-9, high=9), to=DType.INT32),
    *(case("Cast", i32(9, low=t.limits[0], high=t.limits[1]), to=t) for t in FEW_BITS),
    *(case("Cast", of_type(t.value, 9, low=t.limits[0], high=t.limits[1]), to=DType.FLOAT32) for t in FEW_BITS),
    case("Cast", of_type("int4", 9, low=-8, high=7), to=DType.UINT8),
    case("Cast", of_type("int4", 9, low=-8, high=7), to=DType.INT64),
    case("Cast", u8(9, high=15), to=DType.INT4),
    *(case("Cast", f32(9, low=0, high=3e4), to=t) for t in WIDTHS),
    *(case("Cast", of_type(t.value, 9, low=0, high=min(t.limits[1], 2**40)), to=DType.FLOAT32) for t in WIDTHS),
    case("Cast", i64(9, low=-(2**62), high=2**62), to=DType.INT16),
    case("Cast", of_type("int16", 9, low=-(2**15), high=2**15 - 1), to=DType.UINT64),
    case("Cast", of_type("uint32", 9, low=0, high=2**32 - 1), to=DType.INT64),
    case("Cast", boolean(4), to=DType.UINT16),
    case("Cast", f64(7, low=-9, high=9), to=DType.FLOAT32),
    case("Cast", given([1e-42, 3.5e38, -1e-50, inf, nan], "float64"), to=DType.FLOAT32),
    case("Cast", f16(7), to=DType.FLOAT64),
    case("Cast", f64(4), to=DType.FLOAT16),
    case("Cast", f64(4, low=-400, high=400), to=DType.FLOAT8E4M3FN),
    case("Cast", f64(9, low=-(2.0**62), high=2.0**62), to=DType.INT64),
    case("Cast", given([0.999, 2.0**53 + 2, 2.0**63 + 2048, 1.8e19], "float64"), to=DType.UINT64),
    case("Cast", given([0.0, -0.0, 5e-324, nan], "float64"), to=DType.BOOL),
    case("Cast", i64(9, low=-(2**63), high=2**63 - 1), to=DType.FLOAT64),
    case("Cast", of_type("uint64", 9, low=2**53, high=2**64 - 1), to=DType.FLOAT64),
    case("Cast", boolean(4), to=DType.FLOAT64),
    case("Cast", of_type("complex64", 3), to=DType.COMPLEX128),
    case("Cast", EDGES, to=DType.BFLOAT16),
    *(case("weft::Narrow", NARROWED, held=held, unverified="two casts in one op of ours: tests/core/passes")
      for held in (DType.FLOAT16, DType.BFLOAT16)),
    *(case("weft::Narrow", f32(3, 5, low=-9e4, high=9e4), held=held, unverified="the same")
      for held in (DType.FLOAT16, DType.BFLOAT16)),
    case("Cast", given([1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38]), to=DType.BFLOAT16),
    case("Cast", of_type(BF16, 3, 5), to=DType.FLOAT32),
    case("Cast", of_type(BF16, 3, 5, low=-99, high=99), to=DType.INT64),
    case("Cast", of_type(BF16, 3, 5), to=DType.FLOAT16),
    case("CastLike", f32(4, low=-500, high=500), of_type("float8_e4m3fn", 1)),
    case("CastLike", f32(4), of_type(BF16, 1)),
    case("CastLike", of_type("float8_e5m2", 4), f32(1)),
    case("BitCast", f32(2, 3), to=DType.INT32),
    case("BitCast", of_type(BF16, 5), to=DType.INT16),
    case("BitCast", f16(5), to=DType.BFLOAT16),
    case("BitCast", i64(3), to=DType.FLOAT64),
    case("BitCast", given([0, 1], "uint8"), to=DType.BOOL),
    case("BitCast", of_type("int8", 5, low=-1, high=1), to=DType.BOOL),
    case("Add", of_type(BF16, 2, 3), of_type(BF16, 3)),
    case("Relu", of_type(BF16, 2, 3, 2, 2)),
    case("Tanh", of_type(BF16, 5)),
    case("Clip", of_type(BF16, 5), const(given(-0.5, BF16)), const(given(0.5, BF16))),
    case("Less", of_type(BF16, 5), of_type(BF16, 5)),
    case("Where", boolean(5), of_type(BF16, 5), of_type(BF16, 5)),
    case("Where", boolean(4), of_type("complex64", 4), of_type("complex64", 4)),
    case("MatMul", of_type(BF16, 2, 5), of_type(BF16, 5, 3)),
    case("Softmax", of_type(BF16, 3, 7)),
    case("ReduceSum", of_type(BF16, 3, 7), const([1])),
    case("Conv", of_type(BF16, 1, 3, 5, 5), const(of_type(BF16, 4, 3, 3, 3))),
    case("Identity", of_type("float4_e2m1fn", 5)),
    case("Identity", of_type("uint2", 5, low=0, high=3)),
    case("Transpose", of_type("int4", 2, 5, low=-8, high=7)),
    case("Reshape", of_type("float8_e4m3fn", 2, 3), const([3, 2])),
    case("Concat", of_type("complex64", 2, 2), of_type("complex64", 2, 2), axis=0),
    *(
        case(op, whole(t, 2, 5), of_type(t.value, 5, low=1, high=9), name="whole")
        for t in (DType.INT64, DType.UINT64, DType.INT16, DType.UINT32)
        for op in OPERATIONS
    ),
    *(case(op, whole(DType.INT64, 2, 5), i64(5, low=-(2**33), high=-(2**32)), name="large") for op in ("Div", "Mod")),
    case("Mod", of_type("int8", 9, low=-99, high=99), of_type("int8", 9, low=-9, high=-1), name="signs"),
    case("Mod", of_type("int8", 9, low=-99, high=99), of_type("int8", 9, low=-9, high=-1), fmod=1, name="signs"),
    *(case("BitShift", of_type(t, 9, low=0, high=99), of_type(t, 9, low=0, high=40), direction=d, name="all")
      for t in ("uint32", "uint64") for d in ("LEFT", "RIGHT")),
    *(case(op, of_type("int32", 9, low=-99, high=99), name="signs") for op in ("BitwiseNot", "Sign", "Relu")),
    case("Pow", i64(9), i64(9, low=0, high=12), name="whole"),
    case("Pow", f32(9, low=0.5, high=2), i64(9), name="by"),
    case("Clip", of_type("int8", 9, low=-99, high=99), const(given(-9, "int8")), const(given(30, "int8")), name="both"),
    case("Clip", of_type("uint64", 9, low=0, high=99), const(given(9, "uint64")), name="least"),
]
