"""Rows of linear attention."""

from __future__ import annotations

from weft_conformance.cases.table import Case, Input, case, f16, f32


def decay(*shape: int) -> Input:
    """Return logarithms of factors below 1."""
    return f32(*shape, low=-2, high=0)


QKV = (f32(2, 3, 16), f32(2, 3, 8), f32(2, 3, 12))

CASES: list[Case] = [
    case("LinearAttention", *row, update_rule=rule, q_num_heads=4, kv_num_heads=2, outputs=2)
    for rule, row in (
        ("linear", QKV),
        ("gated", (*QKV, f32(2, 2, 4, 6), decay(2, 3, 2))),
        ("delta", (*QKV, None, None, f32(2, 3, 1))),
        ("gated_delta", (*QKV, f32(2, 2, 4, 6), decay(2, 3, 8), f32(2, 3, 2))),
    )
]
HALVES = [f16(1, 3, 8)] * 3
CASES += [case("LinearAttention", *HALVES, q_num_heads=2, kv_num_heads=2, update_rule="linear", scale=0.5, outputs=2)]
