"""Rows of the matrix products."""

from __future__ import annotations

from math import inf, nan

from weft_conformance.cases.table import Case, case, const, f16, f32, f64, given, i32, i64, of_type

CASES: list[Case] = [
    case("MatMul", f32(5, 7), f32(7, 3)),
    case("MatMul", f32(1, 1), f32(1, 1)),
    case("MatMul", f32(65, 129), f32(129, 67)),
    case("MatMul", f32(16, 1003), const(f32(1003, 16))),
    case("MatMul", f32(2, 3, 5, 7), f32(2, 3, 7, 4)),
    case("MatMul", f32(2, 1, 5, 7), f32(3, 7, 4)),
    case("MatMul", f32(2, 3, 5, 7), f32(7, 4)),
    case("MatMul", f32(5, 7), f32(3, 7, 4)),
    case("MatMul", f32(7), f32(7)),
    case("MatMul", f32(7), f32(7, 4)),
    case("MatMul", f32(5, 7), f32(7)),
    case("MatMul", f32(7), f32(2, 3, 7, 4)),
    case("MatMul", f32(2, 3, 5, 7), f32(7)),
    case("MatMul", f32(0, 7), f32(7, 4)),
    case("MatMul", f32(5, 0), f32(0, 4)),
    case("MatMul", f16(5, 70), f16(70, 3)),
    case("MatMul", f64(5, 7), f64(7, 3)),
    case("MatMul", f64(2, 3, 40), f64(2, 40, 8)),
    case("MatMul", f64(2, 5, 40), const(f64(40, 8))),
    case("MatMul", i32(5, 7), i32(7, 3)),
    case("MatMul", i64(2, 5, 7), i64(7, 3)),
    case("MatMul", i64(2, 1, 5, 7, low=-(2**40), high=2**40), i64(3, 7, 4, low=-(2**40), high=2**40)),
    case("MatMul", of_type("uint64", 7, low=0, high=2**64 - 1), of_type("uint64", 7, 4, low=0, high=2**64 - 1)),
    case("MatMul", of_type("uint32", 5, 7, low=0, high=2**32 - 1), of_type("uint32", 7, low=0, high=2**32 - 1)),
    case("Gemm", i32(7, 5), i32(3, 7), i32(3), transA=1, transB=1),
    case("Gemm", i64(5, 7), i64(7, 3), i64(5, 1)),
    case("Gemm", i32(5, 7), i32(7, 3), alpha=0.5),
    case("Gemm", i64(7, 5), i64(3, 7), i64(3), transA=1, transB=1, alpha=3.0, beta=-2.0),
    case("Gemm", i32(5, 7), i32(7, 3), i32(5, 1), alpha=0.25, beta=0.5),
    case("Gemm", of_type("uint32", 5, 7, low=1, high=9), of_type("uint32", 7, 3, low=1, high=9),
         of_type("uint32", 3, low=0, high=7), alpha=2.0, beta=-1.0),
    case("Gemm", f32(5, 7), f32(7, 3)),
    case("Gemm", f32(5, 7), f32(7, 3), None, alpha=0.5),
    case("Gemm", f32(5, 7), f32(7, 3), f32(5, 3)),
    case("Gemm", f32(5, 7), f32(7, 3), const(f32(3))),
    case("Gemm", f32(5, 7), f32(7, 3), f32(5, 1), beta=0.5),
    case("Gemm", f32(5, 7), f32(7, 3), f32(1, 3), alpha=2.0, beta=-1.5),
    case("Gemm", f32(5, 7), f32(7, 3), f32(1)),
    case("Gemm", f32(5, 7), f32(7, 3), f32()),
    case("Gemm", f32(5, 7), f32(7, 3), f32(3), beta=0.0),
    case("Gemm", f32(7, 5), f32(7, 3), f32(3), transA=1),
    case("Gemm", f32(5, 7), const(f32(3, 7)), const(f32(3)), transB=1),
    case("Gemm", f32(7, 5), f32(3, 7), f32(3), transA=1, transB=1, alpha=0.25, beta=3.0),
    case("Gemm", f32(1, 513), const(f32(1001, 513)), const(f32(1001)), transB=1),
    case("Gemm", f32(7, 3), f32(70, 7), f32(3, 1), transA=1, transB=1, alpha=0.25, beta=3.0),
    case("Gemm", f16(5, 70), f16(3, 70), f16(3), transB=1, alpha=0.5),
    case("Gemm", f64(5, 7), f64(7, 3), f64(3), alpha=0.5, beta=2.0),
    case("Gemm", f64(5, 8), const(f64(8, 4)), const(f64(4)), alpha=0.25),
]
_STRANGE = [[inf, 0, 1], [-inf, inf, 0], [0, -0.0, 0]]
CASES += [
    case("MatMul", given([[nan, 0, 1], *_STRANGE]), given([[0, 1], [nan, 2], [1, 1]]), name="special"),
    *(case("Gemm", given(_STRANGE), given([[0, 1], [1, 2], [1, 1]]), given([nan, 0]), alpha=alpha, beta=0.0,
           name="special") for alpha in (0.0, 1.0)),
    case("Gemm", f32(3, 4), const(f32(4, 2)), const(given([nan, inf])), beta=0.0, name="special"),
]
