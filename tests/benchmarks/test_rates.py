"""The comparison of kernels that are chosen by a device's rates with those chosen without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import rates
from weft.backends.gpu.tuning import probe
from weft.core.registry.backend_registry import registry


def test_it_prints_and_writes_what_the_probe_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = next((d.id for d in registry.devices() if d.id in ("opencl", "vulkan")), None)
    if gpu is None:
        pytest.skip("no GPU")
    for name, value in {"ENOUGH": 2e-5, "LARGE_OF_CPU": 1 << 20, "LAUNCHES": 3, "TIMES": 2}.items():
        monkeypatch.setattr(probe, name, value)
    rates.main(["--devices", f"{gpu},nope", "--probe-only", "--json", str(tmp_path / "rates.json")])
    (row,) = json.loads((tmp_path / "rates.json").read_text())["rows"]
    assert row["device"] == f"{gpu}:0" and row["rates"]["products"] > 0
    assert "absent: nope" in capsys.readouterr().out


def test_launches_of_a_node_are_compared_together() -> None:
    old = [("a", "gemm"), ("b", "gemm"), ("c", "pool")]
    new = [("a", "gemm"), ("b", "gemm"), ("b", "sum"), ("d", "pool")]
    assert rates.differences(old, old) == []
    assert rates.differences(old, new) == [("b", "gemm", "gemm + sum"), ("c", "pool", "-"), ("d", "-", "pool")]
