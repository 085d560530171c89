"""Groups that share a tile's K: when that is offered, where sums go, branches side by side, conv_matrix by value.

The other kernels' sums in parts are tested beside those of whole tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.conv_problems import take
from tests.helpers.convolutions import assert_runs_on, uneven_convolution
from tests.helpers.gpu_plans import planned
from tests.helpers.nets import Net
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu.device.device import BarrierCommand
from weft.backends.gpu.lowering.launches.builder import NodeBuilder
from weft.backends.gpu.recording import pipeline_recording
from weft.backends.gpu.recording.schedule import Access, KeptLevels, schedule
from weft.core.graph.dtypes import DType
from weft.ops.gpu.conv.gemm import tiles as gemm
from weft.ops.gpu.conv.gemm.split_k import MOST_TILES, InParts, TileWork, better, offer_parts
from weft.ops.gpu.conv.gemm.tiles import GemmTile
from weft.ops.gpu.conv.matrix import staged as matrix
from weft.ops.gpu.conv.matrix.staged import MatrixTile
from weft.ops.unary import Relu
from weft_conformance.cases.table import tolerance

LONG, SHORT = TileWork(32, 36, 36 * 20_000, 49 * 512), TileWork(32, 6, 6 * 20_000, 49 * 512)


def test_parts_are_possible_where_units_wait_and_steps_suffice() -> None:
    assert LONG.possible_parts(H200) == [2, 3, 4, 8]
    assert SHORT.possible_parts(H200) == [2, 3]
    assert replace(LONG, groups=132).possible_parts(H200) == []
    assert replace(LONG, groups=130).possible_parts(H200) == [2, 3, 4], "more would only queue"
    assert LONG.possible_parts(replace(H200, software=True)) == []


def test_there_are_no_parts_where_memory_is_short() -> None:
    with null_gpu() as device:
        device.caps = H200
        for thrifty, parts in ((False, [2, 3, 4, 8]), (True, [])):
            made = NodeBuilder(device, Relu(), "n", (), (), thrifty=thrifty)
            assert LONG.possible_parts(made.caps) == parts


@pytest.mark.parametrize(("work", "pays"), [(LONG, True), (SHORT, False)])
def test_a_second_launch_must_pay(work: TileWork, pays: bool) -> None:
    whole = GemmTile(2, 1, 8, 4, 8)

    def work_of(tile: GemmTile) -> TileWork:
        return work

    offered = offer_parts(H200, [whole], work_of)
    assert (0 < len(offered) <= MOST_TILES) is pays
    assert better(H200, whole, offered, work_of) == (offered[0] if pays else whole)
    assert better(H200, whole, [], work_of) == whole


def test_a_tile_that_fills_the_device_stays_whole_unless_tuning_finds_better() -> None:
    whole, wide = GemmTile(4, 1, 8, 8, 4), GemmTile(8, 2, 16, 16, 1)
    works = {whole: replace(LONG, groups=132), wide: LONG}
    offered = offer_parts(H200, [whole, wide], works.__getitem__)
    assert {each.tile for each in offered} == {wide}
    assert better(H200, whole, offered, works.__getitem__) == whole


@pytest.mark.parametrize(
    ("tile", "ci", "kernel", "residual"),
    [
        (InParts(MatrixTile(1, 1, 1, 1, 1, 8), 3), 40, 3, True),  # twelve steps; pieces of eight channels
        (InParts(MatrixTile(1, 1, 1, 2, 2, 8), 4), 36, 3, False),  # six rounds of two slices: the last part has none
    ],
    ids=str,
)
def test_convolution_on_matrix_units_by_value(
    tile: InParts[MatrixTile], ci: int, kernel: int, residual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, matrix.MatrixConv(), tile)
    made = uneven_convolution(ci, ci, kernel, 1, residual)
    assert_runs_on(("conv_matrix", "sum_parts"), *made, "opencl", {"channels_last": True})


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_products_and_joined_channels_in_parts_by_value(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums go where the output lies: to rows of a linear value, and between other channels of a concat."""
    tile = InParts(GemmTile(2, 1, 8, 8, 1), 3)
    take(monkeypatch, gemm.TiledConv(), tile)
    net, rng = Net(), np.random.default_rng(5)
    x, z = net.input("x", 6, 80), net.input("z", 2, 40, 5, 3)
    product = net.add("MatMul", x, rng.standard_normal((80, 24), np.float32))
    shifted = net.add("Add", net.add("Add", product, rng.standard_normal(24, np.float32)), product)
    halves = [net.conv(z, channels, 3, bias=channels > 8, pads=(1, 1, 1, 1)) for channels in (12, 8)]
    joined = net.add("Sigmoid", net.add("Concat", *halves, axis=1), name="joined")
    graph = net.finish(net.add("Relu", shifted, name="y"), joined)
    inputs = [rng.standard_normal(graph.specs[name].dims, np.float32) for name in graph.inputs]
    with weft.load(graph, "cpu") as session:
        expected = session.run(*inputs)
    with weft.load(graph, device, precision="high", fallback="error") as session:
        actual = session.run(*inputs)
        (pipeline,) = session.pipelines
        labels = [launch.label for launch in pipeline.backend.recording.run.rest]  # type: ignore[attr-defined]
    assert sum(label.endswith("/sum_parts") for label in labels) == 3
    rtol, atol = tolerance(DType.FLOAT32, "reduction")
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol, atol)


def test_branches_in_parts_share_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scratch memory of one is not that of another."""
    tile = InParts(GemmTile(4, 1, 8, 8, 1), 2)
    take(monkeypatch, gemm.TiledConv(), tile)
    net = Net()
    x = net.input("x", 1, 64, 4, 4)
    graph = net.finish(*(net.conv(x, 8, name=f"y{k}") for k in range(3)))
    seen: list[list[Any]] = []

    def watched(accesses: Sequence[Access], kept: KeptLevels) -> list[Any]:
        seen.append(schedule(accesses, kept))
        return seen[-1]

    monkeypatch.setattr(pipeline_recording, "schedule", watched)
    with planned(graph):
        pass
    barriers = sum(isinstance(c, BarrierCommand) for c in seen[-1])
    assert barriers == 5, "upload, relayout, three convolutions, three sums, three relayouts, downloads"
