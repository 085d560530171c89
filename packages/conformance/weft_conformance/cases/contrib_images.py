"""Rows of ONNX Runtime's own ops in networks that make images."""

from __future__ import annotations

from weft_conformance.cases.table import Case, case, const, f16, f32

MS = "com.microsoft::"
CUDA = "onnxruntime has this op in its CUDA provider alone"

CASES: list[Case] = [
    case(MS + "GroupNorm", f32(2, 4, 5, 6), const(f32(6)), const(f32(6)), groups=3, activation=1, unverified=CUDA),
    case(MS + "GroupNorm", f16(2, 6, 5), const(f32(6)), const(f32(6)), groups=2, channels_last=0, unverified=CUDA),
    case(MS + "SkipGroupNorm", f32(2, 4, 5, 6), const(f32(6)), const(f32(6)), f32(2, 6), const(f32(6)), groups=2,
         outputs=2, unverified=CUDA),
    case(MS + "SkipGroupNorm", f32(2, 4, 5, 6), const(f32(6)), const(f32(6)), f32(2, 4, 5, 6), groups=2, activation=1,
         unverified=CUDA),
    case(MS + "NhwcConv", f32(1, 5, 6, 4), const(f32(6, 3, 3, 2)), const(f32(6)), group=2, pads=(1, 1, 1, 1),
         strides=(2, 1), unverified=CUDA),
]
