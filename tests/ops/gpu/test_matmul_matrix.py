"""Products of two computed matrices on matrix units, run by value where there are none."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.conv_problems import take_where_it_fits
from tests.helpers.emulated_gpus import emulated_gpu
from tests.helpers.nets import Net
from weft.core.graph.dtypes import DType
from weft.core.graph.layout import Shape
from weft.ops.gpu.matmul.matrix import MatrixProduct, MatrixProductTile

PLAIN, SLICED = MatrixProductTile(1, 2, 2, 1), MatrixProductTile(2, 1, 1, 1, 2)
PARTED = MatrixProductTile(1, 1, 1, 1, parts=4)
ORDERS = (
    ((2, 37, 40), (2, 40, 72), "", PLAIN),
    ((1, 136, 37), (3, 136, 21), "a", SLICED),
    ((3, 40, 37), (3, 72, 40), "ab", PLAIN),
    ((2, 3, 17, 136), (2, 1, 48, 136), "b", SLICED),
    ((2, 33, 140), (140, 70), "", SLICED),
    ((70, 48), (48, 33), "", PLAIN),
    ((2, 20, 512), (2, 512, 24), "", PARTED),
)
"""The matrices as they lie, which of them is transposed, and the tile."""


QUICK_ON_VULKAN = ORDERS[3:4]
"""What llvmpipe compiles in the short run, which takes it some seconds. OpenCL runs them all."""


@pytest.mark.parametrize(
    ("api", "a", "b", "turned", "tile"),
    [
        *[("opencl", *order) for order in ORDERS],
        *[
            pytest.param("vulkan", *order, marks=[pytest.mark.long] * (order not in QUICK_ON_VULKAN))
            for order in ORDERS
        ],
    ],
    ids=str,
)
def test_products_by_value(
    api: str, a: Shape, b: Shape, turned: str, tile: MatrixProductTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_where_it_fits(monkeypatch, MatrixProduct(), tile)
    net = Net()
    given = {n: net.random(*shape).astype(np.float16) for n, shape in (("a", a), ("b", b))}
    names = dict(zip("ab", (net.input(n, *x.shape, dtype=DType.FLOAT16) for n, x in given.items()), strict=True))
    factors = {n: np.swapaxes(x, -1, -2) if n in turned else x for n, x in given.items()}
    for n in turned:
        rank = given[n].ndim
        names[n] = net.add("Transpose", names[n], perm=(*range(rank - 2), rank - 1, rank - 2))
    want = factors["a"].astype(np.float32) @ factors["b"].astype(np.float32)
    bias = net.random(want.shape[-1]).astype(np.float16)
    total = net.add("Add", net.add("MatMul", names["a"], names["b"]), net.constant(bias))
    graph = net.finish(net.add("Relu", total, name="y"))
    want = np.maximum(want + bias, 0)
    with (
        emulated_gpu(api, software=False, compute_units=4),
        weft.load(graph, "emulated", precision="low", fallback="error") as session,
    ):
        (pipeline,) = session.pipelines
        labels = [launch.label for launch in pipeline.backend.recording.run.whole]  # type: ignore[attr-defined]
        assert labels[0].endswith("/matmul_matrix") and len(labels) == 1 + (tile.parts > 1), labels
        (got,) = session.run(given)
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()
