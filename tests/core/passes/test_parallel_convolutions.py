"""Parallel convolutions whose results are summed become one: before and after, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.nets import Net, kinds
from tests.helpers.parallel_convolutions import norm, same, summed
from tests.helpers.random_nets import SLOW
from tests.helpers.rewrites import assert_same
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.limits import Budget
from weft.core.passes import PassContext, find_pass, run_passes

rewrite = find_pass("join_parallel_convolutions")
CHANNELS = 6


def joined(build: Callable[[Net, str], str], tolerance: float = 1e-5, size: tuple[int, int] = (7, 8)) -> list[str]:
    """Return the kinds of nodes that the pass makes of a network, which stays the same and has nothing left to do."""
    net = Net()
    graph = net.finish(build(net, net.input("x", 2, CHANNELS, *size)))
    before = str(graph)
    after = rewrite(graph)
    assert str(graph) == before
    assert_same(graph, after, tolerance)
    assert rewrite(after) is after
    return kinds(after)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", [1, 3, CHANNELS])
@pytest.mark.parametrize("stride", [1, 2])
def test_kernels_of_all_sizes_become_one(group: int, bias: bool, stride: int) -> None:
    more: dict[str, Any] = {"group": group, "bias": bias, "strides": (stride, stride)}
    assert joined(lambda n, x: summed(n, *(same(n, x, k, **more) for k in (1, 5, 3, 3, 1)))) == ["Conv"]


@pytest.mark.parametrize("order", ["(a+b)+r", "(a+r)+b", "r+(a+b)", "(r+s)+(a+b)", "(a+r)+(s+b)", "a+(s+(r+b))"])
@pytest.mark.parametrize("swapped", [False, True])
def test_other_terms_stay_in_any_order(order: str, swapped: bool) -> None:
    def build(net: Net, x: str) -> str:
        r, s = net.add("Relu", x), net.add("Exp", x)
        terms = [same(net, x, 3), same(net, x, 1)]

        class Term(str):
            def __add__(self, other: str) -> Term:  # type: ignore[override]
                return Term(net.add("Add", *((other, self) if swapped else (self, other))))

        a, b = terms
        return str(eval(order, {"a": Term(a), "b": Term(b), "r": Term(r), "s": Term(s)}))

    made = joined(build)
    assert made.count("Conv") == 1
    assert made.count("Add") == order.count("+") - 1


def test_sums_of_many_terms_and_several_images() -> None:
    def build(net: Net, x: str) -> str:
        z = net.add("Relu", x)
        total = net.add("Sum", same(net, x, 3), same(net, z, 3), same(net, x, 1), z, z)
        return net.add("Sum", total, same(net, z, 1))

    assert joined(build) == ["Relu", "Conv", "Conv", "Sum"]


@pytest.mark.parametrize("form", ["(a+c)+d", "Sum(a, c, d)", "Sum(Sum(a, c))", "(a+Sum(c))+d"])
def test_sums_that_only_broadcast_terms_are_left_of_become_smaller(form: str) -> None:
    def build(net: Net, x: str) -> str:
        c, d = net.input("c", CHANNELS, 1, 1), net.input("d", CHANNELS, 1, 1)
        a = same(net, x, 1)
        if form == "(a+c)+d":
            inner = net.add("Add", net.add("Add", a, c), d)
        elif form == "Sum(a, c, d)":
            inner = net.add("Sum", a, c, d)
        elif form == "Sum(Sum(a, c))":
            inner = net.add("Sum", net.add("Sum", a, c))
        else:
            inner = net.add("Add", net.add("Add", a, net.add("Sum", c)), d)
        return net.add("Add", inner, same(net, x, 3))

    assert joined(build).count("Conv") == 1


def test_a_long_sum_is_no_deep_recursion() -> None:
    def build(net: Net, x: str) -> str:
        r = net.add("Relu", x)
        return summed(net, same(net, x, 1), *(r for _ in range(1200)), same(net, x, 1))

    assert joined(build, 1e-4, (1, 1)).count("Conv") == 1


@given(data=st.data())
@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW)
def test_a_kernel_goes_in_where_its_taps_fall_on_pixels_that_are_read(data: st.DataObject) -> None:
    draw = data.draw
    net = Net(draw(st.integers(0, 99)))
    rank = draw(st.integers(1, 3))
    axes = range(rank)
    x = net.input("x", 1, 4, *(draw(st.integers(5, 7)) for _ in axes))
    group = draw(st.sampled_from([1, 2, 4]))
    strides = tuple(draw(st.integers(1, 3)) for _ in axes)
    size, step, begin, end = ([draw(st.integers(low, 3)) for _ in axes] for low in (1, 1, 0, 0))
    size = [min(k, 2) if s > 2 else k for k, s in zip(size, step, strict=True)]
    first = [draw(st.integers(0, k - 1)) for k in size]
    every = [draw(st.integers(1, 2)) for _ in axes]
    count = [(k - 1 - f) // e + 1 for k, f, e in zip(size, first, every, strict=True)]
    zipped = list(zip(size, step, begin, end, first, every, count, strict=True))
    small_begin = [b - f * s for _, s, b, _, f, _, _ in zipped]
    small_end = [e - (k - 1 - f - (c - 1) * v) * s for k, s, _, e, f, v, c in zipped]
    if min(*small_begin, *small_end, 0) < 0:
        return  # pads cut nothing off
    fits = [(k - 1) * s < n + b + e for (k, s, b, e, *_), n in zip(zipped, net.shape(x)[2:], strict=True)]
    if not all(fits):
        return
    more: dict[str, Any] = {"group": group, "strides": strides}
    pads: dict[str, Any] = {"pads": (*begin, *end), "dilations": tuple(step)}
    large = net.add("Conv", x, net.random(4, 4 // group, *size), **more, **pads)
    gaps = tuple(s * v if c > 1 else 1 for _, s, _, _, _, v, c in zipped)
    weight, bias = net.random(4, 4 // group, *count), net.random(4)
    small = net.add("Conv", x, weight, bias, **more, pads=(*small_begin, *small_end), dilations=gaps)
    graph = net.finish(net.add("Add", large, small))
    after = rewrite(graph)
    assert kinds(after) == ["Conv"]
    assert_same(graph, after)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_pads_by_name_are_pads(auto_pad: str) -> None:
    def build(net: Net, x: str) -> str:
        return net.add("Add", net.conv(x, 5, 3, auto_pad=auto_pad), net.conv(x, 5, 1, auto_pad="VALID"))

    assert joined(build) == ["Conv"]


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_each_float_type_is_joined(dtype: DType) -> None:
    net, kind = Net(), dtype.numpy
    x = net.input("x", 1, 4, 6, 6, dtype=dtype)
    large, small = net.random(4, 4, 3, 3).astype(kind), net.random(4, 4, 1, 1).astype(kind)
    bias = net.random(4).astype(kind)
    graph = net.finish(summed(net, net.add("Conv", x, large, bias, pads=(1,) * 4), net.add("Conv", x, small)))
    after = rewrite(graph)
    assert kinds(after) == ["Conv"]
    assert_same(graph, after, {DType.FLOAT16: 1e-2, DType.BFLOAT16: 1e-1, DType.FLOAT64: 1e-14}[dtype])


def test_weights_are_rounded_once() -> None:
    net = Net()
    x = net.input("x", 1, 1, 2, 2)
    parts = [np.full((1, 1, 1, 1), value, np.float32) for value in (1e8, 1, -1e8)]
    after = rewrite(net.finish(summed(net, *(net.add("Conv", x, part) for part in parts))))
    assert [value.reshape(-1).tolist() for value in after.constants.values() if value.dtype == np.float32][-1] == [1]


def test_a_batch_norm_behind_the_sum_and_what_it_joins_are_folded_too() -> None:
    net = Net()
    x = net.input("x", 1, CHANNELS, 8, 8)
    inner = norm(net, summed(net, norm(net, same(net, x, 3, bias=False)), norm(net, same(net, x, 1))))
    graph = net.finish(norm(net, summed(net, inner, norm(net, same(net, x, 5)))))
    after = run_passes(graph)
    assert kinds(after) == ["Conv"]
    assert_same(graph, after)
    assert str(run_passes(after)) == str(after)


def test_a_pad_before_all_is_folded_too() -> None:
    net = Net()
    padded = net.add("Pad", net.add("Relu", net.input("x", 1, 3, 8, 8)), np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    graph = net.finish(summed(net, net.conv(padded, 4, 1), net.conv(padded, 4, 1)))
    after = run_passes(graph)
    assert kinds(after) == ["Relu", "Conv"]
    assert_same(graph, after)


def _strides_differ(net: Net, x: str) -> tuple[str, ...]:
    dense = net.add("Conv", x, net.random(4, CHANNELS, 5, 4), strides=(1, 2))
    return (net.add("Add", dense, net.conv(x, 4, 3, strides=(2, 2))),)


def _groups_differ(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Add", same(net, x, 3), same(net, x, 1, group=2)),)


def _images_differ(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Add", same(net, x, 3), same(net, net.add("Relu", x), 1)),)


def _taps_differ(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Add", same(net, x, 3), net.conv(x, CHANNELS, 2, pads=(2, 0, 0, 2), dilations=(2, 2))),)


def _neither_kernel_holds_the_other(net: Net, x: str) -> tuple[str, ...]:
    tall = net.add("Conv", x, net.random(CHANNELS, CHANNELS, 3, 1), pads=(1, 0, 1, 0))
    wide = net.add("Conv", x, net.random(CHANNELS, CHANNELS, 1, 3), pads=(0, 1, 0, 1))
    return (net.add("Add", tall, wide),)


def _a_part_is_read(net: Net, x: str) -> tuple[str, ...]:
    small = same(net, x, 1)
    return net.add("Add", same(net, x, 3), small), small


def _an_inner_sum_is_read(net: Net, x: str) -> tuple[str, ...]:
    total = net.add("Add", same(net, x, 3), net.add("Relu", x))
    return net.add("Add", total, same(net, x, 1)), total


def _a_part_is_broadcast(net: Net, x: str) -> tuple[str, ...]:
    whole = net.add("Conv", x, net.random(CHANNELS, CHANNELS, 7, 8))
    return (net.add("Add", same(net, x, 3), whole),)


def _computed_weights(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Add", same(net, x, 3), net.add("Conv", x, net.input("w", CHANNELS, CHANNELS, 1, 1))),)


def _a_computed_bias(net: Net, x: str) -> tuple[str, ...]:
    weight, bias = net.random(CHANNELS, CHANNELS, 1, 1), net.input("b", CHANNELS)
    return (net.add("Add", same(net, x, 3), net.add("Conv", x, weight, bias)),)


def _exact_factors(net: Net, x: str) -> tuple[str, ...]:
    return (summed(net, same(net, x, 3), x, norm(net, x), net.add("Mul", x, net.random(CHANNELS, 1, 1))),)


def _weights_that_are_not_finite(net: Net, x: str) -> tuple[str, ...]:
    large = np.full((4, CHANNELS, 1, 1), 3e38, np.float32)
    return (net.add("Add", net.add("Conv", x, large), net.add("Conv", x, large)),)


def _integers(net: Net, x: str) -> tuple[str, ...]:
    return (net.add("Add", net.input("i", 2, dtype=DType.INT32), net.input("j", 2, dtype=DType.INT32)),)


STAYS = [
    _strides_differ,
    _groups_differ,
    _images_differ,
    _taps_differ,
    _neither_kernel_holds_the_other,
    _a_part_is_read,
    _an_inner_sum_is_read,
    _a_part_is_broadcast,
    _computed_weights,
    _a_computed_bias,
    _exact_factors,
    _weights_that_are_not_finite,
    _integers,
]


@pytest.mark.parametrize("build", STAYS)
def test_what_one_convolution_cannot_compute_stays(build: Callable[[Net, str], tuple[str, ...]]) -> None:
    net = Net()
    graph = net.finish(*build(net, net.input("x", 2, CHANNELS, 7, 8)))
    assert rewrite(graph) is graph


def test_weights_beyond_the_limits_stay() -> None:
    net = Net()
    x = net.input("x", 1, 16, 8, 8)
    graph: Graph = net.finish(net.add("Add", same(net, x, 3), same(net, x, 1)))
    context = PassContext(Budget(weft.Limits(folding_bytes=100)))
    assert kinds(rewrite(graph, context)) == ["Conv", "Conv", "Add"]
    assert context.left == {graph.nodes[-1].name: "the new weights would go beyond the limit 'folding_bytes'"}


def test_one_network_serves_open_sizes() -> None:
    net = Net()
    x = net.input("x", "n", CHANNELS, "h", "w")
    w3, w1 = net.random(CHANNELS, CHANNELS, 3, 3), net.random(CHANNELS, CHANNELS, 1, 1)
    terms = net.add("Conv", x, w3, pads=(1,) * 4, name="a"), net.add("Conv", x, w1, name="b")
    graph = net.finish(net.add("Add", *terms, name="y"))
    with weft.load(graph, "cpu") as session:
        for shape in ((1, 4, 4), (2, 5, 3)):
            image = np.ones((shape[0], CHANNELS, *shape[1:]), np.float32)
            assert session.run(image)[0].shape == image.shape
            assert kinds(session.optimized.graph) == ["Conv"]
