"""Pads that read what moves make where it lies, or are read by moves."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.launches import planned_kernels
from tests.helpers.nets import Net, feeds
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs


def turned(mode: str, behind: bool) -> Graph:
    """Return a network with a pad of an axis between a sigmoid and a softmax, and a transpose before or behind it."""
    net = Net()
    x = net.add("Sigmoid", net.input("x", 2, 5, 3, 4))
    x = x if behind else net.add("Transpose", x, perm=(0, 3, 1, 2))
    fill = [np.asarray(1.5, np.float32)] if mode == "constant" else []
    y = net.add("Pad", x, np.array([0, 0, 1, 0, 0, 0, 2, 1]), *fill, mode=mode)
    return net.finish(net.add("Softmax", net.add("Transpose", y, perm=(0, 3, 1, 2)) if behind else y))


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_pad_takes_moves_in_place(device: str, mode: str, behind: bool) -> None:
    graph = turned(mode, behind)
    told = planned_kernels(graph)
    assert "move" not in told and told.count("pad") == 1
    fed = feeds(graph)
    for precision, tolerance in (("high", 1e-6), ("low", 2e-3)):
        with weft.load(graph, device, precision=precision, fallback="error") as session:
            np.testing.assert_allclose(session.run(fed)[0], outputs(graph, fed)[0], rtol=tolerance, atol=tolerance)
