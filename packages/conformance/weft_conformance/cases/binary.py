"""Rows of the element-wise ops of two or more inputs."""

from __future__ import annotations

from math import inf, nan

import numpy as np

from weft_conformance.cases.table import Case, boolean, case, const, f16, f32, f64, given, i8, i32, i64, u8
from weft_conformance.cases.unary import ON_X86, WHOLE, limits

ARITHMETIC = ("Add", "Sub", "Mul", "Div")
COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
VARIADIC = ("Max", "Min", "Sum", "Mean")
ODD = [-inf, -1.0, -0.0, 0.0, 2.0, inf, nan]
PAIRED = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -2.5, 1e30, 1e-30, 16777217.0]
"""Each is paired with each."""
SIGNED_PAIR = (given([7, -7, 7, -7, 6, -6, 0], "int32"), given([3, 3, -3, -3, 3, -3, 5], "int32"))
FLOAT_PAIR = (given([7.5, -7.5, 7.5, -7.5, 6, -6, 0, 1e6]), given([2, 2, -2, -2, 3, -3, 5, 0.3]))
SPECIAL_PAIR = (given([1, -1, inf, 3, nan, 3, -3]), given([inf, inf, 2, 0, 2, nan, -inf]))

WIDE_INTEGERS = [
    *(0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, -(2**32), 2**53 + 1),
    *(3 * 2**40 + 12345, -(7 * 2**45) - 99991, 2**63 - 1, -(2**63)),
]
"""Integers around the limits of 32 bits, and some that fill the high and low halves of 64 bits."""

PARTS = "an op of ours: a comparison and a Where"

CASES: list[Case] = []
for _op in ARITHMETIC:
    CASES += [
        case(_op, f32(2, 3, 17), f32(2, 3, 17, low=0.5, high=2)),
        case(_op, f32(2, 3, 1, 5), f32(7, 1, low=0.5, high=2)),
        case(_op, f32(), f32(3, 1, low=0.5, high=2)),
        case(_op, f32(), f32(low=0.5, high=2)),
        case(_op, f32(0, 3), f32(3, low=0.5, high=2)),
        case(_op, f32(1, 3, 5), const(f32(3, 1, low=0.5, high=2))),
        case(_op, f16(3, 5), f16(5, low=0.5, high=2)),
        case(_op, f64(3, 5), f64(5, low=0.5, high=2)),
        case(_op, i64(3, 5), i64(5, low=1)),
        case(_op, *SIGNED_PAIR),
        case(_op, given(ODD), given(ODD[::-1]), name="special"),
    ]
CASES += [
    case("Div", u8(7, high=255), u8(7, low=1)),
    case("Mul", i8(7, low=-120, high=120), i8(7), name="wraps"),
    case("Add", i64(3, 1, 5), const(7)),
    case("Sub", const([2**40, -1, 0]), i64(4, 3)),
]
for _op in ("Add", "Sub", "Mul", "Max", "Min", *COMPARISONS):
    # onnxruntime does not always find the larger of two integers that round to the same float.
    _oracles = ("onnx",) if _op in ("Max", "Min") else ("ort", "onnx")
    _column = given([[v] for v in WIDE_INTEGERS], "int64")
    CASES += [
        case(_op, _column, given(WIDE_INTEGERS, "int64"), name="wide", oracles=_oracles),
        case(_op, i32(5, 1, low=-(2**31), high=2**31 - 1), i32(7, low=-(2**31), high=2**31 - 1), name="wide"),
    ]
for _op in COMPARISONS:
    CASES += [
        case(_op, f32(3, 1, 5), f32(4, 1)),
        case(_op, i64(3, 40), i64(40)),
        case(_op, i32(40), i32(40)),
        case(_op, given(ODD), given(ODD[::-1]), name="special"),
        case(_op, given([1, 2, 3]), given([1, 3, 2]), name="ties"),
        case(_op, f16(9), f16(9)),
        case(_op, given([1, 1 + 2.0**-52, 1e-300, nan, inf], "float64"), given([1, 1, 2e-300, nan, 1e308], "float64")),
    ]
    CASES += [
        case("weft::CompareSelect", *inputs, name=name, unverified=PARTS, comparison=_op)
        for name, inputs in (
            ("", (f32(3, 1, 5), f32(4, 1), f32(), f32(3, 4, 1))),
            ("special", (given(ODD), given(ODD[::-1]), given(ODD), given([3, 4, nan, 5, 6, 7, 8]))),
            ("ties", (given([1, 2, 3]), given([1, 3, 2]), given([1, 2, 3]), const(-inf))),
        )
    ]
_column = given([[v] for v in PAIRED])
CASES += [
    *(case(_op, _column, given(PAIRED), name="pairs") for _op in (*ARITHMETIC, *VARIADIC, *COMPARISONS, "Pow", "Mod")),
    case("Mod", _column, given(PAIRED), name="pairs", fmod=1),
]
CASES += [
    *(case(_op, x, y, name="pairs") for _op in ("Mul", "Div", "Pow") for number in (0.0, -0.0, inf)
      for x, y in ((given(PAIRED), const(number)), (const(number), given(PAIRED)))),
    # onnx's evaluator adds the two parts, of which the other is NaN where the slope is no finite number.
    case("PRelu", given([[v] * len(PAIRED) for v in PAIRED]), given(PAIRED), name="pairs", oracles=("ort",)),
    case("PRelu", given(PAIRED), const(0.0), name="pairs", oracles=("ort",)),
    case("SwiGLU", given([v for v in PAIRED for _ in PAIRED]), given(PAIRED * len(PAIRED)), name="pairs"),
]
# onnxruntime has NaN neither for a limit that is, nor infinities on a side without a limit.
CASES += [
    case("Clip", given(PAIRED), *ends, name="special", oracles=("onnx",))
    for ends in (
        (None, given(nan)), (given(nan),), (given(-1), given(nan)), (given(inf), given(-inf)),
        (const(-1.0), const(inf)),
    )
]
for _type in WHOLE:
    _line = limits(_type)
    _across = given(np.reshape(_line.draw(np.random.default_rng(0)), (-1, 1)), _type.value)
    _wide = [v for v in (0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 100, -1) if v >= 0 or _type.is_signed]
    CASES += [
        # onnxruntime dies of the least number divided by -1.
        *(case(op, _across, _line, name="limits", oracles=("onnx",) if op in ("Div", "Max", "Min") else ("ort", "onnx"))
          for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "Equal")),
        *(case("Mod", _across, _line, name="limits", oracles=("onnx",), fmod=fmod) for fmod in (0, 1)),
        *(case("BitShift", _across, given(_wide, _type.value), name="widths", direction=direction)
          for direction in ("LEFT", "RIGHT")),
        *(case(op, _line, const(np.array(divisor, _type.numpy)), name="limits", oracles=("onnx",))
          for op in ("Div", "Mod") for divisor in (0, _type.limits[1], -1 if _type.is_signed else 1)),
        case("Clip", _line, given(_type.limits[1], _type.value), given(_type.limits[0], _type.value), name="limits"),
    ]
CASES += [
    case("Pow", given([[5], [-3], [0], [2**31 - 1]], "int32"), given([0.0, 0.5, -1.0, 33.0, nan, inf, -inf]),
         name="out of range", **ON_X86),
]
CASES += [case("Equal", boolean(9), boolean(9))]
CASES += [case(op, boolean(3, 1, 5), boolean(4, 1)) for op in ("And", "Or", "Xor")]
CASES += [
    case(op, x, y)
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    for x, y in [(i32(3, 5), i32(5)), (u8(9, high=255), u8(9, high=255))]
]
CASES += [
    case("BitShift", u8(9, high=255), u8(9, high=7), direction="LEFT"),
    case("BitShift", u8(9, high=255), u8(1, high=7), direction="RIGHT"),
    case(
        "BitShift", given([-8, -8, 8, 8, 5], "int32"), given([1, 40, 40, 2, -1], "int32"), direction="RIGHT"
    ),
    case("BitShift", given([-8, -8, 8, 8, 5], "int32"), given([1, 40, 40, 2, -1], "int32"), direction="LEFT"),
    case("Mod", *SIGNED_PAIR),
    case("Mod", *SIGNED_PAIR, fmod=1),
    case("Mod", i64(3, 5), i64(5, low=1)),
    case("Mod", *FLOAT_PAIR),
    case("Mod", *FLOAT_PAIR, fmod=1),
    case("Mod", *SPECIAL_PAIR, name="special"),
    case("Mod", *SPECIAL_PAIR, name="special", fmod=1),
    case("Mod", f16(9, low=-9, high=9), f16(9, low=1, high=3), fmod=1),
    case("Pow", f32(3, 7, low=0.1, high=3), f32(7, low=-3, high=3)),
    case("Pow", f32(3, 7, low=0.1, high=3), f32(1, low=-3, high=3)),
    case("Pow", f32(3, 7, low=-3, high=3), given(2.0)),
    case("Pow", f32(3, 7, low=-3, high=3), i64(7, low=0, high=4)),
    case("Pow", f32(3, 7, low=-3, high=3), i32(low=3, high=3)),
    case("Pow", given([0.0, -0.0, -2.0, -2.0, inf, nan, 1.0]), given([0.0, 3.0, 0.5, 3.0, -1.0, 0.0, nan])),
    case("Pow", i64(9, low=-5, high=5), i64(9, low=0, high=6)),
    case("Pow", i32(9, low=1, high=5), f32(9, low=0, high=3)),
    case("Pow", i64(9, low=-99, high=99), const(2.0)),
    case("Pow", i32(3, low=-9, high=9), const([3.0, 2, 0])),
    case("Pow", given([5, 3, 10, 7, 1000, 4], "int64"), given([2, 5, 9, 3, 3, 0.5]), name="whole"),
    case("Pow", i32(3, 5), const([3.0])),
    case("Pow", given([2, -1, 1, 3], "int32"), const(-1.0), name="inverse"),
    case("Pow", i64(9, low=1, high=99), const(0.5)),
    case("Pow", given([2, 4, -1, 1], "int32"), given([-1, 2, -3, -2], "int32"), name="negative"),
    # onnxruntime computes powers of integers in doubles; these wrap.
    *(case("Pow", given([-1, -1, -1, 3, 2], kind), given([2**31 + 1, 2**31, 2**40 + 1, 2**32 + 1, 64], "int64"),
           oracles=(), unverified="numpy, as which onnx computes, wants an exponent of the base's type")
      for kind in ("int32", "int64")),
    case("Pow", f16(9, low=0.1, high=3), f16(9)),
    case("Pow", f64(9, low=0.1, high=3), f32(9)),
    case("Pow", f64(9, low=0.1, high=30), f64(9, low=-200, high=200)),
    case("Pow", given([0, -0.0, -2, -2, inf, nan, 1, 1 + 2.0**-40, 5e-324, 0.5, -3], "float64"),
         given([0, 3, 0.5, 3, -1, 0, nan, 2.0**45, 0.25, 1e300, 2], "float64"), name="special"),
    case("Mod", f64(9, low=-9, high=9), f64(9, low=-3, high=-1)),
    case("Mod", given([1e300, -1e300, 5e-324, 1e10, 1, inf, 7], "float64"),
         given([3, 1e-10, 2e-323, 5e-310, 0, 2, inf], "float64"), fmod=1, name="special"),
    case("PRelu", f64(2, 3), f64(3)),
    case("Clip", f64(3, 7), given(-0.25, "float64"), const(given(0.1, "float64"))),
    case("Where", boolean(5), f64(4, 1), f64(5)),
    case("PRelu", f32(2, 3, 5, 7), f32(3, 1, 1)),
    case("PRelu", f32(2, 3, 5, 7), f32(1)),
    case("PRelu", f32(2, 3, 5, 7), const(f32(2, 3, 5, 7))),
    case("PRelu", f32(), f32()),
    case("PRelu", f32(2, 3, 4), f32(3), oracles=(), unverified="the slope is one of before opset 7"),
    case("PRelu", f16(2, 3, 5), f16(3, 1)),
    case("PRelu", i64(2, 5), i64(5)),
    case("PRelu", i32(2, 3, 4), i32(3), oracles=(), unverified="the slope is one of before opset 7"),
    case("PRelu", given([0, 2**32 - 1], "uint32"), given([7], "uint32")),
    case("SwiGLU", f32(3, 17, low=-5, high=5), f32(3, 17)),
    case("SwiGLU", f32(3, 17, low=-5, high=5), f32(3, 17), alpha=1.7),
    case("Where", boolean(3, 1, 5), f32(4, 1), f32(1, 1, 5)),
    case("Where", boolean(), f32(4, 1), f32(5)),
    case("Where", boolean(5), i64(4, 1), i64()),
    case("Where", boolean(5), f16(5), f16(5)),
    case("Where", boolean(5), boolean(5), boolean(5)),
    case("Where", given([True, False, True], "bool"), given([nan, nan, inf]), given([1, 2, 3])),
    case("weft::CompareSelect", f16(9), const(f16()), f16(9), f16(1), unverified=PARTS, comparison="Less"),
    case("weft::CompareSelect", f64(2, 1, 3), const(given([0.0], "float64")), f64(3), f64(2, 4, 1), unverified=PARTS,
         comparison="Greater"),
    case("weft::CompareSelect", given([1, 1 + 2.0**-52, nan], "float64"), given([1, 1, 1], "float64"), f64(3), f64(3),
         unverified=PARTS, comparison="Equal", name="special"),
    case("Clip", f32(3, 7)),
    case("Clip", f32(3, 7), given(-0.25), given(0.5)),
    case("Clip", f32(3, 7), given(-0.25)),
    case("Clip", f32(3, 7), None, given(0.5)),
    case("Clip", f32(3, 7), const(-0.25), const(0.5)),
    case("Clip", f32(3, 7), given(0.5), given(-0.25), name="crossed"),
    case("Clip", f32(), given(-0.25), given(0.5)),
    case("Clip", f16(3, 7), given(-0.25, "float16"), given(0.5, "float16")),
    case("Clip", i64(9), given(-2, "int64"), given(3, "int64")),
    case("Clip", i8(9), given(-2, "int8")),
    case("Clip", given([-inf, inf, 0.25]), given(-1.0), given(1.0)),
]
for _op in VARIADIC:
    CASES += [
        case(_op, f32(3, 5)),
        case(_op, f32(3, 5), f32(3, 5)),
        case(_op, f32(3, 1), f32(5), f32(2, 1, 1), f32()),
        case(_op, f16(3, 5), f16(5)),
        case(_op, f64(5), f64(5), f64(5)),
        case(_op, *(f32(3, 5) if k % 3 else f32(5) for k in range(17)), name="many"),
    ]
for _op in ("Max", "Min"):
    CASES += [
        case(_op, i64(3, 5), i64(5)),
        case(_op, i8(5), i8(5)),
        case(_op, u8(5), u8(5)),
        case(_op, given([1, nan, 3, nan, -inf]), given([2, 2, nan, nan, inf]), name="special"),
    ]
CASES += [
    case(kind, i64(3, 5, low=-(2**40), high=2**40), i64(5, low=-(2**40), high=2**40), name="wide-integers")
    for kind in ("Add", "Sub", "Max", "Min")
]
