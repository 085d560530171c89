"""Networks that leave a choice of three tiles open, tuned on a device whose times are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import weft
from tests.helpers.timed_gpu import GEMM, TimedDevice
from weft.backends.gpu.tuning.tuner import Tuned, tune_pipelines
from weft.backends.gpu.tuning_tables.tuning_table import TuningTable
from weft.core.graph.graph import Graph
from weft.ops.gpu.conv.algorithms import CONVOLUTIONS
from weft.ops.gpu.conv.gemm import tiles as gemm
from weft.ops.gpu.conv.gemm.tiles import GemmTile

TILES = tuple(GemmTile(4, 1, 8, 8, slices) for slices in (1, 2, 4))
"""The first is the default of the null device."""


def three_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave convolutions one algorithm, with three tiles."""
    of_gemm = next(rivals for rivals in CONVOLUTIONS.rivals if rivals.name == "conv_gemm")
    monkeypatch.setattr(CONVOLUTIONS, "rivals", (replace(of_gemm, algorithms=(gemm.TiledConv(),), modelled=None),))
    monkeypatch.setattr(gemm, "TILES", TILES)
    monkeypatch.setattr(gemm, "choose_tile", lambda *_: TILES[0])


def tune(graph: Graph, on: str = "null", **options: object) -> list[Tuned]:
    with weft.load(graph, device=on, fallback="error") as session:
        return tune_pipelines(session.pipelines, **options)  # type: ignore[arg-type]


def slices(graph: Graph, on: str = "null", precision: str = "high") -> list[int]:
    """Return which tiles a session that is loaded now uses."""
    with weft.load(graph, device=on, fallback="error", precision=precision) as session:
        launches = session.pipelines[0].backend.recording.run.rest  # type: ignore[attr-defined]
        return [launch.kernel.slices for launch in launches if launch.kernel.entry == GEMM]


def table_of(device: TimedDevice) -> TuningTable:
    return TuningTable(device.info)


def ticking(step: float) -> Callable[[], float]:
    """Return a clock that goes on by `step` seconds at each look."""
    seconds = iter(range(1 << 30))
    return lambda: next(seconds) * step
