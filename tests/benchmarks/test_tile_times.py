"""What is expected of tiles of a kernel, beside what was measured."""

from __future__ import annotations

from math import exp, log

import pytest

from benchmarks.attention_tiles import AttentionTiles
from benchmarks.product_tiles import ProductTiles
from benchmarks.tile_times import TiledKernel, judged, recorded
from scripts.update_shipped_choices import CARDS


@pytest.mark.parametrize("kernel", [AttentionTiles(), ProductTiles()], ids=lambda kernel: kernel.name)
def test_estimates_choose_well_and_are_close(kernel: TiledKernel) -> None:
    rows = judged(kernel, recorded(kernel), CARDS["opencl"].caps)
    assert [row.sizes for row in rows] == list(kernel.problems)
    assert exp(sum(log(row.took / row.best) for row in rows) / len(rows)) < 1.05
    assert all(0.75 < row.expected / row.took < 1.33 for row in rows)
