"""The shapes of matrices that devices list: who lists which, and that kernels run only where theirs is listed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu.device.profiles import parse_profile
from weft.backends.opencl.known_drivers import matrices_of
from weft.core.graph.graph import Graph
from weft.core.registry.backend_registry import registry
from weft.kernels.device_caps import DeviceCaps
from weft.kernels.matrix_shapes import HALVES, WARPGROUP_HALVES, MatrixShape

OTHERS = {
    "half a tile": MatrixShape(16, 8, 16, "float16", "float32", 32),
    "another subgroup": replace(HALVES, items=64),
    "sums in halves": replace(HALVES, sums="float16"),
    "bytes": MatrixShape(16, 16, 32, "int8", "int32", 32),
}


def convolution() -> Graph:
    net = Net()
    x = net.input("x", 1, 64, 14, 14)
    return net.finish(net.add("Conv", x, np.ones((64, 64, 1, 1), np.float32)))


def kernels(caps: DeviceCaps) -> list[str]:
    with null_gpu() as device:
        device.caps = caps
        registry.find("null").runtime(0).trust()  # type: ignore[attr-defined]
        with weft.load(convolution(), "null", precision="low", fallback="error") as session:
            (pipeline,) = session.pipelines
            return [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]


def test_kernels_of_matrix_units_run_where_their_shape_is_listed() -> None:
    assert any("conv_matrix" in label or "conv_unstaged" in label for label in kernels(H200))


@pytest.mark.parametrize("shape", OTHERS.values(), ids=OTHERS)
def test_another_shape_gives_them_nothing(shape: MatrixShape) -> None:
    labels = kernels(replace(H200, matrices=(shape,)))
    assert labels and not any("matrix" in label or "unstaged" in label for label in labels), labels


@pytest.mark.parametrize(
    ("capability", "has", "has_not"),
    [
        ((0, 0), (), (HALVES, WARPGROUP_HALVES)),
        ((7, 5), (), (HALVES, WARPGROUP_HALVES)),
        ((8, 6), (HALVES,), (WARPGROUP_HALVES,)),
        ((9, 0), (HALVES, WARPGROUP_HALVES), ()),
        ((12, 0), (HALVES,), (WARPGROUP_HALVES,)),
    ],
)
def test_what_is_known_of_cards_by_their_architecture(
    capability: tuple[int, int], has: tuple[MatrixShape, ...], has_not: tuple[MatrixShape, ...]
) -> None:
    found = matrices_of(capability)
    assert set(has) <= set(found) and not set(has_not) & set(found)


def test_a_profile_takes_subgroups_and_what_needs_them() -> None:
    profile = parse_profile("subgroup=64,int8=0")
    assert profile is not None
    caps = profile.apply(replace(H200, dot8=True, subgroup_sizes=(32,)))
    assert (caps.subgroup_sizes, caps.matrices, caps.dot8) == ((64,), (), False)
