"""Attention as decoders have it: heads of Q, K and V from one value, normalized, rotated, K and V shared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.helpers.nets import Net
from weft.core.graph.layout import Array

EACH = 8
"""Elements of a head."""
Rotary = Callable[[Net, str, "str | Array", "str | Array"], str]
"""Rotates a value by a cosine and a sine."""


def heads(net: Net, x: str, count: int, *, bias: bool = False) -> str:
    """Add the product of x with a matrix, as (batch, rows, heads, elements)."""
    batch, rows, width = net.shape(x)
    made = net.add("MatMul", x, net.random(width, count * EACH, scale=width**-0.5))
    made = net.add("Add", made, net.random(count * EACH)) if bias else made
    return net.add("Reshape", made, np.array([batch, rows, count, EACH]))


def turned(net: Net, x: str) -> str:
    """Add a transpose that swaps heads and rows."""
    return net.add("Transpose", x, perm=(0, 2, 1, 3))


def cut(net: Net, x: str, start: int, end: int, step: int = 1) -> str:
    """Add a slice of the last axis of four."""
    return net.add("Slice", x, *(np.array([number]) for number in (start, end, 3, step)))


def split(net: Net, x: str, count: int, axis: int) -> list[str]:
    """Add a split into equal parts, and return them."""
    sizes = [net.shape(x)[axis] // count] * count
    first = net.add("Split", x, np.array(sizes), axis=axis, outputs=count)
    return [first, *(f"{first}.{k}" for k in range(1, count))]


def rotated(net: Net, x: str, cos: str | Array, sin: str | Array, size: int = EACH) -> str:
    """Add a rotary embedding of (batch, heads, rows, size): the second half of the elements before the first."""
    first, second = cut(net, x, 0, size // 2), cut(net, x, size // 2, size)
    around = net.add("Concat", net.add("Neg", second), first, axis=-1)
    return net.add("Add", net.add("Mul", x, cos), net.add("Mul", around, sin))


def decoder(
    net: Net,
    x: str,
    groups: int,
    shared: int,
    *,
    biases: str = "",
    normalized: bool = False,
    rotary: Rotary | None = rotated,
) -> str:
    """Add the attention of a decoder: `shared` heads of queries for each of `groups` of K and V."""
    rows = net.shape(x)[1]
    cos, sin = net.random(1, 1, rows, EACH), net.random(1, 1, rows, EACH)
    parts = list[str]()
    for name, count in zip("qkv", (groups * shared, groups, groups), strict=True):
        made = heads(net, x, count, bias=name in biases)
        if normalized and name != "v":
            made = net.add("RMSNormalization", made, net.random(EACH))
        made = turned(net, made)
        parts.append(rotary(net, made, cos, sin) if rotary and name != "v" else made)
    return with_attention(net, x, *parts)


def with_attention(net: Net, x: str, q: str, k: str, v: str) -> str:
    """Add the attention of heads in front of their rows, a projection, and the sum with x."""
    batch, rows, width = net.shape(x)
    mixed = turned(net, net.add("weft::Attention", q, k, v, scale=EACH**-0.5))
    count = net.shape(q)[1] * EACH
    flat = net.add("Reshape", mixed, np.array([batch, rows, count]))
    return net.add("Add", x, net.add("MatMul", flat, net.random(count, width)))
