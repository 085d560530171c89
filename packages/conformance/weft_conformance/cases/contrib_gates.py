"""Rows of ONNX Runtime's own gates and norms in groups."""

from __future__ import annotations

from weft_conformance.cases.table import Case, case, const, f16, f32

MS = "com.microsoft::"

CASES: list[Case] = [
    case(MS + "ScaledSiLU", f32(2, 3, 5), alpha=1.5),
    case(MS + "ScaledSiLU", f32(2, 3, 5), f32()),
    case(MS + "ScaledSiLU", f16(3, 8), const(f32())),
    case(MS + "GatedAdd", f32(2, 3, 5), f32(2, 3, 5), f32(2, 3, 1)),
    case(MS + "GatedAdd", f16(4, 8), f16(4, 8), f16(4, 1)),
    case(MS + "GatedRMSNorm", f32(2, 3, 12), const(f32(4)), f32(2, 3, 12)),
    case(MS + "GatedRMSNorm", f16(2, 24), const(f16(24)), f16(2, 24), activation="sigmoid", epsilon=0.01),
    case(MS + "GatedRMSNorm", f32(3, 8), f32(1, 4), f32(3, 8)),
    case(MS + "BranchwiseRMSNorm", f32(2, 3, 20), const(f32(20)), epsilon=0.01),
    case(MS + "BranchwiseRMSNorm", f32(2, 24), const(f32(3, 8)), num_branches=3),
    case(MS + "BranchwiseRMSNorm", f16(2, 3, 8), const(f16(24))),
    case(MS + "BranchwiseRMSNorm", f32(2, 3, 8)),
    case(MS + "LinearAttentionGate", f32(2, 3, 4), const(f32(4)), const(f32(4)), f32(2, 3, 4), outputs=2),
    case(MS + "LinearAttentionGate", f16(2, 3, 4), f32(4), f32(4)),
]
