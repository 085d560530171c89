"""The tiles of the portable attention: each by value, and which one a GPU takes."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.helpers.cards import H200
from tests.helpers.emulated_gpus import APIS, emulated_gpu
from tests.helpers.launches import kernels
from tests.helpers.nets import Net, feeds
from weft.conformance.cases.table import tolerance
from weft.core.graph.dtypes import DType
from weft.core.graph.interpreter import outputs
from weft.ops.attention import Attention, Extents
from weft.ops.gpu.attention import tiled
from weft.ops.gpu.attention.tiled import TILES, Tile, legal_tiles, microseconds

SIZES = Extents((1, 2), 37, 133, 20, 20)
LLVMPIPE = 32 << 10
"""Bytes of work-group memory of llvmpipe, which one of the tiles exceeds."""
CASES = [(api, t) for api in APIS for t in TILES if api != "vulkan" or t.shared_bytes(SIZES, joint=True) <= LLVMPIPE]


@pytest.mark.alike
@pytest.mark.parametrize(("api", "tile"), CASES, ids=str)
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


def test_a_gpu_takes_the_tile_that_is_expected_to_be_fastest() -> None:
    for sizes in ((1, 6, 197, 64), (16, 12, 128, 32), (1, 1, 4096, 128)):
        batch, heads, rows, depth = sizes
        each = Extents((batch, heads), rows, rows, depth, depth)
        by_time = sorted(legal_tiles(H200, each), key=lambda tile: microseconds(H200, each, tile))
        assert microseconds(H200, each, by_time[0]) > 0
        few, many = (microseconds(H200, Extents((n, heads), rows, rows, depth, depth), by_time[0]) for n in (1, 64))
        assert many > 4 * few, "a device that is full takes longer"


def test_larger_heads_need_tiles_that_hold_less() -> None:
    small, large = (legal_tiles(H200, Extents((1, 1), 64, 64, depth, depth)) for depth in (16, 128))
    assert set(large) < set(small)
    assert all(tile.held(Extents((1, 1), 64, 64, 128, 128)) <= tiled.HELD for tile in large)
