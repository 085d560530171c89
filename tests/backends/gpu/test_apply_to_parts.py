"""Gates of which one operand is joined of parts that would be copied, as in MambaOut: each part is one launch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

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
    count: int = 2, channels: int = 8, kept: int = 4, *, images: int = 1, size: int = 5, gate: str = "value"
) -> Graph:
    """Return gated blocks: of some channels of rows a filter is computed, others are kept, and a gate scales both.

    gate: "value" (an activation of more channels of the rows), "constants" (a number for each channel), "scalar".
    """
    net, hidden = Net(), channels + kept
    x = net.input("x", images, size, size, channels)
    for k in range(count):
        rows = net.add("MatMul", x, net.random(channels, 2 * hidden, scale=0.3))
        g = net.add("Split", rows, np.array([hidden, kept, channels]), axis=-1, outputs=3)
        image = net.add("Transpose", f"{g}.2", perm=FIRST)
        filtered = net.add("Transpose", net.conv(image, channels, 3, pads=(1,) * 4, group=channels), perm=LAST)
        whole = net.add("Concat", f"{g}.1", filtered, axis=-1)
        if gate == "constants":
            y = net.add("Relu", net.add("Mul", whole, net.random(hidden)))
        else:
            y = net.add("Mul", net.add("Sigmoid", g) if gate == "value" else np.array(0.5, np.float32), whole)
        x = net.add("Add", x, net.add("MatMul", y, net.random(hidden, channels, scale=0.3)), name=f"sum{k}")
    return net.finish(x)


@pytest.mark.parametrize("precision", ["high", "low"])
def test_a_block_copies_nothing(precision: str) -> None:
    """Two products, the filter of channels where they lie in rows, and the gate of each part."""
    told = [planned_kernels(blocks(count), precision) for count in (1, 2, 3)]
    assert [len(b) - len(a) for a, b in pairwise(told)] == [5, 5]
    assert not {"move", "relayout"} & set(told[-1])
    assert_plan_computes(blocks(2, images=2), precision, 0.05 if precision == "low" else 1e-5)


@pytest.mark.alike
@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("precision", ["high", "low"])
def test_a_device_computes_it_right(device: str, precision: str) -> None:
    graph = blocks(1, 12, 8, images=2)
    (want,) = outputs(graph, feeds(graph))
    with weft.load(graph, device, precision=precision, fallback="error") as session:
        assert not {"move", "relayout"} & set(kernels(session))
        (got,) = session.run(feeds(graph))
    dtype = DType.FLOAT16 if precision == "low" else DType.FLOAT32
    np.testing.assert_allclose(got, want, *tolerance(dtype, "reduction"))


@given(
    count=st.integers(1, 2), channels=st.sampled_from([2, 4, 8, 10]), kept=st.sampled_from([1, 2, 4, 8]),
    images=st.integers(1, 2), size=st.integers(1, 6), gate=st.sampled_from(["value", "constants", "scalar"]),
)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW)
def test_any_blocks_play_right(count: int, channels: int, kept: int, images: int, size: int, gate: str) -> None:
    assert_plan_computes(blocks(count, channels, kept, images=images, size=size, gate=gate))


@pytest.mark.parametrize("gate", ["constants", "scalar"])
def test_gates_of_constants_are_divided(gate: str) -> None:
    told = planned_kernels(blocks(1, gate=gate))
    assert told.count("elementwise") == 2 and "move" not in told
    assert_plan_computes(blocks(1, images=2, gate=gate))


def test_channels_that_are_no_whole_blocks_are_converted() -> None:
    assert "relayout" not in planned_kernels(blocks(1, 8, 2))
    assert "relayout" in planned_kernels(blocks(1, 8, 1))


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("swapped", [False, True])
def test_rows_that_lie_in_another_value_are_read_right(axis: int, swapped: bool) -> None:
    """Where the rows are the first part of a Concat, every element lies at its own index."""
    net = Net()
    rows = net.add("MatMul", net.input("x", 1, 3, 3, 4), net.random(4, 8))
    part = net.add("Transpose", net.add("Split", rows, np.array([4, 4]), axis=-1, outputs=2), perm=FIRST)
    filtered = net.conv(part, 4, 3, pads=(1,) * 4, group=4)
    parts = [rows, net.add("MatMul", net.input("z", 1, 3, 3, 4), net.random(4, 8))]
    whole = net.add("Softmax", net.add("Concat", *(parts[::-1] if swapped else parts), axis=axis))
    graph = net.finish(filtered, whole)
    assert_plan_computes(graph)
    with weft.load(graph, GPUS[0], fallback="error") as session:
        for got, want in zip(session.run(feeds(graph)), outputs(graph, feeds(graph)), strict=True):
            np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))


def other(kind: str) -> Graph:
    """Return a sum of which one operand is a Concat that is better left as it is."""
    net = Net()
    x, z = net.input("x", 2, 6, 12), net.input("z", 2, 6, 16)
    if kind == "halves":
        swapped = net.add("Split", z, np.array([8, 8]), axis=-1, outputs=2)
        whole = net.add("Concat", f"{swapped}.1", swapped, axis=-1)
        return net.finish(net.add("Softmax", net.add("Add", whole, net.input("v", 2, 6, 16))))
    half = net.add("Split", x, np.array([8, 4]), axis=-1, outputs=2)
    parts = [half, net.add("MatMul", f"{half}.1", net.random(4, 8))]
    if kind != "made":
        parts[1] = net.add("Slice", net.input("w", 2, 6, 12), *(np.array([n]) for n in (2, 10, -1)))
    if kind == "twice":
        parts[1] = parts[0]
    rows = kind == "other axis"
    whole = net.add("Concat", *parts, axis=1 if rows else -1)
    y = net.add("Add", whole, net.input("v", 2, 12, 8) if rows else z)
    return net.finish(net.add("Softmax", y), *([whole] if kind == "result" else []))


@pytest.mark.parametrize("kind", ["made", "halves", "twice", "other axis", "result"])
def test_other_concats_stay(kind: str) -> None:
    """What a product makes is written where it belongs, and halves that change places are read where they lie."""
    assert planned_kernels(other("copied")).count("elementwise") == 2
    assert planned_kernels(other(kind)).count("elementwise") == 1
    assert_plan_computes(other(kind))


def test_without_index_maps_nothing_is_divided() -> None:
    def told(**caps: Any) -> int:
        with null_gpu() as device:
            device.caps = replace(CAPS, **caps)
            with weft.load(blocks(1), "null", fallback="error") as session:
                return kernels(session).count("elementwise")

    assert (told(), told(without=frozenset({"index_maps"}))) == (2, 1)
