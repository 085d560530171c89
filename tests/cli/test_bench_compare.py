"""`weft bench` and `weft compare`: devices side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import weft
from tests.cli.driver import Cli, double
from weft import models
from weft.core.registry import registry


def test_bench_sets_devices_side_by_side(cli: Cli, tmp_path: Path) -> None:
    model = double(tmp_path / "m.onnx")
    done = cli(
        "bench", model, "--device", "cpu,vulkan", "--precision", "high,low", "--iterations", 3, "--warmup", 1
    )
    rows = [line.split() for line in done.out.splitlines()[2:]]
    assert [r[:2] for r in rows] == [["cpu", "high"], ["cpu", "low"], ["vulkan", "high"], ["vulkan", "low"]]
    assert "median ms" in done.out and "p90 ms" in done.out


def test_bench_says_where_a_precision_was_not_granted(cli: Cli, tmp_path: Path) -> None:
    command = ("bench", double(tmp_path / "m.onnx"), "-d", "cpu,opencl:0", "--precision", "high,normal,normal")
    said = "precision NORMAL was computed as HIGH: there is no faster arithmetic of fp32 accuracy"
    notes = [line for line in cli(*command, "--iterations", 1).out.splitlines() if line.startswith("note: ")]
    assert notes == [f"note: {device}, normal: {said}" for device in ("cpu", "opencl:0")]
    rows = json.loads(cli(*command, "--iterations", 1, "--json").out)["rows"]
    assert [any(said in note for note in row["notes"]) for row in rows] == [False, True, True] * 2


def test_bench_gives_json_with_every_time(cli: Cli, tmp_path: Path) -> None:
    done = cli("bench", double(tmp_path / "m.onnx"), "-d", "all", "--iterations", 4, "--json")
    facts = json.loads(done.out)
    assert [r["device"] for r in facts["rows"]] == [f"{d.id}:{d.index}" for d in weft.devices()]
    for row in facts["rows"]:
        assert len(row["runs_ms"]) == 4
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["p90_ms"] <= max(row["runs_ms"])
        assert row["first_ms"] > 0 and row["load_ms"] > 0 and row["difference"] == 0
    assert (
        "--precision 'fast' is not known"
        in cli("bench", tmp_path / "m.onnx", "--precision", "fast", status=2).err
    )


def test_bench_profiles_a_run(cli: Cli, tmp_path: Path) -> None:
    model = double(tmp_path / "m.onnx")
    done = cli("bench", model, "-d", "cpu,opencl", "--iterations", 1, "--profile", "--json")
    rows = json.loads(done.out)["rows"]
    events = [[(e["device"], e["name"]) for e in row["events"]] for row in rows]
    assert all(any(e.get("bytes", 0) > 0 and "share" in e for e in row["events"]) for row in rows)
    assert all(len(names) >= 1 for names in events) and events[0][0][0] == "cpu:0"
    assert any("/" in name for _, name in events[1]), "a launch is called node/kernel"
    assert "us in one run" in cli("bench", model, "-d", "cpu", "--iterations", 1, "--profile").out


def test_compare_shows_every_value(cli: Cli) -> None:
    done = cli("compare", models.path("shapes"), "-d", "cpu,vulkan", "--shape", "image=1,3,128,128")
    relative = float(re.findall(r"the largest is (\S+) of the range", done.out)[0])
    assert 0 < relative < 1e-4
    low = cli(
        *("compare", models.path("shapes"), "-d", "cpu,vulkan", "--shape", "image=1,3,128,128"),
        *("--precision", "low", "--threshold", "1e-5"),
    )
    assert float(re.findall(r"the largest is (\S+) of the range", low.out)[0]) > relative
    assert "Conv" in low.out
    assert re.search(r"^cpu at precision high, nodes: cpu \d+$", low.out, re.M)
    assert re.search(r"^vulkan at precision low, nodes: vulkan \d+$", low.out, re.M)
    assert "name two" in cli("compare", models.path("shapes"), "-d", "cpu", status=2).err


def test_a_run_is_not_compared_with_itself(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = double(tmp_path / "m.onnx")
    said = cli("compare", model, "-d", "cpu,cpu:0", status=2).err
    assert "both runs would be on cpu at precision high" in said and "named twice" in said and "next: " in said
    assert "cpu at precision low" in cli("compare", model, "-d", "cpu,cpu", "--precision", "low").out
    normal = cli("compare", model, "-d", "cpu,cpu", "--precision", "normal").out
    assert "note: cpu, normal: precision NORMAL was computed as HIGH" in normal
    for kind in ("opencl", "vulkan"):
        monkeypatch.setattr(registry.find(kind), "absent", lambda: "no driver: install one")
    said = cli("compare", model, status=2).err
    assert "both runs would be on cpu" in said and "AUTO picked" in said
