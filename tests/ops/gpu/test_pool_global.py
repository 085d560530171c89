"""Means and maxima of whole images, as GPUs compute them: many loads at once, in two layouts, one or two steps."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, feeds
from weft.core.graph.dtypes import DType
from weft.core.graph.interpreter import outputs
from weft_conformance.cases.table import tolerance

SHAPES = ((1, 3, 2, 2), (2, 9, 7, 7), (1, 67, 13, 15), (2, 6, 83, 61))
"""Down to one load an item and one step, up to several rounds of loads and two steps."""


@pytest.mark.alike
@pytest.mark.covering
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("precision", [DType.FLOAT32, DType.FLOAT16], ids=["high", "low"])
def test_a_gpu_reduces_whole_images(api: str, precision: DType) -> None:
    net = Net()
    ends = []
    for number, shape in enumerate(SHAPES):
        x = net.input(f"x{number}", *shape)
        ends += [net.add("GlobalAveragePool", x), net.add("GlobalMaxPool", x)]
    graph = net.finish(*ends)
    level = "high" if precision is DType.FLOAT32 else "low"
    with (
        emulated_gpu(api, channels_last=True, software=False, compute_units=132),
        weft.load(graph, "emulated", precision=level, fallback="error") as session,
    ):
        assert kernels(session).count("pool_global") == len(ends)
        for got, want in zip(session.run(feeds(graph)), outputs(graph, feeds(graph)), strict=True):
            np.testing.assert_allclose(got, want, *tolerance(precision, "reduction"))
