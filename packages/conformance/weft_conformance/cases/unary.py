"""Rows of the element-wise ops of one input."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from math import inf, nan
from typing import Any

import numpy as np

from weft.core.graph.dtypes import DType
from weft_conformance.cases.table import Case, Input, boolean, case, f16, f32, f64, given, i8, i32, i64, u8

POSITIVE = {"low": 0.01, "high": 9.0}
UNIT = {"low": -0.99, "high": 0.99}
MODEST = {"low": -5.0, "high": 5.0}
WIDE_RANGE = {"low": -9.0, "high": 9.0}
DOMAINS = {
    **dict.fromkeys(("Exp", "Sigmoid", "Tanh", "Erf", "Softplus", "Mish", "Swish", "Gelu"), WIDE_RANGE),
    **dict.fromkeys(("Sin", "Cos", "Atan", "Asinh", "Abs", "Neg", "Relu", "Sign", "Softsign"), WIDE_RANGE),
    **dict.fromkeys(("Floor", "Ceil", "Round", "LeakyRelu", "ThresholdedRelu", "HardSigmoid"), WIDE_RANGE),
    **dict.fromkeys(("HardSwish", "Elu", "Celu", "Selu", "Shrink"), WIDE_RANGE),
    **dict.fromkeys(("Log", "Log", "Sqrt", "Reciprocal"), POSITIVE),
    **dict.fromkeys(("Asin", "Acos", "Atanh", "Tan"), UNIT),
    **dict.fromkeys(("Sinh", "Cosh"), MODEST),
    "Acosh": {"low": 1.01, "high": 9.0},
}
PROPAGATE = [
    -inf,
    -1e4,
    -100.0,
    -50.0,
    -1.0,
    -1e-4,
    -1e-20,
    0.0,
    1e-20,
    1e-4,
    1.0,
    50.0,
    100.0,
    1e4,
    inf,
    nan,
]
FINITE = PROPAGATE[1:-2]
EXTREMES = {
    **dict.fromkeys(("Exp", "Sigmoid", "Tanh", "Erf", "Softplus", "Atan", "Abs", "Neg"), PROPAGATE),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Asinh", "Elu"), PROPAGATE),
    **dict.fromkeys(("Gelu", "HardSigmoid", "Softsign", "Celu", "Selu", "LeakyRelu", "Sign"), FINITE),
    **dict.fromkeys(("HardSwish", "ThresholdedRelu", "Shrink", "Relu", "Mish", "Swish"), FINITE),
    "Log": [-1.0, -0.0, 0.0, 1e-30, 1.0, 1e30, inf, nan],
    "Sqrt": [-1.0, -0.0, 0.0, 1e-30, 1.0, 1e30, inf, nan],
    "Reciprocal": [-inf, -2.0, -0.0, 0.0, 3.0, inf, nan],
    "Asin": [-1.1, -1.0, -1e-10, 0.0, 1.0, nan],
    "Acos": [-1.1, -1.0, 0.0, 1.0, nan],
    "Atanh": [-1.1, -1.0, -1e-10, 0.0, 1.0, nan],
    "Acosh": [0.5, 1.0, 1.0001, 1e4, inf, nan],
    "Sinh": [-inf, -100.0, -1e-10, 0.0, 100.0, inf, nan],
    "Cosh": [-inf, -100.0, 0.0, 100.0, inf, nan],
    "Sin": [-100.0, -3.1415927, 0.0, 1e-10, 1.5707964, 6.2831855, 1000.0, inf, nan],
    "Cos": [-100.0, -3.1415927, 0.0, 1e-10, 1.5707964, 6.2831855, 1000.0, inf, nan],
}

DOUBLE_EXTREMES: dict[str, Sequence[float]] = {
    "Exp": [709.78, 710.0, -708.5, -744.0, -746.0, 1e-300],
    "Log": [5e-324, 1e-310, 1.7e308, 1 - 2.0**-53, 1 + 2.0**-52],
    # The multiples of pi / 2 nearest to doubles are near 6381956970095103 * 2^797.
    **dict.fromkeys(("Sin", "Cos"), (999999.0, 1e6, -1e7, 1e22, 6381956970095103 * 2.0**797, 5e-324)),
    "Atan": [1e-300, 1e300, 0.0625, 1.0625],
    **dict.fromkeys(("Sinh", "Cosh"), (-700.0, 709.9, 710.4, 1e-300)),
    "Tanh": [1e-300, 19.5],
    "Asinh": [1e-300, -1e300],
}
IN_FLOAT32 = frozenset({"Erf", "Gelu", "HardSwish", "Shrink", "LeakyRelu", "HardSigmoid"})
"""What no oracle computes in float64 from first to last: some round attributes such as 0.01 to float32."""
SPECIAL = [
    *(nan, inf, -inf, -0.0, 0.0, 1.1754944e-38, 8e37, -8e37, 1e20, -1e20, 1.0, -1.0, 0.5, -0.5, 2.5, -0.3),
    *(88.0, 89.0, -88.0, -104.0, 8388609.0, 16777216.0),
]
"""Not a number, infinities, both zeros, the smallest normal number, the largest that GPUs divide by exactly, and where
exponentials overflow and vanish."""
SUBNORMAL = [1e-40, -1e-40]
TELL_SUBNORMAL = frozenset({"Sign", "Floor", "Ceil", "Log"})
"""Ops of whose result for a subnormal number a device that takes it for 0 is far off."""
ZERO_ATTRIBUTES: list[tuple[str, dict[str, Any]]] = [
    ("LeakyRelu", {"alpha": 0.0}),
    ("Elu", {"alpha": 0.0}),
    ("Selu", {"alpha": 0.0}),
    ("Selu", {"gamma": 0.0}),
    ("ThresholdedRelu", {"alpha": 0.0}),
    ("HardSigmoid", {"alpha": 0.0}),
    ("HardSigmoid", {"alpha": 0.0, "beta": 0.0}),
    ("Swish", {"alpha": 0.0}),
    ("Shrink", {"lambd": 0.0}),
    ("Shrink", {"lambd": inf}),
    ("Gelu", {"approximate": "tanh"}),
]
"""Attributes times which infinity is NaN, or which are infinite."""
TO_INT = [
    *(0.9, -0.9, 1e-40, -1.0, 127.9, 128.0, -128.9, -129.0, 255.9, 256.0, 32768.0, 65536.0, 2147483520.0),
    *(2147483648.0, 4294967296.0, 9.2e18, 1.8e19, -0.0),
]
"""Floats in the range of some integers and out of that of others, which all keep the same lower bits of them."""
NO_INT = [nan, inf, -inf, -2147483904.0, -9.3e18, 1.85e19, 1e20, -1e20, 3e38]
"""What no integer holds, or only those of 64 bits."""
WHOLE = tuple(t for t in DType if t.is_integer and t.bits >= 8)
ON_X86: dict[str, Any] = (
    {}
    if platform.machine().lower() in ("x86_64", "amd64")
    else {"oracles": (), "unverified": "the oracles make of floats out of range what the processor does"}
)


def limits(dtype: DType) -> Input:
    """Return the integers around 0 and around the limits of a type."""
    least, most = dtype.limits
    some = {least, least + 1, -7, -1, 0, 1, 3, 7, most - 1, most}
    return given(np.array(sorted(v for v in some if least <= v), dtype.numpy), dtype.value)


CASES: list[Case] = [case(op, f32(2, 3, 17, **domain)) for op, domain in DOMAINS.items()]
CASES += [case(op, f16(3, 5, **domain)) for op, domain in DOMAINS.items()]
CASES += [case(op, f32(**domain), name="scalar") for op, domain in DOMAINS.items()]
CASES += [case(op, given(values), name="extremes") for op, values in EXTREMES.items()]
CASES += [
    case(op, given(SPECIAL if op in TELL_SUBNORMAL else SPECIAL + SUBNORMAL, kind), name="special",
         oracles=("onnx",) if (op, kind) == ("Sign", "float16") else ("ort", "onnx"))  # onnxruntime's is 0 for NaN
    for op in DOMAINS
    for kind in ("float32", "float16", "float64")
    if kind != "float64" or op not in IN_FLOAT32
]
CASES += [case(op, given(SPECIAL), name="special", **attributes) for op, attributes in ZERO_ATTRIBUTES]
CASES += [
    case(op, limits(kind), name="limits")
    for op in ("Abs", "Neg", "Sign", "Relu", "BitwiseNot")
    for kind in WHOLE
    if kind.is_signed or op not in ("Neg", "Relu")
]
# What ONNX leaves open is what numpy and ONNX Runtime do on x86 where they agree; of unsigned integers they do not.
CASES += [
    *(case("Cast", given(TO_INT + NO_INT, kind), to=to, name="out of range", **ON_X86)
      for to in WHOLE if to.is_signed for kind in ("float32", "float16", "float64", "bfloat16")),
    *(case("Cast", given(TO_INT + NO_INT, kind), to=to, name="out of range", oracles=(),
           unverified="numpy's own casts differ by where in an array a number is")
      for to in WHOLE if not to.is_signed for kind in ("float32", "float64")),
    case("CastLike", given(TO_INT + NO_INT), i32(1), name="out of range", **ON_X86),
    case("Shrink", limits(DType.INT8), lambd=1.0, bias=300.0, name="out of range", oracles=(),
         unverified="the oracles add a bias of the integers' type"),
]
# Expressions of the same functions, of doubles: each function once, and where it is hardest.
CASES += [case(op, f64(2, 9, **domain)) for op, domain in DOMAINS.items() if op not in IN_FLOAT32]
CASES += [
    case(op, given([*values, *DOUBLE_EXTREMES.get(op, ())], "float64"), name="extremes")
    for op, values in EXTREMES.items()
    if op in {"Exp", "Log", "Sqrt", "Sin", "Cos", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Sign"}
]
CASES += [
    case("Tan", given([-100.0, 0.0, 1e-300, 1.5707963267948966, 1e6, -1e22, inf, nan], "float64"), name="extremes"),
    case("LeakyRelu", f64(2, 9), alpha=0.25),
    case("HardSigmoid", f64(2, 9, **WIDE_RANGE), alpha=0.25),
    *(case("Gelu", f64(2, 9, **WIDE_RANGE), approximate=form, oracles=(), unverified="onnx computes Erf in float32")
      for form in ("none", "tanh")),
    case("IsNaN", given([0, nan, inf, -inf], "float64")),
    case("IsNaN", given([0, nan, inf, -inf], "bfloat16")),
    *(case(op, given([0, nan, 2, -2], t)) for op in ("IsNaN", "IsInf") for t in ("float8_e4m3fn", "float8_e5m2fnuz")),
    case("IsInf", given([0, nan, inf, -inf], "float8_e5m2"), detect_negative=0),
    case("IsInf", given([0, nan, inf, -inf], "bfloat16")),
    case("IsInf", given([0, nan, 1e300, -inf], "float64"), detect_positive=0),
]
CASES += [
    case("Exp", f32(0, 3)),
    case("Relu", f32(1)),
    case("Sigmoid", f32(1, 5, 7, 9), name="odd"),
    case(
        "Erf",
        f64(3, 40, low=-7, high=7),
        oracles=(),
        unverified="onnxruntime has no double Erf and onnx computes it in float32; see test_erf_is_accurate",
    ),
    case("Erf", f32(40001, low=-5, high=5), name="blocks"),
    case("Gelu", f32(3, 37, low=-6, high=6), approximate="tanh"),
    case("Gelu", f32(3, 37, low=-6, high=6), approximate="none"),
    case("Gelu", f16(3, 37, low=-6, high=6), approximate="tanh"),
    case("Round", given([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 8388609.0]), name="halves"),
    case("Abs", i64(7)),
    case("Abs", i8(7)),
    case("Abs", i64(9, low=-(2**62), high=2**62)),
    case("Neg", i64(9, low=-(2**62), high=2**62)),
    case("Neg", i32(7)),
    case("Relu", i32(7)),
    case("Sign", i64(7)),
    case("Sign", u8(7)),
    case("Not", boolean(3, 4)),
    case("BitwiseNot", i32(5)),
    case("BitwiseNot", u8(5, high=255)),
    case("IsNaN", given([0, nan, inf, -inf])),
    case("IsNaN", given([0, nan, inf, -inf], "float16")),
    case("IsInf", given([0, nan, inf, -inf])),
    case("IsInf", given([0, nan, inf, -inf]), detect_negative=0),
    case("IsInf", given([0, nan, inf, -inf]), detect_positive=0),
    case("IsInf", given([0, nan, inf, -inf]), detect_positive=0, detect_negative=0),
    case("LeakyRelu", f32(3, 7), alpha=0.2),
    case("LeakyRelu", f32(3, 7), alpha=-1.5),
    case("ThresholdedRelu", f32(3, 7), alpha=0.25),
    case("ThresholdedRelu", f32(3, 7), alpha=-0.25),
    case("HardSigmoid", f32(3, 7, low=-3, high=3), alpha=0.5, beta=0.25),
    case("HardSigmoid", f32(3, 7, low=-3, high=3), alpha=-0.5, beta=0.75),
    case("Elu", f32(3, 7, low=-3, high=3), alpha=0.3),
    case("Elu", f32(3, 7, low=-3, high=3), alpha=-0.3),
    case("Celu", f32(3, 7, low=-3, high=3), alpha=0.3),
    case("Celu", f32(3, 7, low=-3, high=3), alpha=2.5),
    case("Celu", f16(3, 7, low=-3, high=3), alpha=2.5),
    case("Selu", f32(3, 7, low=-3, high=3), alpha=1.1, gamma=0.7),
    case("Swish", f32(3, 7, low=-3, high=3), alpha=1.7),
    case("Swish", f16(3, 7, low=-3, high=3), alpha=-0.5),
    case("Shrink", f32(3, 7), lambd=0.25, bias=0.125),
    case("Shrink", i32(9), lambd=2.0, bias=1.0),
    case("Shrink", u8(9), lambd=1.5, bias=0.5),
    case("Shrink", u8(9), lambd=1.5, bias=2.0**-33, name="bias that float32 loses"),
    case("Shrink", i64(9, low=-(2**20), high=2**20), lambd=2.5, bias=1.5),
    case("Cast", f32(3, 5, low=-300, high=300), to=DType.INT32),
    case("Cast", f32(3, 5, low=-100, high=100), to=DType.INT8),
    case("Cast", f32(3, 5, low=0, high=200), to=DType.UINT8),
    case("Cast", f32(3, 5), to=DType.FLOAT16),
    case("Cast", given([65504.0, 65519.0, 65520.0, 1e-8, nan, -inf]), to=DType.FLOAT16),
    case("Cast", f32(3, 5), to=DType.FLOAT64),
    case("Cast", f16(3, 5), to=DType.FLOAT32),
    case("Cast", f16(3, 5, low=-9, high=9), to=DType.INT64),
    case("Cast", given([0.0, -0.0, 0.3, nan, inf]), to=DType.BOOL),
    case("Cast", i64(5), to=DType.FLOAT32),
    case("Cast", i64(5), to=DType.INT32),
    case("Cast", given([1, 255, 256, -1, 1 << 40], "int64"), to=DType.UINT8),
    case("Cast", i32(5), to=DType.BOOL),
    case("Cast", boolean(5), to=DType.FLOAT32),
    case("Cast", boolean(5), to=DType.INT64),
    case("Cast", f32(), to=DType.INT64),
    case("Cast", f32(40, low=-(2.0**62), high=2.0**62), to=DType.INT64),
    case("Cast", given([0.999, -2.5, 2.0**31, -(2.0**31), 2.0**32, -(2.0**63)]), to=DType.INT64),
    case("Cast", i64(64, low=-(2**63), high=2**63 - 1), to=DType.FLOAT32),
    case("Cast", given([2**24 + 1, -(2**24) - 3, 2**53 + 1, (2**25 + 3) * 2**30 + 1], "int64"), to=DType.FLOAT32),
    case("Cast", i64(9, low=-(2**40), high=2**40), to=DType.INT32),
    case("Cast", given([1 << 32, 0, -1], "int64"), to=DType.BOOL),
    case("Cast", u8(9, high=255), to=DType.FLOAT32),
    case("Cast", i8(9, low=-128, high=127), to=DType.INT64),
    case("CastLike", f32(3, 5, low=-9, high=9), i64(1)),
    case("CastLike", i64(3, 5), f16(2, 2)),
]
