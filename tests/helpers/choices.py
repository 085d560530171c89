"""Activations as exporters write them, by comparisons and Wheres, and random networks of such choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph

COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def scalar(net: Net, like: str, value: float) -> str:
    """Add a scalar of the type of a value."""
    return net.constant(np.asarray(value, net.graph.specs[like].dtype.numpy))


def chosen(net: Net, kind: str, a: str, b: float | str, x: str | float, y: str | float) -> str:
    """Add Where(kind(a, b), x, y); numbers are scalars of the type of a."""
    bound, *choices = (v if isinstance(v, str) else scalar(net, a, v) for v in (b, x, y))
    return net.add("Where", net.add(kind, a, bound), *choices)


def scaled(net: Net, v: str, factor: float) -> str:
    """Add factor * v."""
    return net.add("Mul", v, scalar(net, v, factor))


def moved(net: Net, v: str, by: float) -> str:
    """Add v + by."""
    return net.add("Add", v, scalar(net, v, by))


def _elu(net: Net, v: str) -> str:
    return scaled(net, moved(net, net.add("Exp", v), -1), 1.5)


def _hard_shrink(net: Net, v: str) -> str:
    outside = net.add("Or", net.add("Greater", v, scalar(net, v, 0.5)), net.add("Less", v, scalar(net, v, -0.5)))
    return net.add("Where", outside, v, scalar(net, v, 0))


def _soft_shrink(net: Net, v: str) -> str:
    high = chosen(net, "Greater", v, 0.5, moved(net, v, -0.5), 0)
    return net.add("Add", high, chosen(net, "Less", v, -0.5, moved(net, v, 0.5), 0))


def _but_zeros(net: Net, v: str) -> str:
    zero = net.add("Not", net.add("Equal", v, scalar(net, v, 0)))
    return net.add("Where", zero, v, scalar(net, v, 0.25))


def _within(net: Net, v: str) -> str:
    low, high = (net.add(kind, v, scalar(net, v, b)) for kind, b in (("GreaterOrEqual", -1), ("LessOrEqual", 1)))
    return net.add("Where", net.add("Not", net.add("And", low, high)), scalar(net, v, 0), v)


ACTIVATIONS: Mapping[str, Callable[[Net, str], str]] = {
    "leaky ReLU": lambda net, v: chosen(net, "Greater", v, 0, v, scaled(net, v, 0.1)),
    "leaky ReLU by Less": lambda net, v: chosen(net, "Less", v, 0, scaled(net, v, 0.1), v),
    "limit": lambda net, v: chosen(net, "GreaterOrEqual", v, 0.75, 0.75, v),
    "ReLU by zeros in the shape of x": lambda net, v: chosen(
        net, "Greater", v, 0, v, net.constant(np.zeros(net.shape(v), net.graph.specs[v].dtype.numpy))
    ),
    "threshold": lambda net, v: chosen(net, "LessOrEqual", v, 0.1, -2, v),
    "ELU": lambda net, v: chosen(net, "Greater", v, 0, v, _elu(net, v)),
    "SELU": lambda net, v: scaled(net, chosen(net, "Greater", v, 0, v, _elu(net, v)), 1.0507),
    "hard shrink": _hard_shrink,
    "soft shrink": _soft_shrink,
    "soft shrink, nested": lambda net, v: chosen(
        net, "Greater", v, 0.5, moved(net, v, -0.5), chosen(net, "Less", v, -0.5, moved(net, v, 0.5), 0)
    ),
    "but zeros": _but_zeros,
    "within": _within,
}


# -- random networks ---------------------------------------------------------------------------------------

Draw = st.DrawFn
Step = Callable[[Draw, Net, list[str], list[str]], None]
"""Adds to the values, which are floats, or to the conditions."""


def _operand(draw: Draw, net: Net, values: list[str], like: str) -> str:
    """Draw a value of a type, a scalar or a constant that broadcasts."""
    dtype = net.graph.specs[like].dtype
    value = draw(st.sampled_from(values))
    kind = draw(st.sampled_from(["value", "value", "scalar", "channels", "zeros"]))
    if kind == "value" and net.graph.specs[value].dtype is dtype:
        return value
    if kind == "channels":
        return net.constant(net.random(3, 1).astype(dtype.numpy))
    if kind == "zeros":
        return net.constant(np.zeros(draw(st.sampled_from([(1,), (3, 4), (2, 3, 4)])), dtype.numpy))
    return scalar(net, like, draw(st.sampled_from([0, 0.5, -1, np.nan, -np.inf])))


def _compare(draw: Draw, net: Net, values: list[str], conditions: list[str]) -> None:
    a = draw(st.sampled_from(values))
    sides = draw(st.permutations([a, _operand(draw, net, values, a)]))
    conditions.append(net.add(draw(st.sampled_from(COMPARISONS)), *sides))


def _logic(draw: Draw, net: Net, values: list[str], conditions: list[str]) -> None:
    if conditions:
        kind = draw(st.sampled_from(["Not", "Not", "And", "Or", "Xor"]))
        read = [draw(st.sampled_from(conditions)) for _ in range(1 if kind == "Not" else 2)]
        conditions.append(net.add(kind, *read))


def _where(draw: Draw, net: Net, values: list[str], conditions: list[str]) -> None:
    if conditions:
        x = draw(st.sampled_from(values))
        sides = draw(st.permutations([x, _operand(draw, net, values, x)]))
        values.append(net.add("Where", draw(st.sampled_from(conditions)), *sides))


def _turn(draw: Draw, net: Net, values: list[str], conditions: list[str]) -> None:
    """Turn a value or a condition there and back, so that moves meet between comparisons and Wheres."""
    pool = draw(st.sampled_from([values, conditions or values]))
    x = draw(st.sampled_from(pool))
    if len(net.shape(x)) == 3:
        turned = net.add("Transpose", x, perm=(0, 2, 1))
        turned = net.add("Not" if pool is conditions else "Neg", turned)
        pool.append(net.add("Transpose", turned, perm=(0, 2, 1)))


def _unary(draw: Draw, net: Net, values: list[str], conditions: list[str]) -> None:
    values.append(net.add(draw(st.sampled_from(["Sqrt", "Relu", "Neg"])), draw(st.sampled_from(values))))


STEPS: tuple[Step, ...] = (_compare, _compare, _logic, _where, _where, _where, _turn, _unary)


@st.composite
def choice_networks(draw: Draw, steps: int = 10, floats: Sequence[str] = ("float32", "float16", "float64")) -> Graph:
    """Draw a network of comparisons, logic and Wheres, of which one to three values or conditions are outputs."""
    net = Net(draw(st.integers(0, 1000)))
    values = [net.input("x", 2, 3, 4), net.input("z", 3, 4), net.add("Relu", "x")]
    conditions: list[str] = []
    for _ in range(draw(st.integers(2, steps))):
        step = draw(st.sampled_from([*STEPS, None]))
        if step is None:
            values.append(net.add("Cast", draw(st.sampled_from(values)), to=DType(draw(st.sampled_from(floats)))))
        else:
            step(draw, net, values, conditions)
    others = draw(st.lists(st.sampled_from([*values[2:], *conditions]), max_size=2))
    return net.finish(*dict.fromkeys([values[-1], *others]))
