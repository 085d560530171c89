"""The tiles of the portable attention: each by value, and which one a GPU takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, feeds
from weft.core.graph.dtypes import DType
from weft.core.graph.interpreter import outputs
from weft.ops.attention import Attention, Extents
from weft.ops.gpu.attention import tiled
from weft.ops.gpu.attention.attention import ATTENTIONS
from weft.ops.gpu.attention.problem import AttentionProblem
from weft.ops.gpu.attention.tiled import TILES, Tile, legal_tiles, microseconds
from weft_conformance.cases.table import tolerance


@pytest.mark.alike
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("tile", TILES, ids=repr)
def test_every_tile_computes_attention(api: str, tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "TILES", (tile,))
    net = Net()
    hidden = np.zeros((1, 1, 37, 133), np.float32)
    hidden[..., 70:90] = -np.inf
    names = [net.input(name, 1, 2, rows, 20) for name, rows in (("q", 37), ("k", 133), ("v", 133))]
    graph = net.finish(net.add(Attention(scale=0.5), *names, net.constant(hidden)))
    with emulated_gpu(api, software=False), weft.load(graph, "emulated", fallback="error") as session:
        assert kernels(session) == ["attention"]
        (got,), (want,) = session.run(feeds(graph)), outputs(graph, feeds(graph))
        np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "reduction"))


@pytest.mark.alike
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("cap", [0.01, 2.0, 1e6])
def test_a_cap_is_as_exact_as_scores_without(api: str, cap: float) -> None:
    """Caps that all scores reach, that some do, and that none comes near."""
    net = Net()
    names = [net.input(name, 1, 2, rows, 20) for name, rows in (("q", 37), ("k", 133), ("v", 133))]
    graph = net.finish(net.add(Attention(scale=0.5, softcap=cap), *names, net.input("mask", 37, 133)))
    with emulated_gpu(api, software=False), weft.load(graph, "emulated", fallback="error") as session:
        assert kernels(session) == ["attention"]
        (got,), (want,) = session.run(feeds(graph)), outputs(graph, feeds(graph))
        np.testing.assert_allclose(got, want, *tolerance(DType.FLOAT32, "transcendental"))


@pytest.mark.parametrize("cap", [1e-39, 3e38])
@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_a_cap_that_fp32_cannot_divide_by_is_left_to_other_kernels(device: str, cap: float) -> None:
    net = Net()
    names = [net.input(name, 1, 2, rows, 20) for name, rows in (("q", 7), ("k", 9), ("v", 9))]
    graph = net.finish(net.add(Attention(scale=0.5, softcap=cap), *names))
    with weft.load(graph, device, fallback="error") as session:
        assert "attention" not in kernels(session)
        (got,), (want,) = session.run(feeds(graph)), outputs(graph, feeds(graph))
        np.testing.assert_allclose(got, want, 1e-4, 1e-4)


def test_a_gpu_takes_the_tile_that_is_expected_to_be_fastest() -> None:
    for heads, rows, depth in ((6, 197, 64), (192, 128, 32), (1, 9, 128)):
        each = Extents((1, heads), rows, rows, depth, depth)
        decision = ATTENTIONS.decide(AttentionProblem(each, (), False, False, H200))
        costs = {candidate.tile: candidate.cost for candidate in decision.candidates.values()}
        assert decision.in_microseconds and set(costs) == set(legal_tiles(H200, each))
        assert decision.candidates[decision.default].cost == min(costs.values())
        assert all(cost == microseconds(H200, each, tile) for tile, cost in costs.items())


def test_a_cpu_takes_the_tile_that_compiles_fast() -> None:
    caps = replace(H200, software=True)
    decision = ATTENTIONS.decide(AttentionProblem(Extents((1, 6), 197, 197, 64, 64), (), False, False, caps))
    assert not decision.in_microseconds and decision.candidates[decision.default].tile == tiled.SOFTWARE_TILE
    assert decision.candidates[decision.default].cost == 1.0, "its costs are no times"


def test_a_full_device_takes_longer() -> None:
    few, many = (microseconds(H200, Extents((n, 12), 512, 512, 64, 64), Tile(4, 8, 16, 32)) for n in (1, 64))
    assert many > 8 * few


def test_larger_heads_need_tiles_that_hold_less() -> None:
    small, large = (legal_tiles(H200, Extents((1, 1), 64, 64, depth, depth)) for depth in (16, 128))
    assert set(large) < set(small)
    assert all(tile.held(Extents((1, 1), 64, 64, 128, 128)) <= tiled.HELD for tile in large)
