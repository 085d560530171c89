"""Random networks of moves and of ops that may read or write through them, for property tests."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from weft.core.graph.graph import Graph

Draw = st.DrawFn
Step = Callable[[Draw, Net, str], "str | None"]
MOST_RANK, MOST_ELEMENTS = 5, 3000


def _axis(draw: Draw, net: Net, x: str) -> int:
    return draw(st.integers(0, len(net.shape(x)) - 1))


def _slice(net: Net, x: str, axis: int, start: int, stop: int, step: int = 1) -> str:
    return net.add("Slice", x, *(np.array([v]) for v in (start, stop, axis, step)))


def _transpose(draw: Draw, net: Net, x: str) -> str:
    return net.add("Transpose", x, perm=tuple(draw(st.permutations(range(len(net.shape(x)))))))


def _part(draw: Draw, net: Net, x: str) -> str:
    axis = _axis(draw, net, x)
    size = net.shape(x)[axis]
    start = draw(st.integers(0, size - 1))
    if draw(st.integers(0, 4)) == 0:
        return _slice(net, x, axis, start, -size - 1, -1)
    return _slice(net, x, axis, start, draw(st.integers(start + 1, size)), draw(st.sampled_from([1, 1, 2])))


def _roll(draw: Draw, net: Net, x: str) -> str | None:
    axis = _axis(draw, net, x)
    size = net.shape(x)[axis]
    if size < 2:
        return None
    at = draw(st.integers(1, size - 1))
    return net.add("Concat", _slice(net, x, axis, at, size), _slice(net, x, axis, 0, at), axis=axis)


def _quarters(draw: Draw, net: Net, x: str) -> str | None:
    """Join every second row and column, four times, as patches are merged."""
    dims = net.shape(x)
    if len(dims) < 3 or dims[0] % 2 or dims[1] % 2:
        return None
    parts = [_slice(net, _slice(net, x, 0, i, dims[0], 2), 1, j, dims[1], 2) for j in (0, 1) for i in (0, 1)]
    return net.add("Concat", *draw(st.sampled_from([parts, parts[::-1], parts[1:] + parts[:1]])), axis=len(dims) - 1)


def _halves(draw: Draw, net: Net, x: str) -> str | None:
    axis = _axis(draw, net, x)
    if net.shape(x)[axis] % 2:
        return None
    first = net.add("Split", x, axis=axis, num_outputs=2, outputs=2)
    halves = draw(st.sampled_from([[first, f"{first}.1"], [f"{first}.1", first]]))
    return net.add("Concat", *halves, axis=_axis(draw, net, x))


def _expand(draw: Draw, net: Net, x: str) -> str:
    dims = [draw(st.sampled_from([1, 2, 4])) if d == 1 else d for d in net.shape(x)]
    return net.add("Expand", x, np.array(dims))


def _reshape(draw: Draw, net: Net, x: str) -> str | None:
    dims, axis = list(net.shape(x)), _axis(draw, net, x)
    by = draw(st.sampled_from([0, 2, 4]))
    if by and dims[axis] % by == 0 and len(dims) < MOST_RANK:
        dims[axis : axis + 1] = [dims[axis] // by, by]
    elif axis:
        dims[axis - 1 : axis + 1] = [dims[axis - 1] * dims[axis]]
    else:
        return None
    return net.add("Reshape", x, np.array(dims))


def _concat(draw: Draw, net: Net, x: str) -> str:
    axis, dims = _axis(draw, net, x), net.shape(x)
    rest = dims[:axis] + dims[axis + 1 :]
    fitting = [v for v in _values(net) if (d := net.shape(v))[:axis] + d[axis + 1 :] == rest and len(d) == len(dims)]
    others = draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=2))
    return net.add("Concat", *draw(st.permutations([x, *others])), axis=axis)


def _gather(draw: Draw, net: Net, x: str) -> str:
    axis = _axis(draw, net, x)
    places = draw(st.lists(st.integers(0, net.shape(x)[axis] - 1), min_size=1, max_size=3))
    return net.add("Gather", x, np.array(places), axis=axis)


def _unary(draw: Draw, net: Net, x: str) -> str:
    return net.add(draw(st.sampled_from(["Relu", "Sigmoid", "Neg"])), x)


def _sum(draw: Draw, net: Net, x: str) -> str:
    return net.add("Add", x, draw(st.sampled_from([v for v in _values(net) if net.shape(v) == net.shape(x)])))


def _rows(draw: Draw, net: Net, x: str) -> str:
    if draw(st.booleans()):
        return net.add("Softmax", x, axis=-1)
    return net.add("LayerNormalization", x, net.random(net.shape(x)[-1]), axis=-1)


def _mean(draw: Draw, net: Net, x: str) -> str:
    return net.add("ReduceMean", x, np.array([_axis(draw, net, x)]), keepdims=1)


def _product(draw: Draw, net: Net, x: str) -> str | None:
    rank = len(net.shape(x))
    if rank < 2:
        return None
    if draw(st.booleans()):
        return net.add("MatMul", x, net.random(net.shape(x)[-1], draw(st.sampled_from([3, 4, 8]))))
    turned = net.add("Transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))
    return net.add("MatMul", x, turned)


def _conv(draw: Draw, net: Net, x: str) -> str | None:
    return net.conv(x, draw(st.sampled_from([3, 4, 8]))) if len(net.shape(x)) == 4 else None


def _pool(draw: Draw, net: Net, x: str) -> str | None:
    dims = net.shape(x)
    if len(dims) != 4 or min(dims[2:]) < 2:
        return None
    return net.add("MaxPool", x, kernel_shape=(2, 2), strides=(draw(st.sampled_from([1, 2])),) * 2)


STEPS: tuple[Step, ...] = (
    _transpose, _transpose, _transpose, _part, _roll, _quarters, _halves, _expand, _reshape, _reshape, _concat, _concat,
    _gather, _unary, _sum, _rows, _mean, _product, _conv, _conv, _conv, _pool,
)


def _values(net: Net) -> list[str]:
    return [*net.graph.inputs, *(o for node in net.graph.nodes for o in node.outputs)]


@st.composite
def moving_networks(draw: Draw, steps: int) -> Graph:
    """Draw a network of one input, of rank 2 to 4, with one to three outputs."""
    net = Net(draw(st.integers(0, 1000)))
    least = draw(st.sampled_from([2, 4]))
    x = net.input("x", *draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=least, max_size=4)))
    for _ in range(draw(st.integers(1, steps))):
        source = x if draw(st.integers(0, 2)) else draw(st.sampled_from(_values(net)))
        following = draw(st.sampled_from(STEPS))(draw, net, source)
        x = x if following is None or prod(net.shape(following)) > MOST_ELEMENTS else following
    made = [v for v in _values(net) if v not in net.graph.inputs] or [net.add("Neg", "x")]
    return net.finish(*dict.fromkeys([made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))]))
