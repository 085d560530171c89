"""Loops over an axis as exporters unroll them: what each step reads, linear recurrences, and random loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph


def index(net: Net, value: str, at: int, axis: int = 1, form: str = "Gather") -> str:
    """Add one index of an axis of a value."""
    if form == "Gather":
        return net.add("Gather", value, np.asarray(at, np.int64), axis=axis)
    part = net.add("Slice", value, np.array([at]), np.array([at + 1]), np.array([axis]))
    return net.add("Squeeze", part, np.array([axis]))


def shared(net: Net, *dims: int) -> str:
    """Return the name of a constant that all steps of a network share."""
    name = "shared" + "x".join(map(str, dims))
    return name if name in net.graph.constants else net.constant(net.random(*dims), name)


def states(
    net: Net,
    dims: tuple[int, ...] = (2, 5, 3),
    axis: int = 1,
    *,
    order: tuple[int, ...] = (),
    form: str = "Gather",
    swapped: bool = False,
    zeros: bool = False,
    dtype: DType = DType.FLOAT32,
) -> list[str]:
    """Add the steps of a recurrence, and return what each makes; `order`: which indices they read."""
    factors, terms = (net.add("Sigmoid", net.input(name, *dims, dtype=dtype)) for name in "ab")
    rest = (*dims[:axis], *dims[axis + 1 :])
    state: Any = np.zeros(rest, dtype.numpy) if zeros else net.input("s", *rest, dtype=dtype)
    made = []
    for at in order or range(dims[axis]):
        a, b = (index(net, value, at, axis, form) for value in (factors, terms))
        scaled = net.add("Mul", *((state, a) if swapped else (a, state)))
        made.append(state := net.add("Add", *((b, scaled) if swapped else (scaled, b))))
    return made


def joined(net: Net, made: list[str], axis: int = 1) -> str:
    """Add the stack of what the steps make."""
    return net.add("Concat", *(net.add("Unsqueeze", each, np.array([axis])) for each in made), axis=axis)


@st.composite
def recurrences(draw: st.DrawFn) -> Graph:
    """Draw a linear recurrence, with steps in any order; a state may be an output, too."""
    net, axis, count = Net(draw(st.integers(0, 100))), draw(st.integers(0, 2)), draw(st.integers(2, 4))
    dims = [2, 3, 3]
    dims[axis] = count
    order = tuple(draw(st.permutations(range(count)))) if draw(st.booleans()) else ()
    form, (swapped, zeros) = draw(st.sampled_from(["Gather", "Slice"])), draw(st.tuples(st.booleans(), st.booleans()))
    made = states(net, tuple(dims), axis, order=order, form=form, swapped=swapped, zeros=zeros)
    others = draw(st.lists(st.sampled_from(made), max_size=1))
    return net.finish(joined(net, made, draw(st.integers(0, 2))), *others)


@st.composite
def unrolled_loops(draw: st.DrawFn) -> Graph:
    """Draw a loop whose steps multiply, add and move, and may keep a state."""
    net, count = Net(), draw(st.integers(2, 4))
    x, y = net.input("x", 3, count, 3), net.add("Sigmoid", net.input("y", count, 3, 3))
    body = draw(st.lists(st.sampled_from("product pair sum relu transpose reshape before".split()), max_size=5))
    state, made = net.input("s", 3, 3), []
    for at in range(count):
        first, second = index(net, x, at), index(net, y, at, 0)
        value = first
        for op in body:
            if op == "product":
                value = net.add("MatMul", value, shared(net, 3, 3))
            elif op == "pair":
                value = net.add("MatMul", second, value)
            elif op == "sum":
                value = net.add("Add", value, net.add("Mul", second, shared(net, 3)))
            elif op == "relu":
                value = net.add("Relu", value)
            elif op == "transpose":
                value = net.add("Transpose", value, perm=(1, 0))
            elif op == "reshape":
                value = net.add("Reshape", net.add("Reshape", value, np.array((9,))), np.array((3, 3)))
            else:
                state = net.add("Add", net.add("Mul", value, state), second)
                value = state
        made.append(value)
    ends = [net.add("Concat", *made, axis=draw(st.sampled_from([0, 1])))] if draw(st.booleans()) else made
    return net.finish(*ends)
