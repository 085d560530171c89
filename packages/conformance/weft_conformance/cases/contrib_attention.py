"""Rows of ONNX Runtime's own attentions."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft_conformance.cases.table import Case, case, const, f16, f32, given, i8, u8

MS = "com.microsoft::"
PACKED = "onnxruntime takes Q, K and V in one in its CUDA provider alone"
SIDES = (f32(2, 4, 24), f32(2, 6, 24), f32(2, 6, 24))
SHARED: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2}


def lengths(*each: int, total: int) -> tuple[Any, Any]:
    """Return seqlens_k and total_sequence_length."""
    return given(each, "int32"), const([total], "int32")


CASES: list[Case] = [
    case(MS + "MultiHeadAttention", *SIDES, num_heads=3),
    case(MS + "MultiHeadAttention", *SIDES, const(f32(72)), given([6, 3], "int32"), num_heads=3, scale=0.3),
    case(
        MS + "MultiHeadAttention", *SIDES, None, given([[1] * 6, [1, 1, 1, 0, 0, 0]], "int32"), f32(1, 3, 4, 6),
        num_heads=3, mask_filter_value=-50.0,
    ),
    case(MS + "MultiHeadAttention", f32(2, 4, 3, 3, 8), num_heads=3, unverified=PACKED),
    case(MS + "MultiHeadAttention", f32(2, 4, 24), f32(2, 6, 3, 2, 8), num_heads=3, unverified=PACKED),
    case(MS + "MultiHeadAttention", f32(2, 4, 24), f32(2, 3, 6, 8), f32(2, 3, 6, 8), num_heads=3),
    case(
        MS + "MultiHeadAttention", f32(2, 1, 24), f32(2, 1, 24), f32(2, 1, 24), None, None, None,
        f32(2, 3, 5, 8), f32(2, 3, 5, 8), num_heads=3, outputs=3, unidirectional=1,
    ),
    # Stored as halves, projections with larger weights move the result by more than the table allows for: at twice the
    # weights by 2e-3. The attention of the rounded projections, computed exactly, is off from devices by half an ulp.
    case(
        MS + "Attention", f32(2, 5, 12), const(f32(12, 48, low=-0.5, high=0.5)), const(f32(48)),
        given([5, 2], "int32"), num_heads=2,
    ),
    case(
        MS + "Attention", f32(2, 5, 12), f32(12, 48), f32(48), given([[1] * 8, [0] * 3 + [1] * 5], "int32"),
        f32(2, 2, 2, 3, 8), num_heads=2, unidirectional=1, outputs=2,
    ),
    case(
        MS + "Attention", f32(2, 5, 12), const(f32(12, 52)), const(f32(52)), None, None, f32(2, 2, 5, 5),
        num_heads=2, qkv_hidden_sizes=(16, 16, 20),
    ),
    case(
        MS + "QAttention", u8(2, 5, 12, high=255), const(i8(12, 48, low=-63, high=63)), const(f32(48)),
        const(0.01, "float32"), const(0.005, "float32"), given([5, 2], "int32"), const(120, "uint8"), const(0, "int8"),
        num_heads=2,
    ),
    case(
        MS + "QAttention", u8(2, 5, 12, high=255), const(i8(12, 48, low=-63, high=63)), const(f32(48)),
        const(0.01, "float32"), const(f32(48, low=0.002, high=0.006)), None, const(120, "uint8"),
        const(np.zeros(48, np.int8)), f32(2, 2, 2, 3, 8), num_heads=2, unidirectional=1, outputs=2,
    ),
    case(MS + "GroupQueryAttention", f32(2, 5, 32), f32(2, 5, 16), f32(2, 5, 16), None, None,
         *lengths(4, 4, total=5), outputs=3, **SHARED),
    case(MS + "GroupQueryAttention", f32(1, 1, 128), None, None, f32(1, 2, 6, 16), f32(1, 2, 6, 16),
         *lengths(6, total=7), f32(9, 8), f32(9, 8), outputs=3, do_rotary=1, **SHARED),
    case(MS + "GroupQueryAttention", f32(2, 1, 64), f32(2, 1, 32), f32(2, 1, 32), f32(2, 2, 6, 16), f32(2, 2, 6, 16),
         *lengths(3, 5, total=6), f32(9, 8), f32(9, 8), outputs=3, do_rotary=1, rotary_interleaved=1, **SHARED),
    case(MS + "GroupQueryAttention", f32(1, 3, 32), f32(1, 3, 16), f32(1, 3, 16), f32(1, 2, 9, 8), f32(1, 2, 9, 8),
         *lengths(6, total=7), outputs=3, **SHARED),
    case(MS + "GroupQueryAttention", f32(1, 3, 32), f32(1, 3, 16), f32(1, 3, 16), f32(1, 2, 9, 8), f32(1, 2, 9, 8),
         *lengths(2, total=3), outputs=3, **SHARED),
    case(MS + "GroupQueryAttention", f32(2, 5, 32), f32(2, 5, 16), f32(2, 5, 16), None, None,
         *lengths(4, 4, total=5), softcap=2.0, local_window_size=2, **SHARED),
    case(MS + "GroupQueryAttention", f32(1, 1, 32), f32(1, 1, 16), f32(1, 1, 16), f32(1, 2, 6, 8), f32(1, 2, 6, 8),
         *lengths(6, total=7), local_window_size=3, smooth_softmax=1, outputs=3, **SHARED),
    *(
        case(MS + "RelativePositionBias", f32(8, 3), const([5]), const([7]), is_bidirectional=both, max_distance=6,
             unverified="onnxruntime has this op in its CUDA provider alone")
        for both in (0, 1)
    ),
    case(MS + "GroupQueryAttention", f16(1, 3, 64), None, None, None, None, *lengths(2, total=3), **SHARED),
]
