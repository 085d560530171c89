"""Constants that are broadcast where element-wise nodes are fused: into each other, or into what stores anywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.launches import kernels
from tests.helpers.nets import Net
from tests.helpers.random_nets import SLOW, assert_right, assert_session_is_right
from tests.helpers.run_length import examples
from weft.core.graph.graph import Graph

GPUS = ("opencl", "vulkan")


def gated(shape: tuple[int, ...], constant: tuple[int, ...], *, image: bool) -> Graph:
    """Return x * sigmoid(a x + b) with constants a and b; `image`: x is a convolution's, and another one reads it."""
    net = Net()
    x = net.input("x", *shape)
    if image:
        x = net.conv(x, shape[1], 3, pads=(1, 1, 1, 1))
    inner = net.add("Add", net.add("Mul", x, net.random(*constant)), net.random(*constant))
    y = net.add("Mul", x, net.add("Sigmoid", inner))
    return net.finish(net.conv(y, 4, 3) if image else y)


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("constant", [(6, 1, 1), (1, 6, 1, 1)])
def test_a_number_for_each_channel_joins_the_convolution(constant: tuple[int, ...], device: str) -> None:
    graph = gated((2, 6, 4, 8), constant, image=True)
    with weft.load(graph, device, fallback="error") as session:
        assert len([kernel for kernel in kernels(session) if kernel != "relayout"]) == 2
        assert_session_is_right(session, graph, 1e-5)


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("constant", [(6, 1, 1), (6, 4, 1), (4, 8), (8,), (2, 6, 4, 8), (2, 1, 1, 1)])
def test_numbers_for_neighbouring_axes_make_one_launch(constant: tuple[int, ...], device: str) -> None:
    graph = gated((2, 6, 4, 8), constant, image=False)
    with weft.load(graph, device, fallback="error") as session:
        assert kernels(session) == ["elementwise"]
        assert set(session.report.placement.values()) == {device}
        assert_session_is_right(session, graph, 1e-5)


def scaled(base: str, shape: tuple[int, ...], constant: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Graph:
    """Return a base of rank 4 whose result is multiplied by a constant; `constant` gives its shape."""
    net = Net()
    x = net.input("x", *shape)
    y = {
        "Softmax": lambda: net.add("Softmax", x, axis=-1),
        "LayerNormalization": lambda: net.add("LayerNormalization", x, net.random(*shape[-2:]), axis=-2),
        "RMSNormalization": lambda: net.add("RMSNormalization", x, net.random(shape[-1]), axis=-1),
        "weft::L2Normalization": lambda: net.add("weft::L2Normalization", x, axis=1),
        "weft::SumNormalization": lambda: net.add("weft::SumNormalization", x, axis=1, epsilon=64.0),
        "ReduceSum": lambda: net.add("ReduceSum", x, np.array([1]), keepdims=1),
        "Transpose": lambda: net.add("Transpose", x, perm=(0, 2, 1, 3)),
        "Gather": lambda: net.add("Gather", x, np.array([1, 0, 1]), axis=1),
        "Concat": lambda: net.add("Concat", x, x, axis=1),
    }[base]()
    return net.finish(net.add("Mul", y, net.random(*constant(net.shape(y)))))


ALONG = {
    "heads": lambda dims: (dims[1], 1, 1),
    "rows": lambda dims: (dims[2], 1),
    "both": lambda dims: (dims[1], dims[2], 1),
    "images": lambda dims: (dims[0], 1, 1, 1),
}
BASES = ("Softmax", "LayerNormalization", "RMSNormalization", "weft::L2Normalization", "weft::SumNormalization")


@pytest.mark.covering(2)
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize(
    "shape",
    [(2, 3, 4, 5), *(pytest.param(s, marks=pytest.mark.long) for s in [(2, 3, 5, 24), (3, 2, 7, 1), (2, 6, 1, 40)])],
)
@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("base", [*BASES, "ReduceSum", "Transpose", "Gather", "Concat"])
def test_what_stores_anywhere_takes_numbers_for_neighbouring_axes(
    base: str, along: str, shape: tuple[int, ...], precision: str, device: str
) -> None:
    graph = scaled(base, shape, ALONG[along])
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        if base in BASES:
            converted = precision == "low"
            assert len(kernels(session)) == 1 + converted, "the input may be converted, and the rest is one launch"
        assert_session_is_right(session, graph, 1e-2 if precision == "low" else 1e-5)


@given(data=st.data())
@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW)
def test_it_is_right_for_any_shape(data: st.DataObject) -> None:
    """Sizes that are no multiples of four, axes of one, images and rows, fp16."""
    image = data.draw(st.booleans())
    rank = 4 if image else data.draw(st.integers(1, 5))
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 3, 4, 8]), min_size=rank, max_size=rank)))
    begin, end = sorted(data.draw(st.lists(st.integers(0, rank), min_size=2, max_size=2)))
    constant = tuple(d if begin <= a < end else 1 for a, d in enumerate(shape))
    low = data.draw(st.booleans())
    graph = gated(shape, constant[data.draw(st.integers(0, begin)) :], image=image and min(shape[2:]) > 2)
    assert_right(graph, data.draw(st.sampled_from(GPUS)), "low" if low else "high", 1e-2 if low else 1e-5)
