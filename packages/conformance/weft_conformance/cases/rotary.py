"""Rows of rotary embeddings."""

from __future__ import annotations

from weft_conformance.cases.table import Case, case, const, f16, f32, given

IDS = given([[0, 3, 1], [5, 2, 4]], "int64")
CASES: list[Case] = [
    case("RotaryEmbedding", f32(2, 4, 3, 8), f32(6, 4), f32(6, 4), IDS),
    case("RotaryEmbedding", f32(2, 3, 32), const(f32(6, 4)), const(f32(6, 4)), IDS, num_heads=4, interleaved=1),
    case("RotaryEmbedding", f32(2, 4, 3, 8), f32(2, 3, 2), f32(2, 3, 2), rotary_embedding_dim=4),
    case("RotaryEmbedding", f32(2, 4, 3, 8), f32(2, 3, 4), f32(2, 3, 4), interleaved=1),
    case("RotaryEmbedding", f16(1, 3, 16), f16(1, 3, 4), f16(1, 3, 4), num_heads=2),
    case("com.microsoft::RotaryEmbedding", f32(2, 3, 32), IDS, f32(6, 4), f32(6, 4)),
    case("com.microsoft::RotaryEmbedding", f32(2, 4, 3, 8), given([2], "int64"), f32(6, 4), f32(6, 4), interleaved=1),
    case(
        "com.microsoft::RotaryEmbedding", f32(1, 3, 32), given([2], "int64"), f32(6, 2), f32(6, 2),
        num_heads=4, rotary_embedding_dim=4,
    ),
]
