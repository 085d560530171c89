"""Small networks with kernels of several kinds, and what they compute."""

from __future__ import annotations

import numpy as np

import weft
from weft.core.graph.layout import Array

CHANNELS = 4


def network(variant: int, height: int | str = "h", width: int | str = "w") -> weft.Network:
    """Return a network whose weights depend on the variant."""
    net = weft.Network(f"variant{variant}")
    x = net.add_input("x", (1, CHANNELS, height, width))
    weights = np.random.default_rng(variant).standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 6
    y = net.add_layer("Conv", x, net.add_constant(weights), pads=(1, 1, 1, 1))
    y = net.add_layer("MaxPool", net.add_layer("Relu", y), kernel_shape=(2, 2), strides=(2, 2))
    net.add_output("y", net.add_layer("Softmax", y, axis=1))
    return net


def one_kernel() -> weft.Network:
    """Return a network for any height and width that is one kernel on a GPU, built again for each shape."""
    net = weft.Network("one kernel")
    x = net.add_input("x", (1, CHANNELS, "h", "w"))
    offsets = np.linspace(-1, 1, CHANNELS, dtype=np.float32).reshape(1, CHANNELS, 1, 1)
    net.add_output("y", net.add_layer("Relu", net.add_layer("Add", x, net.add_constant(offsets))))
    return net


def image(variant: int, height: int, width: int) -> Array:
    """Return an input."""
    return np.random.default_rng(variant).standard_normal((1, CHANNELS, height, width)).astype(np.float32)


def is_right(net: weft.Network, x: Array, y: Array) -> bool:
    """Tell whether the CPU also computes y from x."""
    with weft.load(net, "cpu") as session:
        (expected,) = session.run(x)
    return y.shape == expected.shape and bool(np.allclose(y, expected, rtol=1e-4, atol=1e-6))
