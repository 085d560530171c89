"""Rows of inputs without elements: a dimension of 0, as a later stage of a detector has that gets no boxes."""

from __future__ import annotations

from weft.conformance.cases.table import Case, boolean, case, const, f32, given, i32, i64

ONNX = ("onnx",)
"""The oracles of rows for which ONNX Runtime ends the process."""

CASES: list[Case] = [
    # The kernels that select count in a run, and write the sizes of what has no elements.
    case("NonZero", f32(0), bounded=True),
    case("NonZero", boolean(3, 0, 2), bounded=True),
    case("NonZero", i64(0, 3), bounded=True),
    case("NonZero", given(2.5), bounded=True, oracles=(), unverified="oracles take a scalar for a list of one"),
    case("NonZero", given(0, "bool"), bounded=True, oracles=(), unverified="oracles take a scalar for a list of one"),
    case("Compress", f32(3, 0), given([True, False, True], "bool"), axis=0, bounded=True),
    case("Compress", f32(0, 4), given([False, True, True], "bool"), axis=1, bounded=True),
    case("Compress", f32(3, 4), boolean(0), axis=1, bounded=True),
    case("Compress", i64(0, 4), boolean(3), axis=0, bounded=True),
    case("Compress", f32(2, 0), boolean(3), bounded=True),
    case("Unique", f32(0), bounded=True),
    case("Unique", i64(3, 0), bounded=True),
    case("Unique", f32(3, 0), axis=0, bounded=True, oracles=ONNX),
    case("Unique", f32(3, 0), axis=1, sorted=0, bounded=True),
    case("Unique", boolean(0, 3), axis=0, bounded=True),
    case("NonMaxSuppression", f32(1, 0, 4), f32(1, 2, 0), const([5]), const(0.3, "float32"), bounded=True, most=5),
    case("NonMaxSuppression", f32(0, 6, 4), f32(0, 1, 6), given([3], "int64"), bounded=True),
    case("NonMaxSuppression", f32(1, 6, 4), f32(1, 0, 6), given([3], "int64"), given([0.5]), bounded=True),
    case("NonMaxSuppression", f32(1, 6, 4), f32(1, 1, 6), const([0]), bounded=True, most=0),
    case("NonMaxSuppression", f32(1, 6, 4), f32(1, 1, 6), bounded=True),
    case("TopK", f32(0, 7), const([3])),
    case("TopK", f32(3, 0, 2), const([0]), axis=1),
    case("TopK", i64(2, 0, 4), const([2]), largest=0),
    case("MatMul", f32(5, 0), const(f32(0, 4))),
    case("MatMul", f32(2, 5, 0), const(f32(0, 3))),
    case("MatMul", f32(2, 5, 0), f32(2, 0, 3)),
    case("MatMul", f32(0), f32(0)),
    case("MatMul", f32(0, 5, 7), const(f32(7, 3))),
    case("Gemm", f32(5, 0), const(f32(0, 3)), const(f32(3))),
    case("Gemm", f32(5, 0), const(f32(4, 0)), f32(5, 1), transB=1, beta=0.5),
    case("Gemm", f32(0, 5), f32(0, 3), f32(3), transA=1),
    case("Gemm", f32(0, 7), const(f32(7, 3)), const(f32(3))),
    # Sums of nothing are 0.
    case("Einsum", f32(3, 0), f32(0, 5), equation="ij,jk->ik"),
    case("Einsum", f32(0, 4), f32(4, 5), equation="ij,jk->ik"),
    case("Einsum", f32(3, 0, 2), equation="aib->ba"),
    case("LSTM", f32(4, 0, 3), const(f32(1, 20, 3)), const(f32(1, 20, 5)), hidden_size=5, outputs=3, oracles=ONNX),
    case("GRU", f32(4, 0, 3), const(f32(1, 15, 3)), const(f32(1, 15, 5)), None, i32(0), hidden_size=5, outputs=2,
         oracles=ONNX),
    case("RNN", f32(0, 4, 3), f32(1, 5, 3), f32(1, 5, 5), hidden_size=5, outputs=2, layout=1),
    case("LSTM", f32(0, 2, 3), const(f32(1, 20, 3)), const(f32(1, 20, 5)), hidden_size=5, outputs=3),
    case("GRU", f32(2, 0, 3), f32(1, 15, 3), f32(1, 15, 5), None, None, f32(2, 1, 5), hidden_size=5, outputs=2,
         layout=1, unverified="onnxruntime has no layout 1, and onnx takes a first state for one of a batch of 1"),
    case("RNN", f32(4, 2, 0), const(f32(1, 5, 0)), const(f32(1, 5, 5)), const(f32(1, 10)), hidden_size=5, outputs=2),
]  # fmt: skip
