"""Element-wise ops between others: NaN, infinities, zeros and constants of every kind give what they give alone.

One network has a chain for each op and each constant: something before it, the op, something behind it, so that each op
is fused behind a kernel and in front of a step. `PRODUCERS` and `CONSUMERS` take turns. Chains that differ by numbers
alone have one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from tests.helpers.run_length import is_long
from weft.core.graph.dtypes import DType
from weft.core.graph.interpreter import outputs
from weft.core.graph.layout import Array
from weft_conformance.cases.table import tolerance
from weft_conformance.cases.unary import DOMAINS, SPECIAL, ZERO_ATTRIBUTES

LARGE = (88.0, 89.0, -88.0, -104.0)
"""Of these or the opposite numbers an exponential is subnormal, which a device may take for 0."""
VALUES = np.array([*(v for v in SPECIAL if v not in LARGE), 3.0, -2.5, 2.0, -2.0, 10.0, -10.0], np.float32)
assert len(VALUES) == 24
NUMBERS = (0.0, -0.0, inf, -inf, nan, -1.0, 1.0, 0.5, 12582912.0)
"""The last one, added and taken away again, rounds to a whole number."""


class FedNet(Net):
    """A network with what some of its inputs are fed."""

    def __init__(self) -> None:
        super().__init__()
        self.fed: dict[str, Array] = {}


Added = Callable[[FedNet, str], str]
Tried = tuple[str, Added]
Chain = tuple[str, Added, Added, Added]
"""Its name, what comes before the ops that are tried, these, and what comes behind them."""


def _twice(net: Net, x: str, *dims: int) -> str:
    """Return the numbers, each repeated along a new last axis, in a shape."""
    both = net.add("Expand", net.add("Reshape", x, np.array([24, 1])), np.array([24, 2]))
    return net.add("Reshape", both, np.array(dims))


PRODUCERS: dict[str, Added] = {
    "step": lambda net, x: net.add("Neg", x),
    "maximum": lambda net, x: net.add("ReduceMax", _twice(net, x, 24, 2), np.array([-1])),
    "product": lambda net, x: net.add("MatMul", net.add("Reshape", x, np.array([24, 1])), np.ones((1, 1), np.float32)),
    "pool": lambda net, x: net.add("MaxPool", _twice(net, x, 1, 1, 6, 8), kernel_shape=(1, 2), strides=(1, 2)),
    "convolution": lambda net, x: net.add(
        "Conv", net.add("Reshape", x, np.array([1, 1, 4, 6])), np.ones((1, 1, 1, 1), np.float32)
    ),
}
CONSUMERS: dict[str, Added] = {
    "step": lambda net, y: net.add("Neg", y),
    "maximum": lambda net, y: net.add("ReduceMax", y, np.array([-1])),
    "product": lambda net, y: net.add("MatMul", y, np.ones((net.shape(y)[-1], 2), np.float32)),
    "softmax": lambda net, y: net.add("Softmax", y),
}
PAIRED = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Mod")


def _alone(kind: str, attributes: dict[str, Any]) -> Added:
    return lambda net, t: net.add(kind, t, **attributes)


def _paired(kind: str, number: float, form: int, first: bool) -> Added:
    """Return an op of a value and a number: a scalar, one element, or one for each of the last axis; known or fed."""

    def add(net: FedNet, t: str) -> str:
        array = np.full(((), (1,), net.shape(t)[-1:])[form % 3], number, np.float32)
        if form < 3:
            other: str | Array = array
        else:
            other = net.input(f"number{len(net.graph.inputs)}", *array.shape)
            net.fed[other] = array
        attributes: dict[str, Any] = {"fmod": 1} if kind == "Mod" else {}
        return net.add(kind, *((other, t) if first else (t, other)), **attributes)

    return add


def _cancelled(first: str, second: str, number: float) -> Added:
    """Return two ops that take a number and give it back, which rounds or overflows in between."""
    given = np.asarray(number, np.float32)
    return lambda net, t: net.add(second, net.add(first, t, given), given)


def _both(first: str, second: str) -> Added:
    return lambda net, t: net.add(second, net.add(first, t))


def groups() -> list[list[Tried]]:
    """Return what is tried, those together that share a kernel where all else is the same."""
    found: list[list[Tried]] = []
    for kind in DOMAINS:
        given = [{}, *(attributes for other, attributes in ZERO_ATTRIBUTES if other == kind)]
        found.append([(f"{kind} {attributes or ''}", _alone(kind, attributes)) for attributes in given])
    for at, kind in enumerate(PAIRED):
        forms = [(form, first) for form in range(6) for first in (False, True)]
        fitting = [each for each in forms if kind != "PRelu" or not (each[1] or each[0] % 3 == 2)]
        for form, first in fitting if is_long() else {fitting[at % len(fitting)], fitting[(at + 7) % len(fitting)]}:
            name = f"{kind}, form {form}{', number first' * first}"
            found.append([(f"{name}: {number}", _paired(kind, number, form, first)) for number in NUMBERS])
    found += [
        [(f"{a} and {b} {n}", _cancelled(a, b, n)) for n in numbers]
        for a, b, numbers in (
            ("Add", "Sub", (12582912.0, inf)), ("Sub", "Add", (12582912.0,)), ("Mul", "Div", (1e30, 0.0)),
            ("Div", "Mul", (1e-30,)),
        )
    ]
    found += [
        [(f"{a} and {b}", _both(a, b))]
        for a, b in (("Exp", "Log"), ("Sqrt", "Reciprocal"), ("Reciprocal", "Reciprocal"), ("Neg", "Reciprocal"))
    ]
    return found


def chains(device: str) -> list[Chain]:
    """Return the chains. In the long run each op has every producer and consumer; llvmpipe compiles slowly."""
    before, behind = list(PRODUCERS.items()), list(CONSUMERS.items())
    made: list[Chain] = []
    for at, group in enumerate(groups()):
        turns = [(before[at % len(before)], behind[at // len(before) % len(behind)])]
        if device == "vulkan" and at % 3 and not is_long():
            continue
        for (p, first), (c, last) in product(before, behind) if is_long() else turns:
            made += [(f"{p}, {name}, {c}", first, op, last) for name, op in group]
    return made


@pytest.mark.usefixtures("sizes_are_pushed")
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_what_ops_make_of_special_numbers_between_others(device: str) -> None:
    net, names = FedNet(), []
    x = net.input("x", 24)
    for name, before, op, behind in chains(device):
        names.append(name)
        net.graph.outputs.append(behind(net, op(net, before(net, x))))
    feeds = {"x": VALUES, **net.fed}
    wanted = outputs(net.graph, feeds)
    with weft.load(net.graph, device, fallback="error") as session:
        found = session.run(feeds)
        assert set(session.report.nodes_by_device) == {device}
    wrong = []
    for name, mine, theirs in zip(names, found, wanted, strict=True):
        if not np.allclose(mine, theirs, *tolerance(DType.FLOAT32, "transcendental"), equal_nan=True):
            wrong.append(f"{name}: {mine.ravel()} is not {theirs.ravel()}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(names)} chains", *wrong[:8]])
