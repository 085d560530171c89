"""Reductions whose outputs adjoin: a work-group reads several of them in order, and gives the right numbers."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import weft
from tests.helpers.cards import OPENCL
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.nets import Net, feeds, halves
from weft.core.graph.dtypes import DType
from weft.ops.gpu.reduce import AHEAD, SHORT, columns_of, part_axes


@pytest.mark.covering
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", ["ReduceL2", "ReduceMean", "ReduceMax", "ReduceLogSumExp"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 100, 40), (1,)),
        ((3, 9, 7, 50), (1, 2)),  # the last tile of each image is in the next one, too
        ((1, 3136, 17), (1,)),
        ((45, 5, 60), (0,)),
        ((5, 40, 3, 6, 16), (1, 3)),  # two runs are reduced
    ],
)
@pytest.mark.parametrize("precision", ["high", "low"])
def test_adjacent_outputs_share_a_group(
    api: str, kind: str, shape: tuple[int, ...], axes: tuple[int, ...], precision: str
) -> None:
    net = Net(seed=2)
    x = net.add("Sigmoid", net.input("x", *shape))
    graph = net.finish(net.add("Relu", net.add(kind, x, np.array(axes), keepdims=0), name="y"))
    fed = {name: halves(value) for name, value in feeds(graph).items()}
    (want,) = weft.load(graph, device="cpu").run(fed)
    with emulated_gpu(api, software=False), weft.load(graph, "emulated", precision=precision, fallback="error") as session:
        (got,) = session.run(fed)
        (pipeline,) = session.pipelines
        planned = pipeline.backend.recording.run.planned  # type: ignore[attr-defined]
    (local,) = (launch.plan.local for launch in planned if launch.label.endswith("/reduce"))
    assert local[0] * (2 if precision == "low" else 4) == 32 and local[1] > 1
    assert np.abs(got - want).max() <= (3e-3 if precision == "low" else 1e-5) * np.abs(want).max()


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((40, SHORT), (1,)),  # what is reduced adjoins
        ((SHORT, 40), (0,)),  # little is
        ((400, 7), (0,)),  # few outputs adjoin
    ],
)
def test_other_reductions_do_not(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    assert columns_of(OPENCL, *part_axes(shape, axes), DType.FLOAT32) is None


def test_a_group_has_no_items_without_work() -> None:
    for length in (SHORT + 1, 100, 5000):
        columns = columns_of(OPENCL, *part_axes((length, 64), (0,)), DType.FLOAT16)
        assert columns is not None and prod(columns) <= 256 and (columns[1] // 2) * AHEAD < length
