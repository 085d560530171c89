"""What is expected of tiles of a kernel, beside what was measured."""

from __future__ import annotations

from math import exp, log

import pytest

from benchmarks.attention_tiles import AttentionTiles
from benchmarks.cards import CARDS
from benchmarks.grouped_tiles import GroupedTiles
from benchmarks.matrix_attention_tiles import MatrixAttentionTiles
from benchmarks.matrix_product_tiles import MatrixProductTiles
from benchmarks.product_tiles import ProductTiles
from benchmarks.tile_times import TiledKernel, judged, recorded


@pytest.mark.parametrize(
    ("kernel", "lost", "least"),
    [
        (AttentionTiles(), 1.05, 0.75), (MatrixAttentionTiles(), 1.06, 0.7), (ProductTiles(), 1.05, 0.75),
        (GroupedTiles(), 1.1, 0.7), (MatrixProductTiles(), 1.05, 0.7),
    ],
    ids=[
        "attention", "attention on matrix units", "products", "convolutions in groups", "products on matrix units",
    ],
)
def test_estimates_choose_well_and_are_close(kernel: TiledKernel, lost: float, least: float) -> None:
    """`lost`: what the chosen tiles may take of the best, on average; `least`: of their times the least estimate."""
    rows = judged(kernel, recorded(kernel), CARDS["opencl"].caps)
    assert [row.sizes for row in rows] == list(kernel.problems)
    assert exp(sum(log(row.took / row.best) for row in rows) / len(rows)) < lost
    assert all(least < row.expected / row.took < 1.33 for row in rows)
