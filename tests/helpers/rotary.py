"""Rotary embeddings in parts, as exporters write them, and random networks of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from tests.helpers.random_nets import ended
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array


def halves(net: Net, x: str) -> tuple[str, str]:
    """Add both halves of the last axis."""
    middle, axis = net.shape(x)[-1] // 2, np.array([len(net.shape(x)) - 1])
    ends = [(0, middle), (middle, 2**62)]
    first, second = (net.add("Slice", x, np.array([a]), np.array([b]), axis) for a, b in ends)
    return first, second


def turned(net: Net, x: str) -> str:
    """Add Concat(-second, first) of the halves: Llama."""
    first, second = halves(net, x)
    return net.add("Concat", net.add("Neg", second), first, axis=-1)


def turned_in_pairs(net: Net, x: str) -> str:
    """Add the same of even and odd indices: GPT-J, Cohere."""
    *rest, size = net.shape(x)
    axis = np.array([len(rest)])
    even, odd = (
        net.add("Slice", x, np.array([k]), np.array([2**62]), axis, np.array([2])) for k in range(2)
    )
    parts = [net.add("Unsqueeze", v, np.array([-1])) for v in (net.add("Neg", odd), even)]
    return net.add("Reshape", net.add("Concat", *parts, axis=-1), np.array([*rest, size]))


def rotary(net: Net, x: str, cos: str | Array, sin: str | Array, turn: Callable[[Net, str], str] = turned) -> str:
    return net.add("Add", net.add("Mul", x, cos), net.add("Mul", turn(net, x), sin))


@st.composite
def negated_networks(draw: st.DrawFn) -> Graph:
    """Draw rotations and what is nearly one, one behind the other."""
    net = Net(draw(st.integers(0, 100)))
    x = net.input("x", draw(st.integers(1, 2)), draw(st.integers(1, 3)), 4, 8)
    angles = net.input("angles", 1, 1, 4, 8)
    shared = net.constant(net.random(4, 8))
    for _ in range(draw(st.integers(1, 3))):
        turn = draw(st.sampled_from([turned, turned_in_pairs]))
        sin = draw(st.sampled_from([shared, angles, "x", net.constant(net.random(8)), net.constant(net.random(1))]))
        if draw(st.booleans()):
            x = net.add("Transpose", net.add("Transpose", x, perm=(0, 2, 1, 3)), perm=(0, 2, 1, 3))
        x = rotary(net, x, shared, sin, turn) if draw(st.booleans()) else net.add("Mul", sin, turn(net, x))
        x = net.add("Neg", x) if draw(st.booleans()) else x
    return ended(draw, net, x)
