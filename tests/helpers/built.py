"""What the tests of networks that are built by hand share: an input, what is fed to it, and a run."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from weft.core.graph.layout import Array

X = np.arange(12, dtype=np.float32).reshape(2, 6) - 4
HUNDRED = np.float32(100)


def run(net: weft.Network, *inputs: Array, device: str = "cpu") -> list[Array]:
    """Load and run a network on that device alone."""
    with weft.load(net, device, fallback="error") as session:
        results = session.run(*inputs)
        assert {d.partition(":")[0] for d in session.report.placement.values()} <= {device}
        return results


def one_input(*shape: int | str) -> tuple[weft.Network, Any]:
    """Return a network with an input x."""
    net = weft.Network("net")
    return net, net.add_input("x", shape or (2, 6))
