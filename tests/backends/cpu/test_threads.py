"""The option `threads` of the CPU: results are the same, whoever computes which part of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import weft
from weft import Network
from weft.core.host.threads import each_block, use_threads


def network() -> Network:
    """Return a network of a convolution, a depthwise one, activations, a pool and a broadcast product."""
    rng = np.random.default_rng(0)
    net = Network("blocks")
    x = net.add_input("x", (2, 16, 64, 64))
    y = net.add_layer("Conv", x, rng.random((24, 16, 3, 3), np.float32), rng.random(24, np.float32), pads=(1, 1, 1, 1))
    y = net.add_layer("Gelu", net.add_layer("Relu", y))
    y = net.add_layer("Conv", y, rng.random((24, 1, 3, 3), np.float32), pads=(1, 1, 1, 1), group=24)
    y = net.add_layer("Mul", y, rng.random((1, 24, 1, 1), np.float32))
    net.add_output("y", net.add_layer("MaxPool", y, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)))
    return net


@pytest.mark.parametrize("threads", [0, 3])
def test_threads_change_no_result(threads: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, 16, 64, 64)).astype(np.float32)
    with weft.load(network(), "cpu") as alone, weft.load(
        network(), "cpu", backend_options={"cpu": {"threads": threads}}
    ) as shared:
        (expected,) = alone.run(x)
        for _ in range(3):
            np.testing.assert_array_equal(shared.run(x)[0], expected)


def test_blocks_are_computed_by_several_threads_and_by_one_again() -> None:
    together, seen = threading.Barrier(2, timeout=60), set[int]()

    def work(block: int) -> None:
        seen.add(threading.get_ident())
        together.wait()

    use_threads(2)
    try:
        each_block(work, range(2))
    finally:
        use_threads(1)
    assert len(seen) == 2
    here: list[int] = []
    each_block(here.append, range(3))
    assert here == [0, 1, 2]


def test_an_error_of_a_block_is_raised() -> None:
    def work(block: int) -> None:
        if block == 5:
            raise ValueError("block 5")

    use_threads(2)
    try:
        with pytest.raises(ValueError, match="block 5"):
            each_block(work, range(8))
    finally:
        use_threads(1)
