"""Networks between QuantizeLinear and DequantizeLinear, as quantisers write them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.helpers.nets import Net
from weft.core.graph.graph import Graph

SCALE, ZERO = np.float32(0.05), np.int8(-7)
PARAMETERS: list[tuple[np.generic, float]] = [(np.int8(3), 0.1), (np.uint8(9), 0.1), (np.int16(-5), 0.5)]


class QuantisedNet(Net):
    """A network whose values are quantised by one scale and zero point each."""

    def scale(self, scale: float = float(SCALE)) -> str:
        return self.constant(np.asarray(scale, np.float32), "scale")

    def quantised(self, x: str, scale: float = float(SCALE), zero: np.generic = ZERO) -> str:
        """Return the integers of a value."""
        return self.add("QuantizeLinear", x, self.scale(scale), self.constant(np.asarray(zero), "zero"))

    def read(self, q: str, scale: float = float(SCALE), zero: np.generic = ZERO) -> str:
        """Return what integers stand for."""
        return self.add("DequantizeLinear", q, self.scale(scale), self.constant(np.asarray(zero), "zero"))

    def pair(self, x: str, scale: float = float(SCALE), zero: np.generic = ZERO) -> str:
        """Return a value that is quantised and read again."""
        return self.read(self.quantised(x, scale, zero), scale, zero)

    def weights(self, *shape: int, axis: int = 0) -> str:
        """Return constant weights, each index of an axis with a scale of its own."""
        q = self.rng.integers(-127, 128, shape).astype(np.int8)
        scales = self.rng.uniform(0.002, 0.01, shape[axis]).astype(np.float32)
        zeros = np.zeros(shape[axis], np.int8)
        constants = (self.constant(value, "w") for value in (q, scales, zeros))
        return self.add("DequantizeLinear", *constants, axis=axis)

    def layer(self, x: str, channels: int, kernel: int = 1, *, group: int = 1, stride: int = 1, zero: int = -7) -> str:
        """Return a convolution with a bias, whose result is quantised."""
        bias = self.random(channels, scale=0.3)
        weights = self.weights(channels, self.shape(x)[1] // group, kernel, kernel)
        pads = (kernel // 2,) * 4
        y = self.add("Conv", x, weights, bias, pads=pads, group=group, strides=(stride, stride))
        return self.pair(y, 0.04, np.int8(zero))


def residual_network(channels: int = 8, size: int = 6, batch: int = 1) -> Graph:
    """Return layers of all kinds that convolutional networks have: dense, depthwise, a sum, a pool and a product."""
    net = QuantisedNet()
    x = net.pair(net.input("x", batch, 3, size, size))
    x = net.layer(x, channels, 3)
    y = net.layer(net.layer(x, channels, 3, group=channels), channels)
    x = net.pair(net.add("Relu", net.add("Add", x, y)), 0.03, np.int8(-128))
    x = net.layer(net.add("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2)), 2 * channels, stride=2)
    x = net.pair(net.add("GlobalAveragePool", x))
    x = net.add("Flatten", x)
    y = net.add("Gemm", x, net.weights(2 * channels, 12, axis=1), net.random(12))
    return net.finish(net.pair(y, 0.02, np.int8(3)))


@st.composite
def quantised_networks(draw: st.DrawFn) -> Graph:
    """Draw networks of pairs, some of them with other parameters, and of moves between and behind them."""
    net = QuantisedNet(draw(st.integers(0, 3)))
    x = net.input("x", 2, 4, 6)
    values = [x]
    for _ in range(draw(st.integers(1, 6))):
        value = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["pair", "other", "moved", "relu", "transposed", "twice", "axis"]))
        zero, scale = draw(st.sampled_from(PARAMETERS))
        if kind == "pair":
            made = net.pair(value, scale, zero)
        elif kind == "other":
            made = net.read(net.quantised(value, scale, zero), scale * 2, zero)
        elif kind == "moved":
            q = net.add("Transpose", net.quantised(value, scale, zero), perm=(0, 2, 1))
            made = net.add("Transpose", net.read(q, scale, zero), perm=(0, 2, 1))
        elif kind == "transposed":
            made = net.add("Transpose", net.add("Transpose", net.pair(value), perm=(2, 1, 0)), perm=(2, 1, 0))
        elif kind == "twice":
            q = net.quantised(value, scale, zero)
            made = net.add("Add", net.read(q, scale, zero), net.read(q, scale, zero))
        elif kind == "axis":
            steps, zeros = net.constant(np.array([0.1, 0.2, 0.3, 0.4], np.float32)), net.constant(np.zeros(4, np.int8))
            made = net.add("DequantizeLinear", net.add("QuantizeLinear", value, steps, zeros), steps, zeros)
        else:
            made = net.add("Relu", value)
        values.append(made)
    return net.finish(*dict.fromkeys([values[-1], draw(st.sampled_from(values[1:]))]))
