"""Random decoders: products of one value, and heads that are rotated or normalized alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tests.helpers.decoders import EACH, Rotary, cut, decoder, rotated, split, turned, with_attention
from tests.helpers.nets import Net
from tests.helpers.random_nets import ended
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array

ROWS = 5


def of_columns(net: Net, x: str, columns: int, *, outer: Sequence[int] = ()) -> str:
    return net.add("MatMul", x, net.random(*outer, net.shape(x)[-1], columns))


def gates(net: Net, x: str) -> Sequence[str]:
    up, gate = of_columns(net, x, 8), of_columns(net, x, 8)
    return [net.add("Mul", up, net.add("Mul", gate, net.add("Sigmoid", gate)))]


@st.composite
def decoder_layers(draw: st.DrawFn) -> Graph:
    """Draw layers of decoders."""
    net = Net(draw(st.integers(0, 100)))
    x = net.input("x", draw(st.integers(1, 2)), draw(st.integers(1, 4)), 8)
    for _ in range(draw(st.integers(1, 2))):
        biases = draw(st.sampled_from(["", "q", "qkv"]))
        groups, shared = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        rotary = draw(st.sampled_from([None, rotated]))
        x = decoder(net, x, groups, shared, biases=biases, normalized=draw(st.booleans()), rotary=rotary)
        x = gates(net, x)[0] if draw(st.booleans()) else x
    return ended(draw, net, x)


def in_pairs(net: Net, x: str, cos: str | Array, sin: str | Array) -> str:
    """Add a rotary embedding of neighbours, which are unzipped and zipped."""
    size = net.shape(x)[-1]
    even, odd = cut(net, x, 0, size, 2), cut(net, x, 1, size, 2)
    zipped = [net.add("Unsqueeze", each, np.array([-1])) for each in (net.add("Neg", odd), even)]
    around = net.add("Reshape", net.add("Concat", *zipped, axis=-1), np.array(net.shape(x)))
    return net.add("Add", net.add("Mul", x, cos), net.add("Mul", around, sin))


def of_some(net: Net, x: str, cos: str | Array, sin: str | Array) -> str:
    """Add a rotary embedding of the first half of the elements."""
    half = EACH // 2
    cos, sin = (each if isinstance(each, str) else each[..., :half] for each in (cos, sin))
    return net.add("Concat", rotated(net, cut(net, x, 0, half), cos, sin, half), cut(net, x, half, EACH), axis=-1)


def but_the_first(net: Net, x: str, cos: str | Array, sin: str | Array) -> str:
    """Add a rotary embedding of all rows but the first, which is a class token."""
    token, pixels = (net.add("Slice", x, np.array([a]), np.array([b]), np.array([2])) for a, b in ((0, 1), (1, ROWS)))
    cos, sin = (each if isinstance(each, str) else each[..., 1:, :] for each in (cos, sin))
    return net.add("Concat", token, rotated(net, pixels, cos, sin), axis=2)


def by_halves(net: Net, x: str, cos: str | Array, sin: str | Array) -> str:
    """Add a rotary embedding of what a Split takes apart."""
    first, second = split(net, x, 2, -1)
    around = net.add("Concat", net.add("Neg", second), first, axis=-1)
    return net.add("Add", net.add("Mul", x, cos), net.add("Mul", around, sin))


ROTARIES = [rotated, in_pairs, of_some, but_the_first, by_halves]


def together(net: Net, x: str, rotary: Rotary, *, slices: bool, normalized: bool = False) -> str:
    """Add an attention whose Q, K and V are slices, or parts of a Split, of one product, as in vision transformers."""
    batch, rows, width = net.shape(x)
    count, each = 2, 2 * EACH
    made = net.add("MatMul", x, net.random(width, 3 * each, scale=width**-0.5))
    parts = list[str]()
    if slices:
        for at in range(0, 3 * each, each):
            part = net.add("Slice", made, np.array([at]), np.array([at + each]), np.array([-1]))
            part = net.add("Reshape", part, np.array([batch, rows, count, EACH]))
            if normalized and at < 2 * each:
                part = net.add("LayerNormalization", part, net.random(EACH), net.random(EACH))
            parts.append(turned(net, part))
    else:
        made = net.add("Reshape", made, np.array([batch, rows, 3, count, EACH]))
        taken = split(net, net.add("Transpose", made, perm=(2, 0, 3, 1, 4)), 3, 0)
        parts = [net.add("Squeeze", each, np.array([0])) for each in taken]
    cos, sin = net.random(rows, EACH), net.random(rows, EACH)
    q, k = (rotary(net, each, cos, sin) for each in parts[:2])
    return with_attention(net, x, q, k, parts[2])


@st.composite
def rotations(draw: st.DrawFn) -> Graph:
    """Draw layers with rotary embeddings."""
    net = Net(draw(st.integers(0, 100)))
    x = net.input("x", draw(st.integers(1, 2)), ROWS, 8)
    for _ in range(draw(st.integers(1, 2))):
        rotary, normalized = draw(st.sampled_from(ROTARIES)), draw(st.booleans())
        if draw(st.booleans()):
            x = together(net, x, rotary, slices=normalized or draw(st.booleans()), normalized=normalized)
        else:
            groups, shared = draw(st.integers(1, 2)), draw(st.integers(1, 3))
            x = decoder(net, x, groups, shared, rotary=rotary, normalized=normalized)
    return ended(draw, net, x)
