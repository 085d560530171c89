"""Reductions over axes before the last one, of which a work-group of a GPU computes several that lie side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, feeds, halves
from weft.conformance.cases.table import tolerance
from weft.core.graph.dtypes import DType
from weft.core.graph.interpreter import outputs
from weft.kernels.device_caps import DeviceCaps
from weft.ops.gpu.reduce import SHORT, TURNS, WIDEST, adjacent_outputs, part_axes

CASES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("ReduceL2", (1, 7, 9, 83), (1, 2)),
    ("ReduceMean", (3, 14, 14, 70), (1, 2)),
    ("ReduceLogSumExp", (2, 40, 5), (1,)),
    ("ReduceMax", (5, 33, 1, 3), (1, 2)),
    ("ReduceSum", (300, 130), (0,)),
    ("ReduceProd", (2, 3, 17, 4, 6), (1, 2)),
    ("ReduceSum", (2, 5, 7, 11, 13), (1, 3)),
)
"""Outputs that fill no whole group, several runs of axes, and lines of all lengths."""


@pytest.mark.covering
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", [DType.FLOAT32, DType.FLOAT16, DType.FLOAT64], ids=["high", "low", "double"])
def test_a_group_computes_adjacent_outputs(api: str, kind: DType) -> None:
    net = Net()
    given = DType.FLOAT64 if kind is DType.FLOAT64 else DType.FLOAT32
    ends = []
    for number, (op, shape, axes) in enumerate(CASES):
        x = net.input(f"x{number}", *shape, dtype=given)
        ends.append(net.add(op, x, np.array(axes), keepdims=number % 2))
    graph = net.finish(*ends)
    level = "low" if kind is DType.FLOAT16 else "high"
    with (
        emulated_gpu(api, software=False, compute_units=132),
        weft.load(graph, "emulated", precision=level, fallback="error") as session,
    ):
        assert kernels(session).count("reduce") == len(CASES)
        values = {name: halves(array) for name, array in feeds(graph).items()}
        for got, want in zip(session.run(values), outputs(graph, values), strict=True):
            np.testing.assert_allclose(got, want, *tolerance(kind, "reduction"))


@pytest.mark.parametrize(
    ("shape", "axes", "lines", "wanted"),
    [
        ((1, 14, 14, 1280), (1, 2), 1280, 8),
        ((1, 7, 7, 2560), (1, 2), 2560, 32),
        ((1, 56, 56, 320), (1, 2), 320, 1),
        ((16, 1280, 14, 14), (2, 3), 20480, 1),
        ((1, SHORT, 4096), (1,), 4096, 1),
        ((1, 64, 3), (1,), 3, 4),
        ((1, 64, 1 << 17), (1,), 1 << 17, 1),
    ],
    ids=["of a layer", "of few pixels", "long", "contiguous", "short", "few", "many"],
)
def test_as_many_outputs_as_an_item_has_time_for(shape: Any, axes: Any, lines: int, wanted: int) -> None:
    caps = DeviceCaps(1024, (1024, 1024, 64), compute_units=132)
    ints, _ = part_axes(shape, axes)
    assert adjacent_outputs(caps, ints, lines) == wanted <= WIDEST
    assert wanted == 1 or -(-ints["LENGTH"] * wanted // 256) <= TURNS
