"""Attention as networks for images write it: Q, K and V have a row for each element of a head, and a column a pixel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from weft.core.graph.layout import Array

SCALES = ("nowhere", "q", "k", "q and k", "q before it is turned", "behind", "behind, divided")
BIASES = ("none", "a constant", "a constant of rows", "an input", "computed of queries")
PRODUCTS = ("of turned shares", "turned behind", "an Einsum", "an Einsum turned behind")
SOURCES = ("a split of heads", "slices of channels", "three values")


@dataclass(frozen=True)
class Form:
    """Sizes, and how an exporter writes the parts."""

    batch: int = 1
    heads: int = 2
    depth: int = 8
    width: int = 8
    image: tuple[int, int] = (3, 4)
    scale: str = "behind"
    bias: str = "none"
    product: str = "of turned shares"
    source: str = "a split of heads"
    einsum: bool = False
    """Whether scores are an Einsum."""

    @property
    def channels(self) -> int:
        """Return the channels of Q, K and V together."""
        return self.heads * (2 * self.depth + self.width)

    def add(self, net: Net, x: str) -> str:
        """Add the attention to (batch, channels, *image), and return its result, (batch, heads * width, *image)."""
        rows = prod(self.image)
        q, k, v = self._parts(net, x, rows)
        number = np.full((), 0.5, np.float32)
        if self.scale in ("q and k", "q before it is turned"):
            q = net.add("Mul", q, number)
        if self.scale in ("k", "q and k"):
            k = net.add("Mul", k, number)
        if self.einsum:
            scores = net.add("Einsum", q, k, equation="bhdi,bhdj->bhij")
        else:
            turned = net.add("Transpose", q, perm=(0, 1, 3, 2))
            turned = net.add("Mul", turned, number) if self.scale == "q" else turned
            scores = net.add("MatMul", turned, k)
        if self.scale.startswith("behind"):
            scores = net.add("Div" if "divided" in self.scale else "Mul", scores, number)
        if self.bias != "none":
            scores = net.add("Add", scores, self._bias(net, q, rows))
        mixed = self._mixed(net, net.add("Softmax", scores, axis=-1), v)
        return net.add("Reshape", mixed, np.array([self.batch, self.heads * self.width, *self.image]))

    def _parts(self, net: Net, x: str, rows: int) -> list[str]:
        sizes = [self.depth, self.depth, self.width]
        if self.source == "a split of heads":
            apart = net.add("Reshape", x, np.array([self.batch, self.heads, sum(sizes), rows]))
            first = net.add("Split", apart, np.array(sizes), axis=2, outputs=3)
            return [first, f"{first}.1", f"{first}.2"]
        parts, at = [], 0
        for size in sizes:
            wide = self.heads * size
            if self.source == "three values":
                part = net.conv(x, wide, bias=False)
            else:
                part = net.add("Slice", x, np.array([at]), np.array([at + wide]), np.array([1]))
            parts.append(net.add("Reshape", part, np.array([self.batch, self.heads, size, rows])))
            at += wide
        return parts

    def _bias(self, net: Net, q: str, rows: int) -> str | Array:
        if self.bias == "an input":
            return net.input("bias", self.heads, rows, rows)
        if self.bias == "computed of queries":
            turned = net.add("Transpose", q, perm=(0, 1, 3, 2))
            return net.add("MatMul", turned, net.random(self.depth, rows))
        return net.random(*((1, self.heads, rows, rows) if self.bias == "a constant" else (rows, 1)))

    def _mixed(self, net: Net, shares: str, v: str) -> str:
        if self.product == "of turned shares":
            return net.add("MatMul", v, net.add("Transpose", shares, perm=(0, 1, 3, 2)))
        if self.product == "an Einsum":
            return net.add("Einsum", v, shares, equation="bhdj,bhij->bhdi")
        if self.product == "an Einsum turned behind":
            mixed = net.add("Einsum", shares, v, equation="bhij,bhdj->bhid")
        else:
            mixed = net.add("MatMul", shares, net.add("Transpose", v, perm=(0, 1, 3, 2)))
        return net.add("Transpose", mixed, perm=(0, 1, 3, 2))


@st.composite
def forms(draw: st.DrawFn) -> Form:
    """Draw a form."""
    number = st.integers
    return Form(
        draw(number(1, 2)), draw(number(1, 4)), draw(number(1, 12)), draw(number(1, 12)),
        (draw(number(1, 4)), draw(number(1, 5))), draw(st.sampled_from(SCALES)), draw(st.sampled_from(BIASES)),
        draw(st.sampled_from(PRODUCTS)), draw(st.sampled_from(SOURCES)), draw(st.booleans()),
    )
