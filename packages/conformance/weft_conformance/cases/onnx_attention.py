"""Rows of ONNX's Attention."""

from __future__ import annotations

from typing import Any

from weft_conformance.cases.table import Case, Input, boolean, case, f16, f32, given


def heads(queries: int = 4, keys: int = 6, *, each: int = 1, width: int = 8, made: Any = f32) -> list[Input]:
    """Return Q, K and V of three heads of keys, each shared by `each` of queries."""
    return [made(2, 3 * each, queries, 8), made(2, 3, keys, 8), made(2, 3, keys, width)]


def flat(queries: int = 4, keys: int = 6, *, each: int = 1) -> list[Input]:
    """Return Q, K and V with heads side by side."""
    return [f32(2, queries, 24 * each), f32(2, keys, 24), f32(2, keys, 30)]


SIDES: dict[str, Any] = {"q_num_heads": 3, "kv_num_heads": 3}
PAST = (f32(2, 3, 5, 8), f32(2, 3, 5, 8))

CASES: list[Case] = [
    case("Attention", *heads()),
    case("Attention", *flat(), scale=0.3, **SIDES),
    case("Attention", *heads()[:2], f16(2, 3, 6, 8), None, PAST[0], f16(2, 3, 5, 8), outputs=3),
    case("Attention", *flat(), boolean(4, 6), **SIDES),
    case("Attention", *flat(each=2), f32(2, 1, 4, 6), q_num_heads=6, kv_num_heads=3),
    case("Attention", *heads(width=10), f32(6), is_causal=1),
    case("Attention", *heads(each=2), boolean(2, 6, 4, 6), is_causal=1),
    case("Attention", *heads(each=2), boolean(2, 1, 1, 6)),
    case("Attention", *heads(), f32(4, 11), *PAST, is_causal=1, outputs=3),
    case("Attention", *flat(1, 1, each=2)[:2], f32(2, 1, 24), None, *PAST, outputs=3, q_num_heads=6, kv_num_heads=3),
    case("Attention", *heads(), boolean(4, 6), softcap=2.0, qk_matmul_output_mode=3, outputs=4),
    case("Attention", *heads(each=2), f32(4, 6), softcap=2.0, qk_matmul_output_mode=2, outputs=4, oracles=("onnx",)),
    case("Attention", *heads(each=2), softcap=2.0, qk_matmul_output_mode=1, outputs=4, oracles=("onnx",)),
    case("Attention", *flat(), boolean(4, 6), softcap=2.0, scale=2.0, **SIDES),
    case("Attention", *heads(each=2), f32(4, 6), softcap=2.0, scale=2.0, oracles=("onnx",)),
    case("Attention", *heads(), qk_matmul_output_mode=0, outputs=4),
    case("Attention", *heads(), None, None, None, given([3, 6], "int64"), is_causal=1, oracles=("onnx",)),
    case("Attention", *heads(), f32(4, 5), None, None, given([5, 2], "int64"), oracles=("onnx",)),
    case("Attention", *heads(6, 6), left_window_size=2, right_window_size=1, oracles=("onnx",)),
    case("Attention", *heads(), given([[False] * 6, [True] * 6, [True] + [False] * 5, [False] * 6], "bool")),
    case("Attention", *heads(made=f16), is_causal=1),
]
