"""Sums of images that are taken of rows of channels, so that the product before them can take them over."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.helpers.gpu_plans import assert_plan_computes
from tests.helpers.launches import kernels, planned_kernels
from tests.helpers.nets import Net, feeds
from tests.helpers.null_gpu import CAPS, null_gpu
from tests.helpers.op_rows import GPUS
from tests.helpers.random_nets import SLOW
from tests.helpers.run_length import examples
from weft.core.graph.dtypes import DType
from weft.core.graph.graph import Graph
from weft.core.graph.interpreter import outputs
from weft_conformance.cases.table import tolerance

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def blocks(
    count: int = 2, channels: int = 8, *, images: int = 1, size: int = 5, kind: str = "Add", read: str = "Conv"
) -> Graph:
    """Return a network of ConvNeXt's blocks behind a convolution; `read` is what reads the last sum."""
    net = Net()
    x = net.conv(net.input("x", images, 3, size, size), channels, 2, strides=(1, 1), pads=(0, 0, 1, 1), name="stem")
    for k in range(count):
        y = net.add("Transpose", net.conv(x, channels, 3, pads=(1, 1, 1, 1), group=channels), perm=LAST)
        y = net.add("LayerNormalization", y, net.random(channels), net.random(channels), axis=-1)
        y = net.add("Relu", net.add("MatMul", y, net.random(channels, 2 * channels, scale=0.3)))
        y = net.add("Mul", net.add("MatMul", y, net.random(2 * channels, channels, scale=0.3)), net.random(channels))
        x = net.add(kind, net.add("Transpose", y, perm=FIRST), x, name=f"sum{k}")
    if read == "Conv":
        return net.finish(net.add("Relu", net.conv(x, 4), name="y"))
    if read == "output":
        return net.finish(x)
    return net.finish(net.add("Softmax", net.add("Reshape", x, np.array([images, -1])), name="y"))


@pytest.mark.parametrize("precision", ["high", "low"])
def test_a_block_is_four_launches(precision: str) -> None:
    """The filter, the norm and both products: the sum and all moves are parts of these."""
    counts = [len(planned_kernels(blocks(count), precision)) for count in (1, 2, 3)]
    assert [b - a for a, b in pairwise(counts)] == [4, 4]
    told = planned_kernels(blocks(3), precision)
    assert "move" not in told and not any(kernel.startswith("elementwise") for kernel in told)
    assert_plan_computes(blocks(2, images=2), precision, 0.05 if precision == "low" else 1e-5)


@pytest.mark.parametrize("graph", [blocks(channels=6), blocks(read="output"), blocks(1, read="Reshape")])
def test_sums_elsewhere_are_right_and_stay(graph: Graph) -> None:
    assert any(kernel.startswith("elementwise") for kernel in planned_kernels(graph))
    assert_plan_computes(graph)


def test_without_index_maps_nothing_is_turned() -> None:
    with null_gpu() as device:
        device.caps = replace(CAPS, without=frozenset({"index_maps"}))
        with weft.load(blocks(), "null", fallback="error") as session:
            assert any(kernel.startswith("elementwise") for kernel in kernels(session))


def test_what_became_of_a_sum_is_told() -> None:
    with null_gpu():
        told = "\n".join(weft.optimize(blocks(), "null", fallback="error").why("n_sum0"))
    assert "null:0 (" in told and "'n_sum0'" in told and "now: " in told
    assert "sum_rows (Compute steps of images on the rows of channels that a product makes)" in told


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
def test_a_device_computes_it_right(device: str) -> None:
    graph = blocks(2, images=2)
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, fallback="error") as session:
        assert "move" not in kernels(session)
        (got,) = session.run(feeds(graph))
    np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))


@given(
    count=st.integers(1, 3), channels=st.sampled_from([4, 8, 10, 12]), images=st.integers(1, 2), size=st.integers(1, 6),
    kind=st.sampled_from(["Add", "Sub", "Max"]), read=st.sampled_from(["Conv", "output", "Reshape"]),
)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW)
def test_any_blocks_play_right(count: int, channels: int, images: int, size: int, kind: str, read: str) -> None:
    assert_plan_computes(blocks(count, channels, images=images, size=size, kind=kind, read=read))
