"""Normalizations of few long lines and images, which several work-groups of a GPU share."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, feeds, halves
from weft.core.graph.dtypes import DType
from weft.core.graph.interpreter import outputs
from weft.kernels.device_caps import DeviceCaps
from weft.ops.gpu.spans import FAMILY, SpanFigures, choose_spans
from weft.ops.norm import LayerNormalization
from weft_conformance.cases.table import tolerance

MANY: dict[str, Any] = {"software": False, "compute_units": 132}
IMAGES: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
    ("InstanceNormalization", (1, 5, 120, 90), {}),
    ("GroupNormalization", (2, 8, 70, 61), {"num_groups": 1}),
    ("GroupNormalization", (1, 15, 70, 61), {"num_groups": 5}),
    ("GroupNormalization", (1, 6, 181, 97), {"num_groups": 3}),
    ("weft::GroupDeviation", (1, 14, 70, 61), {"num_groups": 2}),
)
"""Channels by themselves, whole blocks, and groups that share a block; the last span is shorter in most."""


@pytest.mark.covering
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", [DType.FLOAT32, DType.FLOAT16], ids=["high", "low"])
@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
def test_work_groups_share_images(api: str, kind: DType, last: bool) -> None:
    net = Net()
    ends = []
    for number, (op, shape, attributes) in enumerate(IMAGES):
        x = net.pool(net.input(f"x{number}", *shape))
        if kind is DType.FLOAT32:  # a mean that is far from zero
            x = net.add("Add", x, np.full((1, 1, 1, 1), 20.0, np.float32))
        parameters = [] if op == "weft::GroupDeviation" else [halves(net.random(shape[1])) for _ in range(2)]
        normed = net.add(op, x, *parameters, **attributes)
        ends.append(net.pool(normed))
    graph = net.finish(*ends)
    with (
        emulated_gpu(api, channels_last=last, **MANY),
        weft.load(graph, "emulated", precision="high" if kind is DType.FLOAT32 else "low", fallback="error") as session,
    ):
        found = kernels(session)
        assert found.count("image_moments") == found.count("normalize_images") == len(ends)
        given = {name: halves(array) for name, array in feeds(graph).items()}
        for got, want in zip(session.run(given), outputs(graph, given), strict=True):
            np.testing.assert_allclose(got, want, *tolerance(kind, "reduction"))


def _lines(op: str, net: Net, *shape: int, dtype: DType = DType.FLOAT32, **attributes: Any) -> str:
    x = net.input(f"x{len(net.graph.inputs)}", *shape, dtype=dtype)
    given = [net.random(*shape[1:]).astype(dtype.numpy)] * 2 if op == "LayerNormalization" else []
    return net.add(op, x, *given, **attributes)


@pytest.mark.alike
@pytest.mark.parametrize("api", APIS)
def test_work_groups_share_lines(api: str) -> None:
    net = Net()
    ends = [
        _lines("LayerNormalization", net, 2, 3, 50, 61, axis=1),
        _lines("LayerNormalization", net, 1, 9001, axis=1, dtype=DType.FLOAT64),
        _lines("MeanVarianceNormalization", net, 1, 2, 90, 103, axes=(0, 2, 3)),
        _lines("LpNormalization", net, 2, 10007, axis=1, p=1),
    ]
    graph = net.finish(*ends)
    with emulated_gpu(api, **MANY), weft.load(graph, "emulated", fallback="error") as session:
        found = kernels(session)
        assert found.count("line_moments") == found.count("normalize_lines") == len(ends)
        for end, got, want in zip(ends, session.run(feeds(graph)), outputs(graph, feeds(graph)), strict=True):
            np.testing.assert_allclose(got, want, *tolerance(graph.specs[end].dtype, "reduction"))


def test_a_layer_norm_s_other_results_come_once() -> None:
    net = Net()
    x = net.input("x", 2, 9000)
    y = net.add(LayerNormalization(axis=1, outputs=3), x, net.random(9000), outputs=3)
    graph = net.finish(*net.graph.nodes[-1].outputs)
    assert y in graph.outputs
    with emulated_gpu("opencl", **MANY), weft.load(graph, "emulated", fallback="error") as session:
        assert "line_moments" in kernels(session)
        for got, want in zip(session.run(feeds(graph)), outputs(graph, feeds(graph)), strict=True):
            np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))


@given(
    units=st.integers(1, 200), lines=st.integers(1, 300), length=st.integers(1, 1 << 20), loads=st.integers(1, 300)
)
def test_spans_cover_a_line_and_leave_no_unit_without_need(units: int, lines: int, length: int, loads: int) -> None:
    caps = DeviceCaps(1024, (1024, 1024, 64), compute_units=units)
    figures, spans = caps.model.of(SpanFigures), choose_spans(caps, lines, length, loads)
    if spans is None:
        assert length * loads < figures.shared_loads or 2 * lines > caps.likely_units or length == 1
        return
    starts = range(0, length, spans.size)
    assert spans.count == len(starts) > 1 and all(b - a == spans.size for a, b in pairwise(starts))
    assert 2 * lines <= caps.likely_units and lines * spans.count < 2 * caps.likely_units + lines
    assert spans.size * loads >= figures.least_loads or spans.size == 1


def test_a_cpu_and_a_device_whose_kernels_are_wrong_share_no_lines() -> None:
    caps = DeviceCaps(1024, (1024, 1024, 64), compute_units=132)
    assert choose_spans(caps, 1, 100_000) is not None
    assert choose_spans(replace(caps, software=True), 1, 100_000) is None
    assert choose_spans(replace(caps, without=frozenset({FAMILY})), 1, 100_000) is None
