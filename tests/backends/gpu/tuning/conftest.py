"""A device whose kernels take known times, with a table of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.timed_gpu import TimedDevice, timed_gpu
from tests.helpers.tuned_nets import three_tiles
from weft.backends.gpu.tuning import tuner


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuner, "STEADY", 0.0)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[TimedDevice]:
    three_tiles(monkeypatch)
    with timed_gpu() as made:
        yield made
