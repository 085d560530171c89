"""Rows of large tensors, one for each way in which work is divided.

They have more elements than 16 bits count, or more bytes than a staging buffer of 64 KiB, and odd sizes that no
tile divides.
"""

from __future__ import annotations

from weft.core.graph.dtypes import DType
from weft_conformance.cases.table import Case, case, const, f32, i32

CASES: list[Case] = [
    case("Relu", f32(104729)),
    case("Add", f32(311, 337), f32(337)),
    case("Where", const([True, False] * 36000, "bool"), f32(72000), f32(72000)),
    case("Cast", i32(104729, low=-99, high=99), to=DType.FLOAT32),
    case("Transpose", f32(7, 101, 149), perm=(2, 0, 1)),
    case("Concat", f32(3, 113, 151), f32(3, 127, 151), axis=1),
    case("Split", f32(3, 240, 151), const([113, 127]), axis=1, outputs=2),
    case("Slice", f32(337, 359), const([334, 2]), const([-999, 357]), const([0, 1]), const([-1, 1])),
    case("Gather", f32(70001, 2), const([70000, 0, 65537, 35000, -1])),
    case("Pad", f32(3, 157, 163), const([0, 3, 1, 0, 2, 5])),
    case("Resize", f32(1, 2, 131, 137), None, const([1, 1, 2, 2], "float32"), mode="nearest"),
    case("Softmax", f32(3, 70001)),
    case("Softmax", f32(20011, 5)),
    case("ReduceSum", f32(337, 311), const([0])),
    case("ReduceMax", f32(2, 70001), const([1])),
    case("GlobalAveragePool", f32(1, 3, 197, 193)),
    case("MaxPool", f32(1, 5, 163, 157), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    case("Conv", f32(1, 5, 163, 157), const(f32(6, 5, 3, 3)), const(f32(6)), pads=(1, 1, 1, 1)),
    case("Conv", f32(1, 67, 37, 41), const(f32(67, 1, 3, 3)), group=67, pads=(1, 1, 1, 1)),
    case("MatMul", f32(311, 67), const(f32(67, 337))),
]
