"""Random small convolution networks for property tests: branches, concats, constants, things to rewrite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck
from hypothesis import strategies as st

import weft
from tests.helpers.nets import Net, assert_near, feeds
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs

Draw = st.DrawFn
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
"""The health checks that drawing a network may fail."""

Step = Callable[[Draw, Net, list[str]], str]


def _conv(draw: Draw, net: Net, values: list[str]) -> str:
    x = draw(st.sampled_from(values))
    _, c, h, w = net.shape(x)
    kernel = draw(st.sampled_from([k for k in (1, 3) if k <= min(h, w)]))
    pad, stride = draw(st.integers(0, kernel // 2)), draw(st.integers(1, 2))
    group = draw(st.sampled_from([1, c]))
    channels = draw(st.sampled_from([c] if group > 1 else [1, 3, 4, 8]))
    bias = draw(st.booleans())
    return net.conv(x, channels, kernel, bias=bias, group=group, strides=(stride,) * 2, pads=(pad,) * 4)


def _batch_norm(draw: Draw, net: Net, values: list[str]) -> str:
    x = draw(st.sampled_from(values))
    c = net.shape(x)[1]
    scale, shift, mean, var = (net.random(c) for _ in range(4))
    return net.add("BatchNormalization", x, scale, shift, mean, var**2 + np.float32(0.3))


def _unary(draw: Draw, net: Net, values: list[str]) -> str:
    kind = draw(st.sampled_from(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Neg"]))
    return net.add(kind, draw(st.sampled_from(values)))


def _clip(draw: Draw, net: Net, values: list[str]) -> str:
    bounds = [np.array(v, np.float32) for v in (-0.5, 1.5)]
    return net.add("Clip", draw(st.sampled_from(values)), *bounds)


def _binary(draw: Draw, net: Net, values: list[str]) -> str:
    a = draw(st.sampled_from(values))
    same = [v for v in values if net.shape(v) == net.shape(a)]
    operands = draw(st.permutations([a, draw(st.sampled_from(same))]))
    return net.add(draw(st.sampled_from(["Add", "Mul", "Sub"])), *operands)


def _with_constant(draw: Draw, net: Net, values: list[str]) -> str:
    x = draw(st.sampled_from(values))
    _, c, _, w = net.shape(x)
    shape = draw(st.sampled_from([(), (1,), (1, c, 1, 1), (c, 1, 1), (w,)]))
    operands = draw(st.permutations([x, net.constant(net.random(*shape))]))
    return net.add(draw(st.sampled_from(["Add", "Mul", "Sub"])), *operands)


def _concat(draw: Draw, net: Net, values: list[str]) -> str:
    a = draw(st.sampled_from(values))
    n, _, h, w = net.shape(a)
    fitting = [v for v in values if net.shape(v)[::2] == (n, h) and net.shape(v)[3] == w]
    return net.add("Concat", *draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=3)), axis=1)


def _pool(draw: Draw, net: Net, values: list[str]) -> str:
    x = draw(st.sampled_from(values))
    if min(net.shape(x)[2:]) < 2:
        return net.add("GlobalAveragePool", x)
    window: dict[str, Any] = {"kernel_shape": (2, 2), "strides": (draw(st.integers(1, 2)),) * 2}
    if draw(st.booleans()):
        return net.add("MaxPool", x, **window)
    return net.add("AveragePool", x, count_include_pad=draw(st.integers(0, 1)), **window)


def _pad(draw: Draw, net: Net, values: list[str]) -> str:
    x = draw(st.sampled_from(values))
    amounts = [0, draw(st.sampled_from([0, 0, 1])), 1, 0, 0, 0, draw(st.integers(0, 1)), 1]
    if net.shape(x)[1] > 1 and draw(st.booleans()):  # as many channels, but others
        amounts[1], amounts[5] = draw(st.sampled_from([(1, -1), (-1, 1)]))
    more = [np.array(draw(st.sampled_from([0.0, 0.0, 2.0])), np.float32)] if draw(st.booleans()) else []
    padded = net.add("Pad", x, np.array(amounts), *more)
    return _conv(draw, net, [padded]) if draw(st.booleans()) else _pool(draw, net, [padded])


def _taken(draw: Draw, net: Net, values: list[str]) -> str:
    """Take some channels of a value, often whole blocks of four."""
    x = draw(st.sampled_from(values))
    channels = net.shape(x)[1]
    first = draw(st.sampled_from(range(0, channels, 4)) if draw(st.booleans()) else st.integers(0, channels - 1))
    last = min(channels, first + draw(st.sampled_from([1, 3, 4, 8])))
    if draw(st.booleans()):
        return net.add("Gather", x, np.arange(first, last), axis=1)
    return net.add("Slice", x, np.array([first]), np.array([last]), np.array([1]))


def _nothing(draw: Draw, net: Net, values: list[str]) -> str:
    x = draw(st.sampled_from(values))
    kind = draw(st.sampled_from(["Identity", "Dropout", "Reshape", "Transpose"]))
    if kind == "Reshape":
        return net.add("Reshape", x, np.array(net.shape(x)))
    return net.add(kind, x, perm=(0, 1, 2, 3)) if kind == "Transpose" else net.add(kind, x)


def _through_shape(draw: Draw, net: Net, values: list[str]) -> str:
    x = draw(st.sampled_from(values))
    shape = net.add("Shape", x)
    half = net.add("Exp", net.constant(net.random(1)))
    return net.add("Mul", net.add("Reshape", net.add("Neg", x), shape), half)


def _softmax(draw: Draw, net: Net, values: list[str]) -> str:
    return net.add("Softmax", draw(st.sampled_from(values)), axis=draw(st.sampled_from([1, -1])))


def _unread(draw: Draw, net: Net, values: list[str]) -> str:
    net.add("Exp", draw(st.sampled_from(values)))
    return values[-1]


PLAIN: tuple[Step, ...] = (_conv, _conv, _batch_norm, _unary, _clip, _binary, _with_constant, _concat, _pool)
MORE: tuple[Step, ...] = (_pad, _taken, _nothing, _through_shape, _softmax, _unread)


@st.composite
def networks(
    draw: Draw,
    steps: int = 9,
    batches: Sequence[int] = (1, 2),
    sides: Sequence[int] = (3, 4, 5, 6),
    padded_first: bool = False,
) -> Graph:
    """Draw a network of some steps, with one to three outputs, for images of one of the sizes.

    With `padded_first` two convolutions that keep the size come first, and all else reads the second.
    """
    net = Net(draw(st.integers(0, 1000)))
    side = draw(st.sampled_from(sides))
    shape = (draw(st.sampled_from(batches)), draw(st.sampled_from([1, 3, 4, 8])), side, side)
    values = [net.input("x", *shape)]
    if padded_first:
        values = [net.conv(net.conv(values[0], 4, 3, pads=(1,) * 4), 8, 3, pads=(1,) * 4)]
    for _ in range(draw(st.integers(1, steps))):
        made = draw(st.sampled_from(PLAIN + MORE))(draw, net, values)
        if made not in values:
            values.append(made)
    last = values[-1]
    if draw(st.booleans()):
        flat = net.add("Flatten", net.add("GlobalAveragePool", last))
        last = net.add("Gemm", flat, net.random(net.shape(flat)[1], 5), net.random(5))
        values.append(last)
    others = draw(st.lists(st.sampled_from(values[1:] or values), max_size=2))
    return net.finish(last, *others)


def ended(draw: Draw, net: Net, x: str) -> Graph:
    """Return a network that puts out x. One inner value may be an output as well, and a dead node may read one."""
    inside = st.sampled_from([n.outputs[0] for n in net.graph.nodes])
    others = [draw(inside)] if draw(st.integers(0, 3)) == 3 else []
    if draw(st.integers(0, 5)) == 5:
        net.add("Identity", draw(inside))
    return net.finish(*dict.fromkeys([x, *others]))


def assert_right(graph: Graph, device: str, precision: str, tolerance: float) -> None:
    """Fail unless the device computes what the references of the ops do."""
    with weft.load(graph, device=device, precision=precision, fallback="error") as session:
        assert_session_is_right(session, graph, tolerance)


def assert_session_is_right(session: weft.Session, graph: Graph, tolerance: float) -> None:
    """Fail unless a session computes what the references of the ops do."""
    for seed in range(2):
        fed = feeds(graph, seed)
        for got, expected in zip(session.run(fed), outputs(graph, fed), strict=True):
            assert_near(got, expected, tolerance)
