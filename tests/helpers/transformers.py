"""Transformers in parts, as exporters write them: activations, heads and masks; and random networks of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from tests.helpers.norms import layer_norm
from tests.helpers.random_nets import ended
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array

KINDS = ("gelu", "tanh", "norm", "encoder", "joint", "shared", "residual")
"""What random networks are made of."""


def number(value: float, *shape: int) -> Array:
    """Return an array of one number."""
    return np.full(shape, value, np.float32)


def gelu(net: Net, x: str, form: int, order: int = 0, *, factor: float = sqrt(2)) -> str:
    """Add x * 0.5 * (1 + erf(x / factor)) with its factors in one of several orders."""

    def both(kind: str, a: str | Array, b: str | Array) -> str:
        return net.add(kind, *((a, b) if order % 2 == 0 else (b, a)))

    inner = net.add("Div", x, number(factor)) if order < 2 else both("Mul", x, number(1 / factor))
    total = both("Add", net.add("Erf", inner), number(1))
    if form == 0:
        return both("Mul", both("Mul", x, total), number(0.5))
    if form == 1:
        return both("Mul", x, both("Mul", number(0.5), total))
    if form == 2:
        return both("Mul", both("Mul", x, number(0.5)), total)
    return net.add("Div", both("Mul", x, total), number(2))


def tanh_gelu(net: Net, x: str, *, power: bool = True, swapped: bool = False) -> str:
    """Add the GELU through a tanh; `power`: of x to the third, in place of products."""
    cube = net.add("Pow", x, number(3)) if power else net.add("Mul", x, net.add("Mul", x, x))
    parts = [x, net.add("Mul", number(0.044715), cube)]
    total = net.add("Add", *(parts[::-1] if swapped else parts))
    share = net.add("Add", number(1), net.add("Tanh", net.add("Mul", number(sqrt(2 / pi)), total)))
    return net.add("Mul", net.add("Mul", number(0.5), x), share)


def attention(
    net: Net, q: str, k: str, v: str, *,
    where: str = "behind", mask: str = "", turned: str = "once", guarded: bool = False,
) -> str:
    """Add an attention of heads that are apart; `where` is the scale, `turned` tells how K is transposed.

    If it is `guarded`, rows of NaN are replaced by zeros.
    """
    rank = len(net.shape(k))
    if turned == "once":
        t = net.add("Transpose", k, perm=(*range(rank - 2), rank - 1, rank - 2))
    else:
        batch, heads, rows, each = net.shape(k)
        flat = net.add("Reshape", k, np.array([batch * heads, rows, each]))
        t = net.add("Reshape", net.add("Transpose", flat, perm=(0, 2, 1)), np.array([batch, heads, each, rows]))
    if where == "both":
        q, t = net.add("Mul", q, number(0.5)), net.add("Mul", t, number(0.25))
    scores = net.add("MatMul", q, t)
    if where == "behind":
        scores = net.add("Div", scores, number(8))
    if mask:
        scores = net.add("Add", scores, mask)
    shares = net.add("Softmax", scores)
    if guarded:
        shares = net.add("Where", net.add("IsNaN", shares), number(0), shares)
    return net.add("MatMul", shares, v)


def repeated(net: Net, value: str, count: int) -> tuple[str, str]:
    """Add (batch, heads, 1 -> count, rows, elements), and that with one axis of heads."""
    batch, heads, rows, each = net.shape(value)
    apart = net.add("Unsqueeze", value, np.array([2]))
    wide = net.add("Expand", apart, np.array([batch, heads, count, rows, each]))
    return wide, net.add("Reshape", wide, np.array([batch, heads * count, rows, each]))


def joint(net: Net, x: str, mask: str, *, guarded: bool, scale: str, read: str = "") -> tuple[str, ...]:
    """Add an attention whose products have one axis for batch and heads, and whose mask is added in rank 4."""
    batch, rows, width = net.shape(x)
    heads, each = 2, width // 2
    made = []
    for name in "qkv":
        one = net.add("MatMul", x, net.random(width, width, scale=0.5))
        one = net.add("Mul", one, number(0.5)) if name == "q" and scale == "before" else one
        apart = net.add("Transpose", net.add("Reshape", one, np.array([batch, rows, heads, each])), perm=(0, 2, 1, 3))
        made.append(net.add("Reshape", apart, np.array([batch * heads, rows, each])))
    scores = net.add("MatMul", made[0], net.add("Transpose", made[1], perm=(0, 2, 1)))
    scores = net.add("Mul", scores, number(0.5)) if scale == "behind" else scores
    apart = net.add("Reshape", scores, np.array([batch, heads, rows, rows]))
    total = net.add("Reshape", net.add("Add", apart, mask), np.array([batch * heads, rows, rows]))
    shares = net.add("Softmax", total)
    if guarded:
        shares = net.add("Where", net.add("IsNaN", shares), number(0), shares)
    mixed = net.add("Reshape", net.add("MatMul", shares, made[2]), np.array([batch, heads, rows, each]))
    joined = net.add("Transpose", mixed, perm=(0, 2, 1, 3))
    also = {"apart": (apart,), "joined": (total,), "": ()}[read]
    return (net.add("Reshape", joined, np.array([batch, rows, width])), *also)


def encoder(
    net: Net, x: str, heads: int, each: int, *,
    key: str = "", bias: str = "qkv", mask: str = "", turned: str = "once", guarded: bool = False, early: str = "",
) -> str:
    """Add a multi-head attention as exporters write it; K and V are of `key`, or of x.

    Those of Q, K and V that `bias` names have one. Scales of Q and K may be applied `early`: "apart", as soon as heads
    are apart, or "flat", before.
    """
    batch, rows, width = net.shape(x)
    parts = list[str]()
    for name, source in zip("qkv", (x, key or x, key or x), strict=True):
        made = net.add("MatMul", source, net.random(width, heads * each, scale=width**-0.5))
        made = net.add("Add", net.random(heads * each), made) if name in bias else made
        made = net.add("Mul", made, number(0.7)) if early == "flat" and len(parts) < 2 else made
        apart = net.add("Reshape", made, np.array([batch, net.shape(source)[1], heads, each]))
        apart = net.add("Mul", apart, number(0.7)) if early == "apart" and len(parts) < 2 else apart
        parts.append(net.add("Transpose", apart, perm=(0, 2, 1, 3)))
    mixed = attention(net, *parts, mask=mask, turned=turned, guarded=guarded)
    return net.add("Reshape", net.add("Transpose", mixed, perm=(0, 2, 1, 3)), np.array([batch, rows, heads * each]))


def shared(net: Net, x: str, heads: int, count: int, *, where: str = "behind") -> str:
    """Add an attention of heads of two elements, of which each of K and V is repeated for `count` of Q."""
    batch, rows, width = net.shape(x)
    parts = []
    for many in (heads * count, heads, heads):
        made = net.add("MatMul", x, net.random(width, many * 2, scale=0.5))
        apart = net.add("Reshape", made, np.array([batch, rows, many, 2]))
        parts.append(net.add("Transpose", apart, perm=(0, 2, 1, 3)))
    k, v = (repeated(net, each, count)[1] for each in parts[1:])
    mixed = net.add("Transpose", attention(net, parts[0], k, v, where=where), perm=(0, 2, 1, 3))
    flat = net.add("Reshape", mixed, np.array([batch, rows, heads * count * 2]))
    return net.add("MatMul", flat, net.random(heads * count * 2, width))


@st.composite
def transformers(draw: st.DrawFn, kinds: Sequence[str] = KINDS) -> Graph:
    """Draw a chain of the patterns and of what is nearly one of them."""
    net = Net(draw(st.integers(0, 100)))
    x = net.input("x", draw(st.integers(1, 2)), draw(st.integers(1, 4)), 8)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(kinds))
        if kind == "tanh":
            x = tanh_gelu(net, x, power=draw(st.booleans()), swapped=draw(st.booleans()))
        elif kind == "gelu":
            factor = draw(st.sampled_from([sqrt(2), sqrt(2), 1.0]))
            x = gelu(net, x, draw(st.integers(0, 3)), draw(st.integers(0, 3)), factor=factor)
        elif kind == "norm":
            axes = draw(st.sampled_from([(-1,), (-1,), (-2, -1)]))
            flags = {name: draw(st.booleans()) for name in ("twice", "scale", "shift")}
            x = layer_norm(net, x, axes, divisor=draw(st.sampled_from(["div", "reciprocal", "power"])), **flags)
        elif kind == "encoder":
            heads, turned = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from(["once", "in rank 3"]))
            bias, early = draw(st.sampled_from(["qkv", "qv", ""])), draw(st.sampled_from(["", "apart", "flat"]))
            guarded = draw(st.booleans())
            x = encoder(net, x, heads, 8 // heads, bias=bias, turned=turned, guarded=guarded, early=early)
        elif kind == "joint":
            rows = net.shape(x)[1]
            mask = net.constant(net.random(*draw(st.sampled_from([(1, 1), (1, 2, rows), (1, 1, rows)])), rows))
            scale = draw(st.sampled_from(["before", "behind", "nowhere"]))
            (x,) = joint(net, x, mask, guarded=draw(st.booleans()), scale=scale)
        elif kind == "shared":
            heads, count = draw(st.sampled_from([(1, 2), (2, 2), (2, 1), (4, 1), (1, 4)]))
            x = shared(net, x, heads, count, where=draw(st.sampled_from(["behind", "both", "nowhere"])))
        else:
            x = net.add("Add", x, draw(st.sampled_from([x, "x"])))
    return ended(draw, net, x)
