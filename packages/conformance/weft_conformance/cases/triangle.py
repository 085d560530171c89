"""Rows of the ops whose elements follow from their position."""

from __future__ import annotations

from weft_conformance.cases.table import Case, boolean, case, const, f16, f32, f64, given, i64, u8

CASES: list[Case] = [
    case("Trilu", f32(3, 5)),
    case("Trilu", f32(2, 4, 3), const(-1), upper=0),
    case("Trilu", f32(4, 3), given(1, "int64")),
    case("Trilu", i64(2, 3, 3), const(2), upper=0),
    *(case("Trilu", f32(3, 3), given(k, "int64")) for k in (2**32, -(2**32), -(2**31))),
    case("Trilu", f16(3, 4), const(-7)),
    case("Trilu", boolean(4, 4)),
    case("Trilu", f32(0, 3, 3)),
    case("ReverseSequence", f32(4, 3, 2), given([4, 1, 2], "int64")),
    case("ReverseSequence", f32(3, 4), given([4, 1, 2], "int64"), batch_axis=0, time_axis=1),
    case("ReverseSequence", u8(3, 2), const([2, 3])),
    case("ReverseSequence", f64(2, 2), const([2, 0])),
]
