"""`benchmarks.pool`: a trial on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import pool


def test_it_measures_one_device_and_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    small = "--image 32 --width 0.05 --batch 2 --replicas 1 --precision high --seconds 0.02 --input uint8".split()
    pool.main(["--devices", "cpu,cpu", *small, "--json", str(file)])
    rows = json.loads(file.read_text())
    assert [(row["devices"], row["replicas"]) for row in rows] == [(1, 1), (2, 1)]
    assert all(row["pictures_per_second"] > 0 and 0 < row["mean_batch"] <= 2 for row in rows)
    assert "2 device(s), 1 replica(s) each" in capsys.readouterr().out
