"""Random networks of transposes, reshapes and what may stand between them, for property tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from weft.core.graph.graph import Graph

Draw = st.DrawFn
Step = Callable[[Draw, Net, str], str]
MAX_RANK = 5


def _transpose(draw: Draw, net: Net, x: str) -> str:
    return net.add("Transpose", x, perm=tuple(draw(st.permutations(range(len(net.shape(x)))))))


def _there_and_back(draw: Draw, net: Net, x: str) -> str:
    order = draw(st.permutations(range(len(net.shape(x)))))
    middle = net.add("Transpose", x, perm=tuple(order))
    for _ in range(draw(st.integers(0, 2))):
        middle = _elementwise(draw, net, middle)
    return net.add("Transpose", middle, perm=tuple(order.index(k) for k in range(len(order))))


def _reshape(draw: Draw, net: Net, x: str) -> str:
    dims = [d for d in net.shape(x) if d != 1]
    while len(dims) > 1 and draw(st.booleans()):
        at = draw(st.integers(0, len(dims) - 2))
        dims[at : at + 2] = [dims[at] * dims[at + 1]]
    while len(dims) < MAX_RANK and draw(st.booleans()):
        dims.insert(draw(st.integers(0, len(dims))), 1)
    dims = dims or [1]
    return net.add("Reshape", x, np.array(dims, np.int64), allowzero=int(0 in dims))


def _undo_reshape(draw: Draw, net: Net, x: str) -> str:
    dims, middle = np.array(net.shape(x), np.int64), _reshape(draw, net, x)
    for _ in range(draw(st.integers(0, 2))):
        middle = _elementwise(draw, net, middle)
    return net.add("Reshape", middle, dims, allowzero=int(0 in dims))


def _flatten(draw: Draw, net: Net, x: str) -> str:
    return net.add("Flatten", x, axis=draw(st.integers(0, len(net.shape(x)))))


def _squeeze(draw: Draw, net: Net, x: str) -> str:
    ones = [k for k, d in enumerate(net.shape(x)) if d == 1]
    if not ones or len(ones) == len(net.shape(x)):
        return _unsqueeze(draw, net, x)
    return net.add("Squeeze", x, np.array(draw(st.lists(st.sampled_from(ones), min_size=1, unique=True))))


def _unsqueeze(draw: Draw, net: Net, x: str) -> str:
    rank = len(net.shape(x))
    if rank == MAX_RANK:
        return net.add("Identity", x)
    return net.add("Unsqueeze", x, np.array([draw(st.integers(0, rank))]))


def _elementwise(draw: Draw, net: Net, x: str) -> str:
    return draw(st.sampled_from([_unary, _with_constant, _with_itself, _clip]))(draw, net, x)


def _unary(draw: Draw, net: Net, x: str) -> str:
    return net.add(draw(st.sampled_from(["Relu", "Neg", "LeakyRelu", "HardSigmoid", "Abs"])), x)


def _with_constant(draw: Draw, net: Net, x: str) -> str:
    dims = net.shape(x)
    at = draw(st.integers(0, len(dims)))
    shape = draw(st.sampled_from([(), (1,), (1,) * len(dims), dims[at:], dims]))
    operands = draw(st.permutations([x, net.constant(net.random(*shape))]))
    return net.add(draw(st.sampled_from(["Add", "Mul", "Sub"])), *operands)


def _with_itself(draw: Draw, net: Net, x: str) -> str:
    return net.add("Mul", x, net.add("Relu", x))


def _clip(draw: Draw, net: Net, x: str) -> str:
    return net.add("Clip", x, np.array(-0.5, np.float32), "", name="")


def _with_other(draw: Draw, net: Net, x: str) -> str:
    others = [v for v in _values(net) if net.shape(v) == net.shape(x)]
    return net.add("Add", x, draw(st.sampled_from(others)))


def _again(draw: Draw, net: Net, x: str) -> str:
    """Repeat a move of any value: two equal siblings."""
    moves = [n for n in net.graph.nodes if n.op.type in ("Transpose", "Reshape", "Flatten", "Unsqueeze")]
    if not moves:
        return _transpose(draw, net, x)
    node = draw(st.sampled_from(moves))
    return net.add(node.op, *node.inputs)


def _scan(draw: Draw, net: Net, x: str) -> str:
    """Add something that a transpose cannot pass."""
    return net.add("CumSum", x, np.array(0))


def _values(net: Net) -> list[str]:
    return [*net.graph.inputs, *(n.outputs[0] for n in net.graph.nodes)]


STEPS: tuple[Step, ...] = (
    *(_transpose, _there_and_back, _there_and_back, _reshape, _undo_reshape, _flatten, _squeeze, _unsqueeze),
    *(_elementwise, _elementwise, _with_other, _again, _again, _scan),
)


TURNS: tuple[Step, ...] = (
    *(_transpose, _there_and_back, _there_and_back, _elementwise, _with_constant, _with_constant, _with_other, _again),
)
"""Steps without reshapes."""


@st.composite
def move_networks(draw: Draw, steps: int = 10, among: Sequence[Step] = STEPS) -> Graph:
    """Draw a network of rank 1 to 5, with axes of size 0 and 1, shared values and up to four outputs."""
    net = Net(draw(st.integers(0, 1000)))
    sizes = st.sampled_from([0, 1, 1, 1, 2, 2, 3])
    x = net.input("x", *draw(st.lists(sizes, min_size=1, max_size=4).filter(lambda d: prod(d) < 40)))
    for _ in range(draw(st.integers(1, steps))):
        source = x if draw(st.integers(0, 3)) else draw(st.sampled_from(_values(net)))
        if len(net.shape(source)) <= MAX_RANK:
            x = draw(st.sampled_from(among))(draw, net, source)
    made = [v for v in _values(net) if v not in net.graph.inputs]
    return net.finish(*dict.fromkeys([x, *draw(st.lists(st.sampled_from(made or [x]), max_size=3))]))
