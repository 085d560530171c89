"""Rows of Concat and Split."""

from __future__ import annotations

from weft_conformance.cases.table import Case, case, const, f16, f32, i64, u8

CASES: list[Case] = [
    case("Concat", f32(1, 3, 4, 4), f32(1, 5, 4, 4), axis=1),
    case("Concat", f32(1, 4, 4, 4), f32(1, 8, 4, 4), axis=1),
    case("Concat", f32(2, 3), f32(5, 3), axis=0),
    case("Concat", f32(2, 3, 4), f32(2, 3, 1), f32(2, 3, 17), axis=-1),
    case("Concat", f32(2, 1, 4), f32(2, 7, 4), f32(2, 8, 4), f32(2, 3, 4), axis=-2),
    case("Concat", f32(2, 3), axis=1),
    case("Concat", f32(0, 3), f32(2, 3), axis=0),
    case("Concat", i64(2), i64(3), axis=0),
    case("Concat", f16(3, 5, 2), f16(3, 1, 2), axis=1),
    case("Concat", f32(1, 3, 4, 4), const(f32(1, 2, 4, 4)), axis=1),
    case("Concat", f16(3, 8), f16(3, 4), f16(3, 2), axis=1),
    case("Concat", u8(2, 16), u8(2, 8), axis=1),
    case("Split", f32(3, 12), const([4, 8]), axis=1, outputs=2),
    case("Split", f32(6, 4), num_outputs=3, outputs=3),
    case("Split", f32(7, 4), num_outputs=3, outputs=3),
    case("Split", f32(2, 8, 5), const([3, 1, 4]), axis=1, outputs=3),
    case("Split", f32(2, 17), const([5, 12]), axis=-1, outputs=2),
    case("Split", f32(2, 6), const([0, 6]), axis=-1, outputs=2),
    case("Split", f16(1, 8, 3, 3), axis=1, num_outputs=2, outputs=2),
    case("Split", f32(3, 5), axis=0, num_outputs=1, outputs=1),
    # more inputs or outputs than a kernel has arguments
    case("Concat", *(f32(2, 1 + k % 5, 3) for k in range(33)), axis=1, name="many"),
    case("Split", f32(2, 97), axis=1, num_outputs=33, outputs=33, name="many"),
]
