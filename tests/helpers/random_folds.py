"""Random networks of pads, pools, convolutions, their sums, products and batch norms, with moves between, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from weft.core.graph.graph import Graph

Draw = st.DrawFn
Step = Callable[[Draw, Net, str], str]
FILLS = (0.0, 0.0, -np.inf, -1.0, 0.5)


def _norm(draw: Draw, net: Net, x: str) -> str:
    c = net.shape(x)[1]
    return net.add("BatchNormalization", x, *(net.random(c) for _ in range(3)), net.random(c) ** 2 + np.float32(0.2))


def _unary(draw: Draw, net: Net, x: str) -> str:
    return net.add(draw(st.sampled_from(["Relu", "Relu", "Sigmoid", "Tanh", "Neg", "Identity"])), x)


def _clip(draw: Draw, net: Net, x: str) -> str:
    low, high = (np.array(draw(st.sampled_from(v)), np.float32) for v in ((-0.5, 0.0), (-0.2, 1.0)))
    return net.add("Clip", x, *draw(st.sampled_from([(low,), (low, high), ("", high)])))


def _pad(draw: Draw, net: Net, x: str) -> str:
    sizes = st.sampled_from([0, 0, 1, 2])
    amounts = [0, draw(st.sampled_from([0, 0, 0, 1])), draw(sizes), draw(sizes), 0, 0, draw(sizes), draw(sizes)]
    return _filled(draw, net, x, amounts, FILLS, (_pool, _pool, _conv, lambda *a: a[2]))


def _filled(
    draw: Draw, net: Net, x: str, amounts: Sequence[int], fills: Sequence[float], readers: Sequence[Step]
) -> str:
    """Add a pad and one of these readers. Infinities go no further, since sums of them depend on the order."""
    fill = draw(st.sampled_from(fills))
    padded = net.add("Pad", x, np.array(amounts), np.array(fill, np.float32))
    y = draw(st.sampled_from(readers))(draw, net, padded)
    return y if np.isfinite(fill) else net.add("Clip", y, *(np.array(bound, np.float32) for bound in (-9, 9)))


def _padded(draw: Draw, net: Net, x: str) -> str:
    """Add a pad that its reader can most often do itself."""
    x = net.add("Relu", x) if draw(st.booleans()) else x
    sizes = st.sampled_from([0, 1, 2])
    amounts = [0, 0, draw(sizes), draw(sizes), 0, draw(st.sampled_from([0, 0, 0, 1])), draw(sizes), draw(sizes)]
    return _filled(draw, net, x, amounts, (0.0, 0.0, 0.0, -np.inf), (_conv, _conv, _pool))


def _pool(draw: Draw, net: Net, x: str) -> str:
    kernel, dilation = draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (2, 3), (3, 1)]))
    if min(net.shape(x)[2:]) < (kernel - 1) * dilation + 1:
        return x
    pads = tuple(draw(st.integers(0, kernel - 1)) for _ in range(4))
    stride = draw(st.integers(1, 3))
    window: dict[str, Any] = {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": pads}
    window |= {"dilations": (dilation,) * 2, "ceil_mode": draw(st.sampled_from([0, 0, 1]))}
    kind = draw(st.sampled_from(["MaxPool", "MaxPool", "AveragePool", "LpPool"]))
    more: dict[str, Any] = {"count_include_pad": draw(st.integers(0, 1))} if kind == "AveragePool" else {}
    return net.add(kind, x, **window, **more)


def _conv(draw: Draw, net: Net, x: str) -> str:
    kernel = draw(st.sampled_from([k for k in (1, 2, 3) if k <= min(net.shape(x)[2:])]))
    group = draw(st.sampled_from([1, net.shape(x)[1]]))
    channels = net.shape(x)[1] * draw(st.integers(1, 2))
    return net.conv(x, channels, kernel, bias=draw(st.booleans()), group=group, pads=(0, 1, 1, 0))


def _turned(draw: Draw, net: Net, x: str) -> str:
    c = net.shape(x)[1]
    group, each = draw(st.sampled_from([1, c])), draw(st.integers(1, 2))
    more = [net.random(each * group)] if draw(st.booleans()) else []
    return net.add("ConvTranspose", x, net.random(c, each, 2, 2), *more, group=group)


def _product(draw: Draw, net: Net, x: str) -> str:
    """Add a product of matrices and make images of it again."""
    n, c, h, w = net.shape(x)
    flat = net.add("Flatten", x, axis=1)
    if draw(st.booleans()):
        made = net.add("MatMul", flat, net.random(c * h * w, 4, scale=0.1))
    else:
        turned = draw(st.integers(0, 1))
        weight = net.random(*((4, c * h * w) if turned else (c * h * w, 4)), scale=0.1)
        shape = draw(st.sampled_from([None, (), (4,), (1, 4), (n, 4), (n, 1)]))
        more = [] if shape is None else [net.random(*shape)]
        made = net.add("Gemm", flat, weight, *more, transB=turned, beta=draw(st.sampled_from([1.0, 0.5])))
    made = _norm(draw, net, made) if draw(st.booleans()) else made
    return net.add("Reshape", made, np.array([n, 1, 2, 2]))


def _there_and_back(draw: Draw, net: Net, x: str) -> str:
    middle = _unary(draw, net, net.add("Transpose", x, perm=(0, 2, 3, 1)))
    return net.add("Transpose", middle, perm=(0, 3, 1, 2))


def _normed(draw: Draw, net: Net, x: str) -> str:
    made = draw(st.sampled_from([_conv, _turned]))(draw, net, x)
    if draw(st.integers(0, 3)) == 0:
        made = net.add("Identity", made)
    if draw(st.integers(0, 3)) == 0:
        net.add("Exp", made)
    return _norm(draw, net, made)


def _summed(draw: Draw, net: Net, x: str) -> str:
    """Add a sum of convolutions of an image, of itself and of its norms, perhaps of others, in a drawn order."""
    group = draw(st.sampled_from([1, net.shape(x)[1]]))
    terms = [x] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        pad = draw(st.integers(0, 1))
        made = net.conv(x, net.shape(x)[1], 2 * pad + 1, bias=draw(st.booleans()), group=group, pads=(pad,) * 4)
        terms.append(_norm(draw, net, made) if draw(st.booleans()) else made)
    terms += [_norm(draw, net, x)] if draw(st.booleans()) else []
    terms += [_unary(draw, net, draw(st.sampled_from(terms)))] if draw(st.integers(0, 3)) == 0 else []
    while len(terms) > 1:
        terms.append(net.add("Add", *(terms.pop(draw(st.integers(0, len(terms) - 1))) for _ in range(2))))
    return terms[0]


STEPS: tuple[Step, ...] = (
    *(_norm, _unary, _clip, _pad, _pad, _conv),
    *(_turned, _normed, _normed, _summed, _product, _there_and_back),
)


PADS: tuple[Step, ...] = (_padded,)


@st.composite
def fold_networks(draw: Draw, steps: int = 7, among: Sequence[Step] = STEPS) -> Graph:
    """Draw a network that is a chain with a few side branches, of which one or two values are outputs."""
    net = Net(draw(st.integers(0, 1000)))
    x = net.input("x", draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(2, 4)), 4)
    for _ in range(draw(st.integers(1, steps))):
        if net.graph.specs[x].size < 1000 and min(net.shape(x)[1:]) > 0:
            x = draw(st.sampled_from(among))(draw, net, x)
    made = [n.outputs[0] for n in net.graph.nodes]
    others = draw(st.lists(st.sampled_from(made or [x]), max_size=1))
    return net.finish(*dict.fromkeys([x, *others]))
