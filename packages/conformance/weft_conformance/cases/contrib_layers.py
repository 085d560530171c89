"""Rows of ONNX Runtime's own norms, activations, product and embeddings."""

from __future__ import annotations

from weft_conformance.cases.table import Case, case, const, f16, f32, given, i32, u8

MS = "com.microsoft::"
CUDA = "onnxruntime has this op in its CUDA provider alone"
MASK = given([[1, 1, 1, 0], [1, 1, 0, 0]], "int32")
TABLES = (f32(7, 6), f32(5, 6), f32(2, 6), const(f32(6)), const(f32(6)))

CASES: list[Case] = [
    case("SimplifiedLayerNormalization", f32(2, 3, 8), const(f32(8)), epsilon=1e-3),
    case(MS + "SkipLayerNormalization", f32(2, 3, 8), f32(2, 3, 8), const(f32(8)), const(f32(8)), epsilon=1e-3),
    case("SimplifiedLayerNormalization", f32(2, 3, 8), const(f32(8)), outputs=2),
    case("SimplifiedLayerNormalization", f16(2, 3, 8), const(f16(3, 8)), axis=1, outputs=2),
    case(MS + "SkipLayerNormalization", f32(2, 3, 8), f32(3, 8), const(f32(8)), None, const(f32(8)), outputs=4),
    case(MS + "SkipLayerNormalization", f16(2, 3, 8), f16(2, 3, 8), const(f16(8)), const(f16(8)), outputs=4),
    case(MS + "SkipLayerNormalization", f16(2, 8), f16(2, 8), const(f16(8)), const(f16(8)), epsilon=1e-3),
    case(MS + "SkipSimplifiedLayerNormalization", f32(2, 3, 8), f32(2, 3, 8), const(f32(8)), const(f32(8))),
    case(MS + "SkipSimplifiedLayerNormalization", f32(2, 3, 8), f32(3, 8), const(f32(8)), outputs=4),
    case(
        MS + "EmbedLayerNormalization", i32(2, 4, low=0, high=6), i32(2, 4, low=0, high=1), *TABLES, MASK,
        outputs=3, epsilon=1e-3,
    ),
    case(
        MS + "EmbedLayerNormalization", i32(2, 4, low=0, high=6), None, f32(7, 6), f32(5, 6), None,
        const(f32(6)), const(f32(6)), None, given([[3, 2, 1, 0]] * 2, "int32"), outputs=2,
    ),
    case(
        MS + "QEmbedLayerNormalization", i32(2, 4, low=0, high=6), i32(2, 4, low=0, high=1), const(u8(7, 6, high=255)),
        const(u8(5, 6, high=255)), const(u8(2, 6, high=255)), const(u8(6, high=255)), const(u8(6, high=255)), MASK,
        *(const(s, "float32") for s in (0.01, 0.02, 0.015, 0.004, 0.003)), *(const(128, "uint8") for _ in range(5)),
        outputs=2, epsilon=1e-3,
    ),
    case(MS + "BiasGelu", f32(2, 3, 8), f32(8)),
    case(MS + "Gelu", f32(2, 3, 8)),
    case(MS + "FastGelu", f32(2, 3, 8), f32(8)),
    case(MS + "FastGelu", f32(2, 9)),
    case(MS + "GemmFastGelu", f32(2, 3, 8), const(f32(8, 5)), f32(5), unverified=CUDA),
    case(MS + "TransposeMatMul", f32(7, 5), f32(3, 7), transA=1, transB=1),
    case(MS + "QuickGelu", f32(2, 3, 8), alpha=1.5),
    case(MS + "BiasSplitGelu", f32(2, 3, 8), f32(8), unverified=CUDA),
    case(MS + "BiasAdd", f32(2, 3, 8), f32(8), f32(2, 3, 8), unverified=CUDA),
    case(MS + "FusedMatMul", f32(2, 5, 7), f32(2, 3, 7), transB=1, alpha=0.5),
    case(MS + "FusedMatMul", f32(7, 5), const(f32(7, 3)), transA=1),
    case(MS + "FusedMatMul", f32(5, 2, 7), f32(7, 2, 3), transBatchA=1, transBatchB=1),
    case(MS + "FusedMatMul", f32(7, 2, 3, 5), f32(3, 2, 3, 7), transBatchA=1, transA=1, transBatchB=1, transB=1),
]
