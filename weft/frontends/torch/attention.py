"""Attention."""

from __future__ import annotations

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Value
from weft.frontends.torch.rules import Unsupported, aten


@aten("scaled_dot_product_attention")
def attention(
    g: Builder, query: Value, key: Value, value: Value, mask: Value | None, dropout: float, is_causal: bool,
    scale: float | None, enable_gqa: bool = False,
) -> Value:
    if dropout:
        raise Unsupported("drops weights at random, as in training: pass dropout_p=0 outside of it")
    rank, shape = query.rank, g.out.shape
    if rank < 3 or rank > 4 or key.rank != rank or value.rank != rank:
        raise Unsupported(f"has {rank} axes, and three or four are known")
    if rank == 3:  # one head
        query, key, value = (g.unsqueeze(each, [1]) for each in (query, key, value))
        shape = (shape[0], 1, *shape[1:])
        mask = mask if mask is None or mask.rank < 3 else g.unsqueeze(mask, [1])
    if mask is not None and mask.dtype is not DType.BOOL:
        mask = g.cast(mask, query.dtype)
    y = g.op("Attention", query, key, value, mask, is_causal=int(is_causal),
             scale=None if scale is None else float(scale), shape=shape)
    return g.squeeze(y, [1]) if rank == 3 else y


@aten("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    g: Builder, query: Value, key: Value, value: Value, dropout: float, is_causal: bool, mask: Value | None,
    scale: float | None,
) -> list[Value]:
    return [attention(g, query, key, value, mask, dropout, is_causal, scale)]
