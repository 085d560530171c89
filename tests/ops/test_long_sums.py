"""Sums of a million numbers, on every device: what is added up one by one loses digits as the sum grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net
from weft.core.graph.graph import Graph
from weft.core.graph.layout import Array

COUNT = 1 << 20
X = (1001 + np.random.default_rng(0).random(COUNT)).astype(np.float32)
"""Numbers whose sum is far larger than they are."""
WIDE = X.astype(np.float64)


def one_node(op: str, shape: tuple[int, ...], *more: Array, **attributes: Any) -> Graph:
    net = Net()
    return net.finish(net.add(op, net.input("x", *shape), *more, **attributes))


def standardized(rows: int) -> Array:
    """Return each of so many rows less its mean, and divided by its deviation."""
    lines = WIDE.reshape(rows, -1)
    return np.asarray((lines - lines.mean(1, keepdims=True)) / np.sqrt(lines.var(1, keepdims=True) + 1e-5))


def channel(value: float, count: int = 4) -> Array:
    return np.full(count, value, np.float32)


SUMS: dict[str, tuple[Graph, Array]] = {
    "of all": (one_node("ReduceMean", (COUNT,)), WIDE.mean()),
    "of squares": (one_node("ReduceL2", (COUNT,)), np.sqrt(np.square(WIDE).sum())),
    "of columns": (one_node("ReduceMean", (COUNT // 4, 4), np.array([0])), WIDE.reshape(-1, 4).mean(0)),
    "of every other axis": (
        one_node("ReduceSum", (COUNT // 32, 4, 8), np.array([0, 2])), WIDE.reshape(-1, 4, 8).sum((0, 2))
    ),
    "of images": (one_node("GlobalAveragePool", (1, 4, 512, 512)), WIDE.reshape(4, -1).mean(1)),
}
NORMS: dict[str, tuple[Graph, int]] = {
    "of a layer": (one_node("LayerNormalization", (1, COUNT), channel(1, COUNT)), 1),
    "of instances": (one_node("InstanceNormalization", (1, 4, 512, 512), channel(1), channel(0)), 4),
    "of groups": (one_node("GroupNormalization", (1, 4, 512, 512), channel(1), channel(0), num_groups=2), 2),
    "of a batch": (
        one_node("TrainingBatchNormalization", (1, 4, 512, 512), channel(1), channel(0), channel(0), channel(1)), 4
    ),
}


@pytest.mark.parametrize("which", SUMS)
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_sums_of_a_million_numbers_keep_their_digits(device: str, which: str) -> None:
    graph, wanted = SUMS[which]
    with weft.load(graph, device, fallback="error") as session:
        (y,) = session.run(X.reshape(graph.specs["x"].shape))
        assert set(session.report.nodes_by_device) == {device}
    np.testing.assert_allclose(y.ravel(), np.ravel(wanted), rtol=5e-7)


@pytest.mark.parametrize("which", NORMS)
@pytest.mark.parametrize("device", ["cpu", "opencl", "vulkan"])
def test_norms_of_a_million_numbers_far_from_zero(device: str, which: str) -> None:
    """Expect what a mean that float32 rounds lets expect: half a unit of 1001, by the deviation."""
    graph, rows = NORMS[which]
    with weft.load(graph, device, fallback="error") as session:
        (y,) = session.run(X.reshape(graph.specs["x"].shape))
        assert set(session.report.nodes_by_device) == {device}
    np.testing.assert_allclose(y.reshape(rows, -1), standardized(rows), atol=3 * 3.1e-5 / WIDE.std())
