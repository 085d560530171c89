"""Sums that are longer than the driver's loops: llvmpipe ends these after 65,535 rounds, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.core.graph.layout import Array

MakeNode = Callable[[weft.Network, Any], Any]
LENGTH = 70_000
REFUSED = {"MatMul", "Gemm", "Conv", "ConvTranspose"}
"""The others share a sum between the items of a group."""


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


NODES: dict[str, tuple[tuple[int, ...], MakeNode]] = {
    "MatMul": ((2, LENGTH), lambda net, x: net.add_layer("MatMul", x, ones(LENGTH, 2))),
    "Gemm": ((LENGTH, 2), lambda net, x: net.add_layer("Gemm", x, x, transA=1)),
    "CumSum": ((2, LENGTH), lambda net, x: net.add_layer("CumSum", x, np.array(1))),
    "Conv": ((1, 2, 270, 270), lambda net, x: net.add_layer("Conv", x, ones(2, 1, 270, 270), group=2)),
    "ConvTranspose": ((1, LENGTH, 1, 1), lambda net, x: net.add_layer("ConvTranspose", x, ones(LENGTH, 1, 1, 1))),
    "ReduceSum": ((2, LENGTH), lambda net, x: net.add_layer("ReduceSum", x, np.array([1]))),
    "Softmax": ((2, LENGTH), lambda net, x: net.add_layer("Softmax", x, axis=1)),
}


@pytest.mark.parametrize("op", NODES)
def test_long_sums_are_right_wherever_they_run(op: str) -> None:
    shape, make = NODES[op]
    net = weft.Network(op)
    net.add_output("y", make(net, net.add_input("x", shape)))
    x = np.random.default_rng(0).uniform(0.5, 1, shape).astype(np.float32)
    with weft.load(net, "cpu") as session:
        expected = session.run(x)[0].astype(np.float64)
    with weft.load(net, ["vulkan", "cpu"]) as session:
        actual = session.run(x)[0].astype(np.float64)
        report = session.report
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    if op in REFUSED:
        (reasons,) = report.refusals.values()
        assert "silently ends loops" in reasons["vulkan:0"]
    else:
        assert set(report.nodes_by_device) == {"vulkan"}
