"""Attention, and layers that are one op on PyTorch's fast path for inference."""

from __future__ import annotations

from weft.core.graph.dtypes import DType
from weft.frontends.torch.builder import Builder, Value, static
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


def _linear(g: Builder, x: Value, weight: Value, bias: Value | None) -> Value:
    shape = (*x.shape[:-1], weight.shape[0])
    y = g.op("MatMul", x, g.transpose(weight, [1, 0]), shape=shape)
    return y if bias is None else g.op("Add", y, bias, shape=shape)


def _self_attention(
    g: Builder, x: Value, heads: int, qkv_weight: Value, qkv_bias: Value | None, weight: Value, bias: Value | None,
    mask: Value | None, mask_type: int | None,
) -> Value:
    """Add attention of rows to each other, (batch, rows, width); where the mask is true, a key is hidden."""
    allowed = None
    if mask is not None:
        if mask.dtype is not DType.BOOL or mask_type not in (1, 2):
            raise Unsupported("has a mask that is no boolean one of keys or of pairs")
        mask = g.unsqueeze(mask, [1, 2]) if mask_type == 1 else mask
        allowed = g.op("Not", mask, shape=mask.shape)
    width = static(qkv_weight, "weights")[0] // 3
    joined = _linear(g, x, qkv_weight, qkv_bias)
    shape = (*x.shape[:-1], width)
    sizes = g.ints([width, width, width])
    parts = g.ops("Split", joined, sizes, dtypes=[None] * 3, shapes=[shape] * 3, axis=2, outputs=3)
    y = g.op("Attention", *parts, allowed, q_num_heads=heads, kv_num_heads=heads, shape=shape)
    return _linear(g, y, weight, bias)


@aten("_native_multi_head_attention")
def multi_head_attention(
    g: Builder, query: Value, key: Value, value: Value, width: int, heads: int, qkv_weight: Value,
    qkv_bias: Value | None, weight: Value, bias: Value | None, mask: Value | None, need_weights: bool,
    average: bool, mask_type: int | None,
) -> list[Value]:
    if need_weights or len({query.name, key.name, value.name}) > 1:
        raise Unsupported("gives its weights, or has other keys than queries")
    return [_self_attention(g, query, heads, qkv_weight, qkv_bias, weight, bias, mask, mask_type)]


@aten("_transformer_encoder_layer_fwd")
def encoder_layer(
    g: Builder, x: Value, width: int, heads: int, qkv_weight: Value, qkv_bias: Value, weight: Value, bias: Value,
    use_gelu: bool, norm_first: bool, eps: float, scale_1: Value, shift_1: Value, scale_2: Value, shift_2: Value,
    weight_1: Value, bias_1: Value, weight_2: Value, bias_2: Value, mask: Value | None, mask_type: int | None,
) -> Value:
    shape = x.shape

    def norm(v: Value, scale: Value, shift: Value) -> Value:
        return g.op("LayerNormalization", v, scale, shift, axis=-1, epsilon=eps, shape=shape)

    def attended(v: Value) -> Value:
        return _self_attention(g, v, heads, qkv_weight, qkv_bias, weight, bias, mask, mask_type)

    def fed(v: Value) -> Value:
        hidden = _linear(g, v, weight_1, bias_1)
        return _linear(g, g.op("Gelu" if use_gelu else "Relu", hidden, shape=hidden.shape), weight_2, bias_2)

    if norm_first:
        x = g.op("Add", x, attended(norm(x, scale_1, shift_1)), shape=shape)
        return g.op("Add", x, fed(norm(x, scale_2, shift_2)), shape=shape)
    x = norm(g.op("Add", x, attended(x), shape=shape), scale_1, shift_1)
    return norm(g.op("Add", x, fed(x), shape=shape), scale_2, shift_2)
