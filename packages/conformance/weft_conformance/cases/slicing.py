"""Rows of Slice."""

from __future__ import annotations

from weft_conformance.cases.table import Case, case, const, f16, f32, i64

CASES: list[Case] = [
    case("Slice", f32(5, 7), const([1, 2]), const([4, 6])),
    case("Slice", f32(5, 7), const([1]), const([-1]), const([1])),
    case("Slice", f32(5, 7), const([-3, -5]), const([1000, -2]), const([-1, 0])),
    case("Slice", f32(5, 7), const([0, 1]), const([5, 7]), const([0, 1]), const([2, 3])),
    case("Slice", f32(5, 7), const([-1]), const([-(2**63)]), const([0]), const([-1])),
    case("Slice", f32(5, 7), const([10, 5]), const([-9, 0]), const([0, 1]), const([-2, -1])),
    case("Slice", f32(5, 7), const([3]), const([3]), const([1])),
    case("Slice", f32(5, 7), const([4]), const([2**63 - 1]), const([1]), const([5])),
    case("Slice", f32(2, 17, 5, 6), const([3]), const([11]), const([1])),
    case("Slice", f32(1, 8, 6, 6), const([0, 0]), const([2**31, 2**31]), const([2, 3]), const([2, 2])),
    case("Slice", f32(1, 8, 6, 6), const([0, 1], "int32"), const([9, 9], "int32"), const([2, -1], "int32")),
    case("Slice", i64(9), const([1]), const([8]), const([0]), const([3])),
    # moved 8 or 16 bytes at a time, forwards and backwards, and starting inside such a piece
    case("Slice", f32(5, 16), const([4]), const([12]), const([1])),
    case("Slice", f32(5, 16), const([2]), const([14]), const([1])),
    case("Slice", f32(3, 5, 8), const([4]), const([-9]), const([1]), const([-2])),
    case("Slice", f16(4, 24), const([3, 4]), const([0, 20]), const([0, 1]), const([-1, 1])),
    case("Slice", f16(4, 5, 6), const([1, 1, 1]), const([3, 4, 5])),
]
