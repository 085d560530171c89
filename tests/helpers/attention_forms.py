"""Attention as exporters write it around moves of joined axes, factors of heads, caps and masks; and random forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from tests.helpers.random_nets import ended
from tests.helpers.transformers import number
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array


def rows_first(net: Net, x: str, heads: int) -> str:
    """Add a multi-head attention of (rows, batch, elements), whose heads and batch are one axis for a while."""
    rows, batch, width = net.shape(x)
    each, parts = width // heads, list[str]()
    made = net.add("Add", net.add("MatMul", x, net.random(width, 3 * width, scale=width**-0.5)), net.random(3 * width))
    apart = net.add("Unsqueeze", net.add("Reshape", made, np.array([rows, batch, 3, width])), np.array([0]))
    thrice = net.add("Squeeze", net.add("Transpose", apart, perm=(3, 1, 2, 0, 4)), np.array([3]))
    for part in range(3):
        joined = net.add("Reshape", net.add("Gather", thrice, np.array(part), axis=0), np.array([rows, -1, each]))
        turned = net.add("Transpose", joined, perm=(1, 2, 0) if part == 1 else (1, 0, 2))
        shape = [batch, heads, each, rows] if part == 1 else [batch, heads, rows, each]
        parts.append(net.add("Reshape", turned, np.array(shape)))
    q, k = (net.add("Mul", value, number(0.5)) for value in parts[:2])
    mixed = net.add("MatMul", net.add("Softmax", net.add("MatMul", q, k), axis=-1), parts[2])
    back = net.add("Transpose", mixed, perm=(2, 0, 1, 3))
    return net.add("Reshape", back, np.array([rows * batch, width]))


WINDOWS = {"q": (2, 3, 4, 5, 8), "k": (2, 3, 4, 7, 8), "v": (2, 3, 4, 7, 6)}
"""Two images of three windows with four heads."""


def windows(net: Net, shape: tuple[int, ...], mask: Callable[[Net], str] | None, **sizes: tuple[int, ...]) -> str:
    """Add an attention with five axes, whose products have the axes of `shape` in place of the first three."""
    q, k, v = (net.input(name, *own) for name, own in (WINDOWS | sizes).items())
    turned = net.add("Transpose", k, perm=(0, 1, 2, 4, 3))
    flat = [net.add("Reshape", each, np.array([*shape, *net.shape(each)[-2:]])) for each in (q, turned, v)]
    scores = net.add("Mul", net.add("MatMul", flat[0], flat[1]), number(0.25))
    scores = net.add("Reshape", scores, np.array([2, 3, 4, 5, 7]))
    scores = net.add("Add", scores, mask(net)) if mask else scores
    shares = net.add("Reshape", net.add("Softmax", scores, axis=-1), np.array([*shape, 5, 7]))
    mixed = net.add("MatMul", shares, flat[2])
    return net.add("Reshape", mixed, np.array([2, 3, 4, 5, 6]))


MASKS: dict[str, Callable[[Net], str] | None] = {
    "none": None,
    "a constant of heads": lambda net: net.constant(net.random(1, 4, 5, 7)),
    "an input of heads": lambda net: net.input("mask", 4, 1, 7),
    "an input of rows": lambda net: net.input("mask", 5, 7),
    "a constant of windows": lambda net: net.constant(net.random(1, 3, 1, 5, 7)),
    "a constant of images": lambda net: net.constant(net.random(2, 1, 1, 1, 7)),
}


def cosine(net: Net, factor: Array, kind: str = "Mul", *, masks: int = 1, first: bool = False) -> str:
    """Add an attention of queries and keys of length one, whose scores take a factor; a mask may be added `first`."""
    q, k, v = (net.input(name, *shape[1:]) for name, shape in WINDOWS.items())
    q, k = (net.add("Div", each, net.add("ReduceL2", each, np.array([-1]))) for each in (q, k))
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2)))
    added = [net.random(3, 1, 5, 7) for _ in range(masks)]
    scores = net.add("Add", scores, added.pop()) if first else scores
    scores = net.add(kind, scores, factor)
    for mask in added:
        scores = net.add("Add", scores, mask)
    return net.add("MatMul", net.add("Softmax", scores, axis=-1), v)


def capped(
    net: Net, *, divided: float | None = 5.0, times: float | None = 5.0, mask: str = "", inner: str = "",
    factor: Array | None = None, inner_factor: Array | None = None, twice: bool = False,
) -> tuple[str, str]:
    """Add an attention with a tanh of its scores, and return it with the tanh; `inner` is a mask within."""
    q, k, v = (net.input(name, *shape[1:]) for name, shape in WINDOWS.items())
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2)))
    scores = net.add("Mul", scores, number(0.25))
    scores = net.add("Mul", scores, inner_factor) if inner_factor is not None else scores
    scores = net.add("Add", scores, inner) if inner else scores
    scores = net.add("Div", scores, number(divided)) if divided else scores
    tanh = scores = net.add("Tanh", scores)
    scores = net.add("Tanh", scores) if twice else scores
    scores = net.add("Mul", number(times), scores) if times else scores
    scores = net.add("Mul", scores, factor) if factor is not None else scores
    scores = net.add("Add", scores, mask) if mask else scores
    return net.add("MatMul", net.add("Softmax", scores, axis=-1), v), tanh


LOWEST = float(np.finfo(np.float32).min)


def filled(net: Net, fill: Array, hidden: Array | str, *, hides: bool = True, masks: int = 0) -> str:
    """Add an attention with a number in place of scores where `hidden` is `hides`; masks are added before."""
    q, k, v = (net.input(name, *shape[1:]) for name, shape in WINDOWS.items())
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 1, 3, 2)))
    for _ in range(masks):
        scores = net.add("Add", scores, net.random(4, 1, 7))
    scores = net.add("Where", hidden, *((fill, scores) if hides else (scores, fill)))
    return net.add("MatMul", net.add("Softmax", scores, axis=-1), v)


def later(blind: bool = True) -> Array:
    """Return which of seven keys five queries may not see; a `blind` query at the end sees none."""
    hidden = np.triu(np.ones((1, 1, 5, 7), bool), 2)
    hidden[..., -1, :] |= blind
    return hidden


@st.composite
def attention_forms(draw: st.DrawFn) -> Graph:
    """Draw an attention of windows, with its parts in any form."""
    net = Net(draw(st.integers(0, 100)))
    if draw(st.booleans()):
        low, hides = draw(st.sampled_from([LOWEST, -np.inf, -1e4])), draw(st.booleans())
        hidden = later(blind=low > -np.inf) == hides
        y = filled(net, number(low), hidden, hides=hides, masks=draw(st.integers(0, 2)))
    elif draw(st.booleans()):
        x = net.input("x", draw(st.integers(1, 4)), draw(st.integers(1, 3)), 8)
        y = rows_first(net, x, draw(st.sampled_from([1, 2])))
    elif draw(st.booleans()):
        shape = draw(st.sampled_from([(24,), (6, 4), (2, 12), (2, 3, 4)]))
        y = windows(net, shape, draw(st.sampled_from([*MASKS.values()])))
    elif draw(st.booleans()):
        divided, times, mask = draw(st.tuples(*(st.sampled_from([None, 5.0]) for _ in range(2)), st.booleans()))
        factor = net.random(4, 1, 1) if draw(st.integers(0, 3)) == 0 else None
        added = net.constant(net.random(4, 1, 7)) if mask else ""
        y, _ = capped(net, divided=divided, times=times, mask=added, inner_factor=factor)
    else:
        factor = net.random(*draw(st.sampled_from([(4, 1, 1), (5, 1), (3, 4, 1, 1), (4, 5, 7)])))
        y = cosine(net, factor, draw(st.sampled_from(["Mul", "Div"])), masks=draw(st.integers(0, 2)))
    return ended(draw, net, y)
