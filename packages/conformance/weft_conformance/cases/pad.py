"""Rows of Pad."""

from __future__ import annotations

from weft_conformance.cases.table import Case, case, const, f16, f32, i64

CASES: list[Case] = []
for _mode in ("constant", "reflect", "edge", "wrap"):
    CASES += [
        case("Pad", f32(3, 4), const([1, 2, 2, 1]), mode=_mode),
        case("Pad", f32(1, 3, 5, 6), const([0, 0, 2, 1, 0, 0, 3, 4]), mode=_mode),
        case("Pad", f32(2, 5, 6), const([1, 3]), None, const([-1]), mode=_mode),
        case("Pad", f32(2, 5, 6), const([1, 0, 3, 1]), None, const([2, 1]), mode=_mode),
        case("Pad", f16(1, 7, 4), const([0, 1, 2, 0, 3, 1]), mode=_mode),
        case("Pad", i64(7), const([3, 2]), mode=_mode),
    ]
CASES += [
    case("Pad", f32(3, 4), const([0, 1, 1, 0]), const(1.5, "float32")),
    case("Pad", f32(3, 4), const([-1, 1, 1, -2]), const(1.5, "float32")),
    case("Pad", f32(5, 6), const([-1, -2, -1, 0])),
    # channels behind the last one, which packed images hold as zeros anyway, and others
    case("Pad", f32(2, 6, 5, 3), const([0, 0, 0, 0, 0, 7, 1, 0])),
    case("Pad", f16(1, 4, 5, 3), const([0, 0, 0, 0, 0, 4, 0, 0])),
    case("Pad", f32(2, 6, 5, 3), const([0, 0, 0, 0, 0, 7, 0, 0]), const(1.5, "float32")),
    case("Pad", f32(5, 6), const([-1, 2, 0, -1]), mode="edge"),
    case("Pad", i64(2, 3), const([1, 1, 1, 1]), const(7)),
    case("Pad", i64(2, 3), const([1, 1, 1, 1]), i64()),
    case("Pad", f32(1, 7, 5, 6), const([0, 0, 2, 1, 0, 0, 3, 4]), f32()),
    case("Pad", f32(1, 4, 3, 3), const([0, 1, 1, 1, 0, 2, 1, 1]), const(float("-inf"), "float32")),
]
