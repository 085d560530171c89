"""Fused float arithmetic is what the nodes say: nothing is cancelled, reordered or rounded once in place of twice."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.launches import kernels
from tests.helpers.nets import Net
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array

GPUS = ("opencl", "vulkan")
MAGIC = np.float32(12582912)
"""1.5 * 2^23: a number that is added and taken away again is rounded to a whole one."""
SHAPES = {"scalar": (), "one number": (1,), "each column": (8,)}
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32) * 5


def computed(graph: Graph, device: str, *inputs: Array, fusing: bool = True) -> Array:
    """Return the only output of a graph, all of which runs on the device."""
    with weft.load(graph, device, fallback="error", fusing=fusing) as session:
        assert set(session.report.placement.values()) == {device}
        return session.run(*inputs)[0]


def rounded(net: Net, x: str, shape: tuple[int, ...] = ()) -> str:
    """Add the nodes that round to whole numbers."""
    magic = np.full(shape, MAGIC)
    return net.add("Sub", net.add("Add", x, magic), magic)


def quantized(net: Net, x: str, shape: tuple[int, ...]) -> str:
    """Add the nodes that round to multiples of a third, as nearly as its reciprocal allows."""
    third = np.full(shape, 1 / 3, np.float32)
    return net.add("Mul", rounded(net, net.add("Mul", x, np.full(shape, 3, np.float32)), shape), third)


def split(net: Net, x: str, shape: tuple[int, ...]) -> str:
    """Add the nodes that keep the upper half of the digits: c - (c - x) with c = 4097 x."""
    large = net.add("Mul", x, np.full(shape, 4097, np.float32))
    return net.add("Sub", large, net.add("Sub", large, x))


def lost(net: Net, x: str, shape: tuple[int, ...]) -> str:
    """Add the nodes of x + 1e4 - 1e4."""
    there = net.add("Add", x, np.full(shape, 1e4, np.float32))
    return net.add("Add", there, np.full(shape, -1e4, np.float32))


def overflown(net: Net, x: str, shape: tuple[int, ...]) -> str:
    """Add a product that is infinite in fp32, and divide it again."""
    high = net.add("Mul", x, np.full(shape, 1e38, np.float32))
    return net.add("Mul", high, np.full(shape, 1e-38, np.float32))


def f32(value: float) -> np.float32:
    return np.float32(value)


CHAINS: dict[str, tuple[Callable[[Net, str, tuple[int, ...]], str], Callable[[Array], Array]]] = {
    "round": (rounded, lambda x: (x + MAGIC) - MAGIC),
    "quantize": (quantized, lambda x: ((x * f32(3) + MAGIC) - MAGIC) * f32(1 / 3)),
    "split": (split, lambda x: f32(4097) * x - (f32(4097) * x - x)),
    "lose digits": (lost, lambda x: (x + f32(1e4)) - f32(1e4)),
    "overflow": (overflown, lambda x: (x * f32(1e38)) * f32(1e-38)),
}


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_steps_gives_every_bit_of_numpys_result(chain: str, shape: str, device: str) -> None:
    add, of = CHAINS[chain]
    net = Net()
    graph = net.finish(add(net, net.input("x", 4, 8), SHAPES[shape]))
    with np.errstate(over="ignore"):
        wanted = of(X)
    assert not np.array_equal(wanted, X), "the chain does something"
    with weft.load(graph, device, fallback="error") as session:
        assert kernels(session) == ["elementwise"]
        assert np.array_equal(session.run(X)[0], wanted)


@pytest.mark.parametrize("device", GPUS)
def test_an_image_gets_every_bit_too(device: str) -> None:
    net = Net()
    x = net.input("x", 1, 6, 5, 7)
    pooled = net.add("MaxPool", x, kernel_shape=(1, 1))
    graph = net.finish(split(net, pooled, (6, 1, 1)))
    image = np.random.default_rng(1).standard_normal((1, 6, 5, 7)).astype(np.float32)
    assert np.array_equal(computed(graph, device, image), CHAINS["split"][1](image))


@pytest.mark.parametrize("device", GPUS)
def test_the_logarithm_of_an_exponential_overflows_with_it(device: str) -> None:
    net = Net()
    grown = net.add("Log", net.add("Exp", net.input("x", 3)))
    graph = net.finish(net.add("Min", grown, np.array(1e9, np.float32)))
    got = computed(graph, device, np.array([100, 1, -200], np.float32))
    np.testing.assert_allclose(got, np.array([1e9, 1, -np.inf]), rtol=1e-6)


IMAGE, ROWS = (1, 3, 6, 6), (4, 8)
BASES: dict[str, tuple[tuple[int, ...], Callable[[Net, str], str]]] = {
    "Conv": (IMAGE, lambda net, x: net.conv(x, 5, 3)),
    "depthwise Conv": (IMAGE, lambda net, x: net.conv(x, 3, 3, group=3)),
    "ConvTranspose": (IMAGE, lambda net, x: net.add("ConvTranspose", x, net.random(3, 4, 3, 3), kernel_shape=(3, 3))),
    "MaxPool": (IMAGE, lambda net, x: net.add("MaxPool", x, kernel_shape=(2, 2))),
    "AveragePool": (IMAGE, lambda net, x: net.add("AveragePool", x, kernel_shape=(2, 2))),
    "GlobalAveragePool": (IMAGE, lambda net, x: net.add("GlobalAveragePool", x)),
    "InstanceNormalization": (
        IMAGE,
        lambda net, x: net.add("InstanceNormalization", x, net.random(3), net.random(3)),
    ),
    "constant MatMul": (ROWS, lambda net, x: net.add("MatMul", x, net.random(8, 5))),
    "MatMul": (ROWS, lambda net, x: net.add("MatMul", x, net.add("Transpose", x, perm=(1, 0)))),
    "Softmax": (ROWS, lambda net, x: net.add("Softmax", x)),
    "LayerNormalization": (ROWS, lambda net, x: net.add("LayerNormalization", x, net.random(8))),
    "ReduceMean": (ROWS, lambda net, x: net.add("ReduceMean", x, np.array([1]), keepdims=1)),
}


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("base", BASES)
def test_rounding_behind_a_kernel_of_another_kind_gives_whole_numbers(base: str, device: str) -> None:
    shape, add = BASES[base]
    net = Net()
    made = net.add("Mul", add(net, net.input("x", *shape)), np.array(10, np.float32))
    graph = net.finish(rounded(net, made), made)
    image = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    with weft.load(graph, device, fallback="error") as session:
        whole, exact = session.run(image)
    assert np.array_equal(whole, np.rint(exact)), "the second output is what was rounded"
    graph.outputs.pop()
    got = computed(graph, device, image)
    assert np.array_equal(got, np.rint(got)) and np.abs(got - exact).max() <= 0.5 + 1e-5


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("base", ["Conv", "MaxPool", "MatMul"])
def test_what_is_read_from_a_chain_was_rounded(base: str, device: str) -> None:
    shape = ROWS if base == "MatMul" else IMAGE
    net = Net()
    x = rounded(net, net.input("x", *shape))
    weights = np.arange(np.prod((5, *shape[1:2], 1, 1))).reshape(5, shape[1], 1, 1).astype(np.float32)
    y = {
        "Conv": lambda: net.add("Conv", x, weights),
        "MaxPool": lambda: net.add("MaxPool", x, kernel_shape=(2, 2)),
        "MatMul": lambda: net.add("MatMul", x, weights[:, :, 0, 0].T.copy()),
    }[base]()
    image = np.random.default_rng(3).standard_normal(shape).astype(np.float32) * 5
    got = computed(net.finish(y), device, image)
    assert np.array_equal(got, np.rint(got))


Step = tuple[str, float]
STEPS: dict[str, Callable[[Array, np.float32], Array]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Max": np.maximum,
    "Min": np.minimum,
}
NUMBERS = (12582912.0, -12582912.0, 1e4, -1e4, 4097.0, 1e30, 1e-30, 0.1, 3.0, 1 / 3, -1.0, 1.0)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW)
@given(
    device=st.sampled_from(GPUS),
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from(NUMBERS)), min_size=2, max_size=8),
    earlier=st.booleans(),
)
def test_any_chain_gives_every_bit_of_numpys_result(device: str, steps: Sequence[Step], earlier: bool) -> None:
    net = Net()
    value = first = net.input("x", 4, 8)
    wanted = X
    with np.errstate(over="ignore", invalid="ignore"):
        for op, number in steps:
            value, wanted = net.add(op, value, np.array(number, np.float32)), STEPS[op](wanted, f32(number))
        if earlier:
            value, wanted = net.add("Sub", value, first), wanted - X
    got = computed(net.finish(value), device, X)
    np.testing.assert_array_equal(got, wanted)
