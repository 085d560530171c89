"""Rows for quantised numbers: to and from floats, and products of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.core.graph.dtypes import DType
from weft_conformance.cases.table import Input, case, const, f16, f32, given, i8, i32, of_type, u8

STEP = given(0.1)
F8 = "float8_e4m3fn"
STRANGE = given([np.nan, np.inf, -np.inf, 1.5, 1e30, -1e30])
PAIR = "what the pass carry_quantisation makes of QuantizeLinear and DequantizeLinear, which have rows"
NOTHING = Input("float32", (2, 2, 0))
ENDS = given([2**31 - 1, -(2**31), 5, 0], "int32")




OUTSIDE = given(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, -0.5, 127.5, -129.0, 255.5, 256.0, 1e10, -1e10, 3e38, -3e38]
)
CASES = [
    # onnx's evaluator converts to integers before it limits them.
    *(case("QuantizeLinear", OUTSIDE, kind(given(scale)), kind(given(3, to)), name="outside", opset=21,
           oracles=("ort",))
      for to in ("int8", "uint8", "int16", "uint16") for kind in (const, replace)
      for scale in (1.0, 0.0, np.inf, np.nan, -1.0, 1e-38)),
    *(case("DequantizeLinear", given([-128, -1, 0, 1, 127], "int8"), given(scale), given(0, "int8"), name="outside")
      for scale in (0.0, np.inf, np.nan, 3e38)),
    case("QuantizeLinear", f32(3, 7, low=-20, high=20), STEP, given(128, "uint8")),
    case("QuantizeLinear", f32(3, 7, low=-20, high=20), STEP, given(3, "int8")),
    case("QuantizeLinear", f32(2, 7, low=-20, high=20), STEP),
    case("QuantizeLinear", given([0.5, 1.5, 2.5, -0.5, -1.5, 300, -300]), given(1.0), given(0, "int8"), name="ties"),
    # Quotients that are ties once they are rounded to float32, and tell a division that is off by one ulp.
    case("QuantizeLinear", given([0.15, 0.45, 0.55, 0.85, -0.45, -0.55]), STEP, given(9, "uint8"), name="rounded ties"),
    case("weft::Quotient", f32(3, 5, low=-9, high=9), given(255.0), unverified="an op of ours: one division"),
    case("QuantizeLinear", f32(2, 3, 4, low=-9, high=9), given([0.1, 0.2, 0.3]), given([0, 5, 9], "uint8")),
    case("QuantizeLinear", f32(2, 3, low=-9, high=9), given([0.1, 0.2]), given([0, 5], "int16"), axis=0),
    case("QuantizeLinear", f32(5, low=-9, high=9), STEP, given(7, "uint16")),
    case("QuantizeLinear", f32(4, 6, low=-4, high=4), f32(4, 2, low=0.3, high=1), axis=1, block_size=3,
         output_dtype=DType.INT4),
    case("QuantizeLinear", f32(5, 3, low=-4, high=4), f32(3, 3, low=0.3, high=1), of_type("uint4", 3, 3, low=0, high=9),
         axis=0, block_size=2),
    case("QuantizeLinear", f32(9, low=-3, high=3), given(0.5), given(1, "uint2")),
    # onnx's evaluator, which newer opsets are left to, casts infinities.
    *(case("QuantizeLinear", STRANGE, given(0.5), given(3, kind), opset=21)
      for kind in ("uint8", "int8", "int16", "uint16")),
    *(case("DynamicQuantizeLinear", given([*first, -1, 2])) for first in ([np.nan, 1], [1, np.nan], [np.inf, 1])),
    case("QuantizeLinear", f32(2, 4, 0), NOTHING, Input("uint8", (2, 2, 0)), axis=1, block_size=2),
    case("DequantizeLinear", u8(2, 4, 0), NOTHING, Input("uint8", (2, 2, 0)), axis=1, block_size=2),
    *(case("DequantizeLinear", ENDS, given(0.5), given(zero, "int32"), oracles=(),
           unverified="onnxruntime wraps in 32 bits, and onnx's evaluator rounds before it subtracts")
      for zero in (-(2**31), 2**31 - 1)),
    case("QuantizeLinear", f32(9, low=-3, high=3), given(0.5), given(0, "int2")),
    case("QuantizeLinear", f32(9, low=-900, high=900), given(1.5), given(0, "float8_e4m3fn")),
    case("QuantizeLinear", f32(9, low=-900, high=900), given(1.5), given(0, "float8_e4m3fn"), saturate=0),
    case("QuantizeLinear", f32(9, low=-9, high=9), given(1.5), output_dtype=DType.FLOAT8E5M2),
    case("QuantizeLinear", f32(9, low=-9, high=9), given(1.5), given(0, "float4_e2m1fn")),
    case("QuantizeLinear", i32(9, low=-900, high=900), given(3, "float32"), given(1, "int8")),
    case("QuantizeLinear", f16(9, low=-9, high=9), given(0.25, "float16"), given(1, "uint8")),
    case("QuantizeLinear", f32(9, low=-9, high=9), STEP, given(1, "uint8"), precision=DType.FLOAT16),
    case("DequantizeLinear", u8(3, 7, high=255), STEP, given(128, "uint8")),
    case("DequantizeLinear", i8(3, 7, low=-128, high=127), STEP),
    case("DequantizeLinear", u8(2, 3, 4, high=255), given([0.1, 0.2, 0.3]), given([0, 5, 9], "uint8")),
    case("DequantizeLinear", of_type("int16", 2, 3, low=-900, high=900), given([0.1, 0.2]), given([0, 5], "int16"),
         axis=0),
    case("DequantizeLinear", of_type("uint16", 5, low=0, high=60000), STEP, given(7, "uint16")),
    case("DequantizeLinear", i32(5, low=-(2**30), high=2**30), STEP),
    case("DequantizeLinear", of_type("int4", 4, 6, low=-8, high=7), f32(4, 2), axis=1, block_size=3),
    case("DequantizeLinear", of_type("uint4", 5, 3, low=0, high=15), f32(3, 3), of_type("uint4", 3, 3, low=0, high=9),
         axis=0, block_size=2),
    # onnxruntime wants both to be scalars
    case("DequantizeLinear", of_type("int4", 5, low=-8, high=7), STEP, given([1], "int4"), oracles=("onnx",)),
    case("DequantizeLinear", of_type("int2", 5, low=-2, high=1), STEP, given(1, "int2")),
    case("DequantizeLinear", of_type("float8_e5m2", 5, low=-9, high=9), STEP, given(0, "float8_e5m2")),
    case("DequantizeLinear", of_type("float4_e2m1fn", 5, low=-9, high=9), STEP),
    case("DequantizeLinear", u8(5, high=255), given(0.25, "float16"), given(9, "uint8")),
    case("DequantizeLinear", u8(5, high=255), STEP, given(9, "uint8"), output_dtype=DType.FLOAT16),
    *(case("weft::FakeQuantize", f32(3, 7, low=-40, high=40), scale=0.1, zero=zero, to=to, unverified=PAIR)
      for to, zero in ((DType.UINT8, 128), (DType.INT8, -3), (DType.INT16, 9))),
    case("weft::FakeQuantize", OUTSIDE, scale=1.0, zero=3, to=DType.UINT8, name="outside", unverified=PAIR),
    case("weft::FakeQuantize", f16(2, 5, 3, 3, low=-9, high=9), scale=0.25, zero=1, to=DType.INT8, unverified=PAIR),
    case("DynamicQuantizeLinear", f32(3, 4, low=-3, high=7)),
    case("DynamicQuantizeLinear", f32(5, low=1, high=7)),
    case("DynamicQuantizeLinear", given([0.0, 0.0]), oracles=("ort",)),  # onnx.reference divides by zero
    # The scale is 0.1: all but the first two are quotients that are ties once they are rounded to float32.
    case("DynamicQuantizeLinear", given([25.5, 0, 0.15, 0.45, 0.55, 0.85])),
    case("MatMulInteger", u8(3, 5, high=255), i8(5, 4, low=-128, high=127)),
    case("MatMulInteger", u8(2, 3, 300, high=255), u8(300, 6, high=255), given(9, "uint8"), given(128, "uint8")),
    case("MatMulInteger", i8(3, 5, low=-128, high=127), i8(5, 4, low=-128, high=127), given(3, "int8"), i8(4)),
    case("QLinearMatMul", u8(3, 40, high=255), STEP, given(128, "uint8"), i8(40, 5, low=-128, high=127), given(0.02),
         given(1, "int8"), given(0.5), given(99, "uint8"), oracles=("onnx",)),  # onnxruntime's sums saturate at 16 bits
    case("QLinearMatMul", i8(2, 3, 7, low=-128, high=127), STEP, given(3, "int8"), i8(7, 5, low=-128, high=127),
         f32(5, low=0.01, high=0.1), i8(5), given(0.5), given(4, "int8")),
    case("QLinearMatMul", of_type(F8, 3, 8, low=-9, high=9), given(0.5), given(0, F8), of_type(F8, 8, 5, low=-2),
         given(0.25), given(0, F8), given(0.75), given(0, F8), unverified="no oracle multiplies floats of eight bits"),
    case("ConvInteger", u8(1, 3, 5, 6, high=255), u8(4, 3, 3, 3, high=255), given(128, "uint8"), pads=(1, 1, 1, 1)),
    case("ConvInteger", u8(2, 4, 5, 6, high=255), u8(4, 2, 2, 3, high=255), given(9, "uint8"), given(7, "uint8"),
         group=2, strides=(2, 1), dilations=(1, 2)),
    case("ConvInteger", u8(1, 2, 9, high=255), u8(3, 2, 3, high=255), given(9, "uint8")),
    case("QLinearConv", u8(1, 3, 5, 6, high=255), STEP, given(128, "uint8"), u8(4, 3, 3, 3, high=255), given(0.02),
         given(120, "uint8"), given(0.9), given(100, "uint8"), pads=(1, 1, 1, 1)),
    case("QLinearConv", i8(1, 4, 5, 6, low=-128, high=127), STEP, given(3, "int8"),
         const(i8(4, 1, 3, 3, low=-128, high=127)), const(f32(4, low=0.01, high=0.1)), const(np.zeros(4, np.int8)),
         given(0.3), given(0, "int8"), const(i32(4, low=-999, high=999)), group=4, strides=(2, 2)),
    case("com.microsoft::DequantizeLinear", of_type("uint16", 5, low=0, high=60000), STEP, given(7, "uint16")),
    case("com.microsoft::QuantizeLinear", f32(5, low=-9, high=9), STEP, given(7, "int16")),
    case("com.microsoft::MatMulNBits", f32(2, 3, 64), const(u8(5, 2, 16, high=255)),
         const(f32(10, low=0.001, high=0.05)), K=64, N=5, block_size=32),
    case("com.microsoft::MatMulNBits", f32(3, 32), const(u8(5, 2, 16, high=255)), const(f32(10, low=0.001, high=0.05)),
         const(u8(10, high=255)), None, const(f32(5)), K=32, N=5, bits=8, block_size=16),
    case("com.microsoft::MatMulNBits", f32(3, 48), const(u8(4, 3, 8, high=255)), const(f32(12, low=0.001, high=0.05)),
         const(u8(8, high=255)), K=48, N=4, block_size=16),
    # Beside packed zero points, onnxruntime computes something else even where the order is that in which they lie.
    case("com.microsoft::MatMulNBits", f32(3, 48), const(u8(4, 3, 8, high=255)), const(f32(12, low=0.001, high=0.05)),
         None, const(np.arange(48) * 5 % 3, "int32"), K=48, N=4, block_size=16),
    *(case("com.microsoft::MatMulBnb4", f32(2, 3, 20), const(u8(50, high=255)), const(f32(7, low=0.1)), K=20, N=5,
           block_size=16, quant_type=kind) for kind in (0, 1)),
    case("com.microsoft::GatherBlockQuantized", const(of_type("uint4", 6, 32, low=0, high=15)),
         given([3, 0, 5], "int64"), const(f32(6, 2)), const(of_type("uint4", 6, 2, low=0, high=15)), block_size=16),
    case("com.microsoft::GatherBlockQuantized", const(of_type("int4", 6, 32, low=-8, high=7)),
         given([[3], [0]], "int64"), const(f32(6, 2)), block_size=16),
]
