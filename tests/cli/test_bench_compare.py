"""`weft bench` and `weft compare`: devices side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import weft
from tests.helpers.cli import Cli, double, write_model
from tests.helpers.fakes import AsynchronousBackend, mocks
from weft import models
from weft.cli.difference import Difference, difference
from weft.core.registry.backend_registry import registry


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
    assert all(row["verdict"]["bound"] in row["verdict"]["us"] and row["verdict"]["dearest"] for row in rows)
    text = cli("bench", model, "-d", "cpu", "--iterations", 1, "--profile").out
    assert "us in one run" in text and "bound by " in text and "cpu:0 is a CPU" in text


def test_bench_says_which_device_tells_no_times(cli: Cli, tmp_path: Path) -> None:
    with mocks(silent=AsynchronousBackend):
        command = ("bench", double(tmp_path / "m.onnx"), "-d", "silent", "--iterations", 1, "--profile")
        assert "silent:0, high: no profile, because the device tells no times" in cli(*command).out
        assert json.loads(cli(*command, "--json").out)["rows"][0]["untimed"] == ["silent:0"]


def test_compare_shows_every_value(cli: Cli) -> None:
    done = cli("compare", models.path("shapes"), "-d", "cpu,opencl", "--shape", "image=1,3,128,128")
    relative = float(re.findall(r"the largest is (\S+) of the range", done.out)[0])
    assert 0 < relative < 1e-4
    low = cli(
        *("compare", models.path("shapes"), "-d", "cpu,opencl", "--shape", "image=1,3,128,128"),
        *("--precision", "low", "--threshold", "1e-5"),
    )
    assert float(re.findall(r"the largest is (\S+) of the range", low.out)[0]) > relative
    assert "Conv" in low.out
    assert re.search(r"^cpu at precision high, nodes: cpu \d+$", low.out, re.M)
    assert re.search(r"^opencl at precision low, nodes: opencl \d+$", low.out, re.M)
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


def chain(tmp_path: Path) -> Path:
    """Write a network of two nodes, of which the first makes NaN of what is below 0."""
    nodes = [helper.make_node("Sqrt", ["x"], ["r"], name="root"), helper.make_node("Abs", ["r"], ["y"], name="last")]
    return write_model(tmp_path / "chain.onnx", nodes, {"x": (1, 4)}, ["y"])


def test_numbers_that_are_not_finite_are_no_agreement(cli: Cli, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[-1, 4, np.nan, 9]], np.float32))
    given = (chain(tmp_path), "-d", "cpu,opencl", "-i", f"x={tmp_path / 'x.npy'}")
    said = cli("compare", *given).out
    assert "the input 'x' has 1 of 4 numbers that are not finite" in said
    assert "4 numbers in all are not finite on both sides" in said and "where both sides are finite" in said
    for side in ("cpu", "opencl"):
        assert f"{side} at precision high: numbers that are not finite begin at node 'root' (Sqrt): 2 of 4" in said
    assert len(re.findall(r"\S+, 2 not finite", cli("bench", *given, "--iterations", 1).out)) == 2
    np.save(tmp_path / "nan.npy", np.full((1, 4), np.nan, np.float32))
    said = cli("compare", *given[:-1], f"x={tmp_path / 'nan.npy'}").out
    assert "no number is finite on both sides" in said and "of the range" not in said
    rows = json.loads(cli("bench", *given, "--iterations", 1, "--json").out)["rows"]
    assert [(r["not_finite"], r["not_finite_unlike"]) for r in rows] == [(2, 0)] * 2


def test_a_number_that_is_finite_on_one_side_only_differs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = weft.Session.run

    def run(session: weft.Session, *given: Any, **more: Any) -> list[Any]:
        outputs = real(session, *given, **more)
        if any(device.startswith("opencl") for device in session.report.nodes_by_device):
            outputs[-1] = np.where(np.arange(4) == 1, np.float32(np.inf), outputs[-1])
        return outputs

    monkeypatch.setattr(weft.Session, "run", run)
    model = chain(tmp_path)
    said = cli("compare", model, "-d", "cpu,opencl", "--threshold", 1).out
    assert "not finite: 1 differ" in said and "1 of 2 values differ" in said
    assert "cpu at precision high: all numbers are finite" in said and "begin at node 'last'" in said
    assert not re.search(r"\b(nan|inf)\b", said)
    assert "not finite: 1 differ" in cli("bench", model, "-d", "cpu,opencl", "--iterations", 1).out
    assert "not finite: 1 differ" in cli("run", model, "-d", "cpu,opencl").out
    rows = json.loads(cli("bench", model, "-d", "cpu,opencl", "--iterations", 1, "--json").out)["rows"]
    assert rows[1]["difference"] is None and rows[1]["not_finite_unlike"] == 1


def test_a_difference_is_not_hidden_by_another_output() -> None:
    one, nan = np.ones(2, np.float32), np.full(2, np.nan, np.float32)
    assert difference([one, nan], [one * 3, one]).text(".1e") == "not finite: 2 differ"
    assert difference([nan, -np.inf * one], [nan, np.inf * one]) == Difference(0.0, alike=2, unlike=2)
    assert difference([one * 3, nan], [one, nan]).text(".1e") == "2.0e+00, 2 not finite"


@pytest.mark.parametrize("command", ["run", "compare", "bench"])
def test_an_interrupt_is_answered(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    real = weft.Session.run

    def run(session: weft.Session, *given: Any, **more: Any) -> list[Any]:
        if any(device.startswith("opencl") for device in session.report.nodes_by_device):
            raise KeyboardInterrupt
        return real(session, *given, **more)

    monkeypatch.setattr(weft.Session, "run", run)
    model = double(tmp_path / "m.onnx")
    done = cli(command, model, "-d", "cpu,opencl", status=130)
    assert done.err.splitlines()[-1] == "interrupted" and "Traceback" not in done.err
    if command == "bench":
        assert re.search(r"^cpu +high", done.out, re.M) and "opencl" not in done.out
        assert len(json.loads(cli("bench", model, "-d", "cpu,opencl", "--json", status=130).out)["rows"]) == 1
        assert cli("bench", model, "-d", "opencl,cpu", status=130).out == ""
