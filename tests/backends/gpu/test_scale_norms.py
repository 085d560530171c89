"""Batch norms that no weights could take: the kernel before them computes them as it stores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, feeds
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs

GPUS = ("opencl", "vulkan")
Between = Callable[[Net, str], str]


def normalized(between: Between, *, twice: bool = False, known: bool = True, rank: int = 4) -> Graph:
    """Return a convolution, what comes between, a batch norm and a reader; `twice`: something else reads its input."""
    net = Net()
    x = net.conv(net.input("x", *(2, 8, 9, 7)[:rank]), 12, 3) if rank == 4 else net.input("x", 2, 12)
    x = between(net, x)
    c = net.shape(x)[1]
    scale = net.random(c) if known else net.input("scale", c)
    y = net.add("BatchNormalization", x, scale, net.random(c), net.random(c), net.random(c) ** 2 + 0.1, epsilon=0.01)
    return net.finish(net.add("Relu", y), *([net.add("Neg", x)] if twice else []))


def relu(net: Net, x: str) -> str:
    return net.add("Relu", x)


BETWEEN: dict[str, Between] = {
    "an activation": relu,
    "a sigmoid linear unit": lambda net, x: net.add("Mul", x, net.add("Sigmoid", x)),
    "a pool": lambda net, x: net.add("MaxPool", x, kernel_shape=(2, 2)),
}


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("between", BETWEEN)
def test_it_takes_no_launch_of_its_own(between: str, device: str) -> None:
    graph = normalized(BETWEEN[between])
    fed = feeds(graph)
    with weft.load(graph, device, fallback="error") as session:
        (got,) = session.run(fed)
        assert set(session.report.placement.values()) == {device} and "elementwise_c4" not in kernels(session)
    np.testing.assert_allclose(got, outputs(graph, fed)[0], rtol=0, atol=1e-5)


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("case", ["a concat", "read twice", "not known", "no image"])
def test_others_stay_and_are_right(case: str, device: str) -> None:
    graph = {
        "a concat": lambda: normalized(lambda net, x: net.add("Concat", x, x, axis=1)),
        "read twice": lambda: normalized(relu, twice=True),
        "not known": lambda: normalized(relu, known=False),
        "no image": lambda: normalized(relu, rank=2),
    }[case]()
    fed = feeds(graph)
    with weft.load(graph, device, fallback="error") as session:
        got = session.run(fed)
    for found, want in zip(got, outputs(graph, fed), strict=True):
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", *GPUS])
@pytest.mark.parametrize("behind", [False, True])
def test_parameters_that_fp16_does_not_hold_are_exact_at_low_precision(behind: bool, device: str) -> None:
    net = Net()
    x = net.input("x", 1, 3, 1, 2)
    scale, shift, mean, var = ([1e5, 1, 1.0003], [0, 7e4, -5], [1, 7e4, 0], [1e10, 1, 1])
    known = [np.array(each, np.float32) for each in (scale, shift, mean, var)]
    y = net.add("BatchNormalization", relu(net, x) if behind else x, *known, epsilon=0.0)
    with weft.load(net.finish(y), device, precision="low", fallback="error") as session:
        (got,) = session.run(np.full((1, 3, 1, 2), 5, np.float32))
    np.testing.assert_allclose(got[0, :, 0, 0], [4, 5, 1.5e-3], rtol=2e-3)
