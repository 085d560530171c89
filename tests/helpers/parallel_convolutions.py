"""Sums of convolutions of one image, and random networks of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from tests.helpers.random_nets import ended
from weft.core.graph.graph import Graph


def norm(net: Net, x: str) -> str:
    """Add a batch norm."""
    c = net.shape(x)[1]
    return net.add("BatchNormalization", x, *(net.random(c) for _ in range(3)), net.random(c) ** 2 + np.float32(0.1))


def same(net: Net, x: str, kernel: int, **more: Any) -> str:
    """Add a convolution of an odd kernel that keeps the size of its image, if its stride is 1."""
    pad = kernel // 2 * more.get("dilations", (1,))[0]
    return net.conv(x, net.shape(x)[1], kernel, pads=(pad,) * 4, **more)


def summed(net: Net, *terms: str) -> str:
    """Add the sum of some values, one after the other."""
    total = terms[0]
    for each in terms[1:]:
        total = net.add("Add", total, each)
    return total


@st.composite
def convolution_sums(draw: st.DrawFn) -> Graph:
    """Draw sums of convolutions of one image that have one shape, of the image and of batch norms of them."""
    net = Net(draw(st.integers(0, 99)))
    x = net.input("x", 1, 4, 6, 5)
    convs = []
    common = draw(st.tuples(st.sampled_from([1, 4]), st.sampled_from([1, 1, 2])))
    for _ in range(draw(st.integers(2, 4))):
        kernel, dilation = draw(st.tuples(st.integers(1, 3), st.sampled_from([1, 1, 2])))
        pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
        if draw(st.integers(0, 3)):  # kernels of 1 and 3 keep the size then
            kernel, dilation, pads = kernel | 1, 1, (kernel // 2,) * 4
        group, stride = common if draw(st.integers(0, 3)) else draw(st.sampled_from([(1, 1), (4, 2)]))
        more: dict[str, Any] = {"strides": (stride,) * 2, "dilations": (dilation,) * 2, "pads": pads}
        made = net.conv(x, 4, kernel, group=group, bias=draw(st.booleans()), **more)
        convs.append(norm(net, made) if draw(st.integers(0, 4)) == 0 else made)
    shapes: dict[tuple[int, ...], list[str]] = {}
    for value in [x, *convs]:
        shapes.setdefault(net.shape(value), []).append(value)
    sums = [summed(net, *each) for each in shapes.values() if len(each) > 1] or [net.add("Relu", x)]
    graph = ended(draw, net, sums[0])
    graph.outputs = [*dict.fromkeys([*graph.outputs, *sums])]
    return graph
