"""Fused float arithmetic is what the nodes say: nothing is cancelled, reordered or rounded once in place of twice."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.launches import kernels
from tests.helpers.nets import Net
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
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
        y: Array = session.run(*inputs)[0]
        return y


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
def test_a_product_and_a_sum_are_rounded_each(device: str) -> None:
    net = Net()
    graph = net.finish(net.add("HardSigmoid", net.input("x", 8, 8), alpha=1 / 3, beta=-1.0))
    x = np.linspace(2.9, 3.1, 64, dtype=np.float32).reshape(8, 8)
    assert np.array_equal(computed(graph, device, x), np.clip(f32(1 / 3) * x + f32(-1), 0, 1))


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


SPECIAL = np.array([1, -2, 0, -0.0, np.inf, -np.inf, np.nan, 3e38], np.float32)
ZERO, INFINITE = f32(0), f32(np.inf)
WITH_A_CONSTANT: dict[str, tuple[Callable[[Net, str, Array], str], float, Callable[[Array], Array]]] = {
    "x / 0": (lambda net, x, c: net.add("Div", x, c), 0, lambda x: x / ZERO),
    "x / -0": (lambda net, x, c: net.add("Div", x, c), -0.0, lambda x: x / -ZERO),
    "x * 0": (lambda net, x, c: net.add("Mul", x, c), 0, lambda x: x * ZERO),
    "0 / x": (lambda net, x, c: net.add("Div", c, x), 0, lambda x: ZERO / x),
    "x * inf": (lambda net, x, c: net.add("Mul", x, c), np.inf, lambda x: x * INFINITE),
    "x / inf": (lambda net, x, c: net.add("Div", x, c), np.inf, lambda x: x / INFINITE),
    "inf - x": (lambda net, x, c: net.add("Sub", c, x), np.inf, lambda x: INFINITE - x),
    "nan * x": (lambda net, x, c: net.add("Mul", c, x), np.nan, lambda x: f32(np.nan) * x),
    "0 * |x|": (lambda net, x, c: net.add("Mul", c, net.add("Abs", x)), 0, lambda x: ZERO * np.abs(x)),
    "1 / (x * 0)": (lambda net, x, c: net.add("Reciprocal", net.add("Mul", x, c)), 0, lambda x: f32(1) / (x * ZERO)),
    "x / x * 0": (lambda net, x, c: net.add("Mul", net.add("Div", x, x), c), 0, lambda x: x / x * ZERO),
    "a slope of 0": (lambda net, x, c: net.add("PRelu", x, c), 0, lambda x: np.where(x < 0, ZERO * x, x)),
}


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("fusing", [True, False])
@pytest.mark.parametrize("row", WITH_A_CONSTANT)
def test_constants_that_are_zero_or_not_finite_hide_nothing(row: str, fusing: bool, device: str) -> None:
    add, number, of = WITH_A_CONSTANT[row]
    with np.errstate(all="ignore"):
        wanted = of(SPECIAL)
    for constant in (np.array(number, np.float32), np.full(1, number, np.float32), np.full(8, number, np.float32)):
        net = Net()
        graph = net.finish(add(net, net.input("x", 8), constant))
        assert_same(computed(graph, device, SPECIAL, fusing=fusing), wanted)


WITH_ATTRIBUTES: dict[str, tuple[str, dict[str, Any], Callable[[Array], Array]]] = {
    "LeakyRelu": ("LeakyRelu", {"alpha": 0.0}, lambda x: np.where(x < 0, ZERO * x, x)),
    "HardSigmoid": ("HardSigmoid", {"alpha": 0.0, "beta": 0.5}, lambda x: np.clip(ZERO * x + f32(0.5), 0, 1)),
    "Elu": ("Elu", {"alpha": 0.0}, lambda x: np.where(x > 0, x, ZERO * np.expm1(x))),
    "Selu": ("Selu", {"alpha": 0.0, "gamma": 0.0}, lambda x: ZERO * np.where(x > 0, x, ZERO * np.expm1(x))),
    "Swish": ("Swish", {"alpha": 0.0}, lambda x: x / (f32(1) + np.exp(ZERO * -x))),
    "an infinite slope": ("LeakyRelu", {"alpha": float("inf")}, lambda x: np.where(x < 0, INFINITE * x, x)),
}


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("after", ["nothing", "Neg"])
@pytest.mark.parametrize("row", WITH_ATTRIBUTES)
def test_attributes_that_are_zero_or_not_finite_hide_nothing(row: str, after: str, device: str) -> None:
    kind, attributes, of = WITH_ATTRIBUTES[row]
    net = Net()
    x = net.input("x", 8)
    graph = net.finish(net.add(kind, x if after == "nothing" else net.add(after, x), **attributes))
    with np.errstate(all="ignore"):
        wanted = of(SPECIAL if after == "nothing" else -SPECIAL)
    np.testing.assert_array_equal(computed(graph, device, SPECIAL), wanted)


def assert_same(got: Array, wanted: Array) -> None:
    """Fail unless two arrays have the same numbers, also the signs of zeros, and NaN at the same places."""
    np.testing.assert_array_equal(got, wanted)
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(wanted[known]))


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("base", ["MaxPool", "MatMul", "Softmax"])
def test_a_zero_behind_another_kernel_hides_no_infinity(base: str, device: str) -> None:
    net = Net()
    x = net.input("x", *(IMAGE if base == "MaxPool" else ROWS))
    made = {
        "MaxPool": lambda: net.add("MaxPool", x, kernel_shape=(1, 1)),
        "MatMul": lambda: net.add("MatMul", x, np.eye(8, dtype=np.float32)),
        "Softmax": lambda: net.add("Softmax", x),
    }[base]()
    graph = net.finish(net.add("Mul", made, np.array(0, np.float32)))
    image = np.ones(net.shape("x"), np.float32)
    image.reshape(-1)[3] = np.inf
    got = computed(graph, device, image).reshape(-1)
    assert np.isnan(got[3]) and got[-1] == 0


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("zero", [0, 15, 16, 23])
def test_each_of_many_constants_may_be_zero(zero: int, device: str) -> None:
    net = Net()
    value, wanted = net.input("x", 8, dtype=DType.FLOAT64), SPECIAL.astype(np.float64)
    for k in range(24):
        number = np.float64(0 if k == zero else 1 + k / 64)
        value = net.add("Div" if k == zero else "Mul", value, np.array(number))
        with np.errstate(all="ignore"):
            wanted = wanted / number if k == zero else wanted * number
    with weft.load(net.finish(value), device, fallback="error") as session:
        assert kernels(session) == ["elementwise"]
        assert_same(session.run(SPECIAL.astype(np.float64))[0], wanted)


@pytest.mark.parametrize("device", GPUS)
def test_networks_that_change_their_shape_have_numbers_too(device: str) -> None:
    net = Net()
    x = net.input("x", "n", 8)
    graph = net.finish(rounded(net, net.add("Mul", x, np.array(1.7, np.float32))))
    with weft.load(graph, device, fallback="error", shapes={"x": (1, 8)}) as session:
        for n in (1, 4, 3, 2):
            image = np.repeat(X, 2, 0)[:n]
            assert_same(session.run(image)[0], (image * f32(1.7) + MAGIC) - MAGIC)


Step = tuple[str, float]
STEPS: dict[str, Callable[[Array, np.float32], Array]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
    "Max": np.maximum,
    "Min": np.minimum,
}
NUMBERS = (12582912, -12582912, 1e4, -1e4, 4097, 2.0**60, 2.0**-60, 0.1, 3, 1 / 3, -1, 1, 0, -0.0, np.inf, np.nan)
SMALLEST = np.finfo(np.float32).tiny


@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
@given(
    device=st.sampled_from(GPUS),
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from(NUMBERS)), min_size=2, max_size=8),
    earlier=st.booleans(),
)
def test_any_chain_gives_every_bit_of_numpys_result(device: str, steps: Sequence[Step], earlier: bool) -> None:
    net = Net()
    value = first = net.input("x", 4, 8)
    wanted = X
    with np.errstate(all="ignore"):
        for op, number in steps:
            value, wanted = net.add(op, value, np.array(number, np.float32)), STEPS[op](wanted, f32(number))
            assume(not ((wanted != 0) & (np.abs(wanted) < SMALLEST)).any())  # devices may take such a number for 0
        if earlier:
            value, wanted = net.add("Sub", value, first), wanted - X
    got = computed(net.finish(value), device, X)
    np.testing.assert_array_equal(got, wanted)


def bases(rng: np.random.Generator, low: float, high: float) -> Array:
    return np.array(10.0 ** rng.uniform(low, high, 4096), np.float32)


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 4.0, 7.0, -1.0, 0.5, 2.2, None])
def test_powers_on_vulkan_are_as_near_as_numpys(exponent: float | None) -> None:
    """Of subnormal numbers, too, and where the exponent's size would magnify an error of the logarithm."""
    rng, net = np.random.default_rng(0), Net()
    x = np.concatenate([bases(rng, -3, 3), bases(rng, -0.1, 0.1), bases(rng, -44, -38)])
    y = np.asarray(rng.uniform(-120, 120, x.size) / np.abs(np.log2(x)), np.float32)
    y = y if exponent is None else np.full(x.size, exponent, np.float32)
    by = net.input("y", x.size) if exponent is None else np.array(exponent, np.float32)
    net.input("x", x.size)
    net.graph.inputs.sort()
    graph = net.finish(net.add("Pow", "x", by))
    with np.errstate(over="ignore"):
        wide = np.asarray(np.power(x.astype(np.float64), y.astype(np.float64)))
        expected = wide.astype(np.float32)
    found = computed(graph, "vulkan", *([x, y] if exponent is None else [x]))
    is_normal = np.isfinite(expected) & (wide > 1.2e-38)
    assert np.abs(found[is_normal] / wide[is_normal] - 1).max() < 1.2e-7
    np.testing.assert_allclose(found[~is_normal], expected[~is_normal], rtol=0, atol=2.9e-45)
    if exponent == 1.0:
        np.testing.assert_array_equal(found, x)
