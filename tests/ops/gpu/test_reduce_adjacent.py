"""Reductions whose outputs lie together: a work-group computes several of them, and gives the right numbers."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.cards import OPENCL
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.nets import Net, feeds, halves
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.ops.gpu.reduce import AHEAD, SHORT, Adjacent, part_axes

SHAPES = [
    ((2, 100, 40), (1,)),
    ((3, 9, 7, 50), (1, 2)),  # the last outputs of an image share a group with the first ones of the next
    ((1, 3136, 17), (1,)),
    ((45, 5, 60), (0,)),
    ((5, 40, 3, 6, 16), (1, 3)),  # two runs are reduced
]


def reduced(kind: str, shape: tuple[int, ...], axes: tuple[int, ...], turned: bool) -> Graph:
    """Return a network of one reduction; `turned` reads the value through a transpose that moves its axes last."""
    net = Net(seed=2)
    x = net.add("Sigmoid", net.input("x", *shape))
    if turned:
        kept = [a for a in range(len(shape)) if a not in axes]
        x = net.add("Transpose", x, perm=(*kept, *axes))
        axes = tuple(range(len(kept), len(shape)))
    return net.finish(net.add("Relu", net.add(kind, x, np.array(axes), keepdims=0), name="y"))


@pytest.mark.covering
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", ["ReduceL2", "ReduceMean", "ReduceMax", "ReduceLogSumExp"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("turned", [False, True], ids=["as_is", "turned"])
@pytest.mark.parametrize("precision", ["high", "low"])
def test_adjacent_outputs_share_a_group(
    api: str, kind: str, shape: tuple[int, ...], axes: tuple[int, ...], turned: bool, precision: str
) -> None:
    graph = reduced(kind, shape, axes, turned)
    fed = {name: halves(value) for name, value in feeds(graph).items()}
    (want,) = weft.load(graph, device="cpu").run(fed)
    with (
        emulated_gpu(api, software=False, compute_units=4),
        weft.load(graph, "emulated", precision=precision, fallback="error") as session,
    ):
        (got,) = session.run(fed)
        (pipeline,) = session.pipelines
        planned = pipeline.backend.recording.run.planned  # type: ignore[attr-defined]
    assert np.abs(got - want).max() <= (3e-3 if precision == "low" else 1e-5) * np.abs(want).max()
    (grid,) = (launch.plan.grid for launch in planned if launch.label.endswith("/reduce"))
    assert grid[0] < want.size, "each output has a group of its own"


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((40, SHORT + 1), (1,)),  # elements of an output lie together
        ((SHORT, 40), (0,)),  # there are few
        ((400, 1), (0,)),  # there is one output
    ],
)
def test_other_reductions_do_not(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    ints, _ = part_axes(shape, axes)
    assert Adjacent.choose(OPENCL, ints, 400, DType.FLOAT32) is None


@pytest.mark.parametrize("length", [SHORT + 1, 100, 5000])
@pytest.mark.parametrize("outputs", [40, 4000])
def test_groups_fill_the_device_and_their_items_have_work(length: int, outputs: int) -> None:
    ints, _ = part_axes((length, outputs), (0,))
    shared = Adjacent.choose(OPENCL, ints, outputs, DType.FLOAT16)
    if shared is None:
        assert outputs < 2 * OPENCL.likely_units
        return
    assert shared.outputs == 2 or outputs >= shared.outputs * OPENCL.likely_units
    assert shared.items <= 256 and (shared.items // shared.outputs // 2) * AHEAD < length


def test_reduced_axes_are_walked_as_they_lie_in_memory() -> None:
    """Of a transposed value the last axis is not the one whose elements are side by side."""
    net = Net(seed=3)
    x = net.add("Transpose", net.add("Sigmoid", net.input("x", 4, 20, 30)), perm=(0, 2, 1))
    graph = net.finish(net.add("ReduceSum", x, np.array([1, 2]), keepdims=0, name="y"))
    with emulated_gpu("opencl", software=False), weft.load(graph, "emulated", fallback="error") as session:
        (pipeline,) = session.pipelines
        planned = pipeline.backend.recording.run.planned  # type: ignore[attr-defined]
        (values,) = (launch.plan.values for launch in planned if launch.label.endswith("/reduce"))
        (got,) = session.run(fed := feeds(graph))
    assert {name: values[name] for name in ("R1", "R2", "RS2")} == {"R1": 1, "R2": 600, "RS2": 1}
    with weft.load(graph, "cpu") as session:
        np.testing.assert_allclose(got, session.run(fed)[0], 1e-5)
