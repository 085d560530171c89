"""Networks that compute in float64: fused steps, constants of kernels, sizes that change, and both precisions."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph

TURNS, SIZE = 1e5 / 3, 0.1
ROW = np.random.default_rng(1).standard_normal(5)


def network() -> Graph:
    """Return sines of many turns, in float64 and rounded to float32, as of a table of positions."""
    net = Net()
    x = net.input("x", "n", 5, dtype=DType.FLOAT64)
    turned = net.add("Add", net.add("Mul", x, np.array(TURNS)), ROW, name="turned")
    sine = net.add("Mul", net.add("Sin", turned), np.array(SIZE), name="sine")
    narrow = net.add("Cast", sine, to=DType.FLOAT32, name="narrow")
    return net.finish(sine, net.add("Relu", narrow, name="y"))


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_float64_keeps_its_digits_at_every_size(device: str, precision: str) -> None:
    with weft.load(network(), device, precision=precision, shapes={"x": (3, 5)}, fallback="error") as session:
        assert set(session.report.placement.values()) == {device}
        for size in (3, 7, 4):
            x = np.random.default_rng(size).standard_normal((size, 5))
            sine, y = session.run(x)
            right = SIZE * np.sin(x * TURNS + ROW)
            # An angle of up to 1e5 is rounded by 1e-11, which a device that fuses its product and sum does not do.
            np.testing.assert_allclose(sine, right, 0, 3e-12)
            np.testing.assert_allclose(y, np.maximum(right, 0), 1e-7 if precision == "high" else 5e-4, 1e-7)


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_steps_are_fused_with_steps_of_the_same_type(device: str) -> None:
    launched = str(weft.optimize(network(), device, shapes={"x": (3, 5)}))
    assert "(Mul + Add + Sin + Mul) -> sine: float64[3x5]" in launched
    assert "(Cast) -> narrow: float32[3x5]" in launched
