"""`weft bench` and `weft compare`: devices side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import weft
from tests.helpers.cli import Cli, double, write_model
from tests.helpers.fakes import AsynchronousBackend, WrongFused, WrongWhole, mock, mocks
from weft import models
from weft.backends.cpu.backend import CpuBackend, ReferenceExecution
from weft.cli.difference import Difference, difference
from weft.core.contract.backend import Execution
from weft.core.graph.op import Op
from weft.core.graph.tensor import Tensor
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


SHAPES = (models.path("shapes"), "--shape", "image=1,3,128,128")


def test_compare_passes_devices_that_agree(cli: Cli) -> None:
    done = cli("compare", *SHAPES, "-d", "cpu,opencl,vulkan")
    passed = re.findall(r"^PASS: (\w+) at precision high is within (\S+) of the range of cpu", done.out, re.M)
    assert [device for device, _ in passed] == ["opencl", "vulkan"]
    assert all(0 < float(worst) < 1e-4 for _, worst in passed)
    assert "there is nothing to compare it with" in cli("compare", *SHAPES, "-d", "cpu", status=2).err


def test_compare_of_values_lists_what_the_plan_stores(cli: Cli) -> None:
    low = cli("compare", *SHAPES, "-d", "cpu,opencl", "--precision", "low", "--values")
    assert re.search(r"^cpu at precision high, nodes: cpu \d+$", low.out, re.M)
    assert re.search(r"^opencl at precision low, nodes: opencl \d+$", low.out, re.M)
    assert "PASS: opencl at precision low" in low.out and "0 of 18 values" in low.out
    strict = cli("compare", *SHAPES, "-d", "cpu,opencl", "--precision", "low", "--threshold", "1e-9", status=1)
    assert strict.out.splitlines()[-1].startswith("FAIL: opencl at precision low differs from cpu at precision high")
    assert "the first wrong value is 'side/maxpool', of 'side/maxpool' (MaxPool) on opencl:0" in strict.out


def fused(tmp_path: Path, *last: str) -> Path:
    """Write Abs, Exp, Tanh and more in a row; nodes and values are called after them."""
    kinds = ["Abs", "Exp", "Tanh", *last]
    names = ["x", *(kind.lower() for kind in kinds)]
    nodes = [helper.make_node(k, [i], [o], name=f"{o}_node") for k, (i, o) in zip(kinds, pairwise(names), strict=True)]
    return write_model(tmp_path / "fused.onnx", nodes, {"x": (2, 3)}, names[-1:])


def test_compare_finds_a_device_that_is_wrong_only_where_it_fuses(cli: Cli, tmp_path: Path) -> None:
    """With every value as an output nothing is fused, and nothing would be wrong."""
    model = fused(tmp_path, "Neg", "Sin")
    with mocks(right=mock(), wrong=WrongFused):
        said = cli("compare", model, "-d", "cpu,right,wrong", status=1).out
        facts = json.loads(cli("compare", model, "-d", "cpu,right,wrong", "--json", status=1).out)
    assert "PASS: right at precision high" in said
    fail = next(line for line in said.splitlines() if line.startswith("FAIL: "))
    assert "'sin' by " in fail
    assert "the first wrong value is 'tanh', of 'exp_node' (Exp), 'tanh_node' (Tanh) on wrong:0: " in fail
    assert [facts["passed"], *(run["passed"] for run in facts["runs"])] == [False, True, False]
    first = facts["runs"][1]["first_wrong"]
    assert (first["value"], first["nodes"], first["device"]) == ("tanh", ["exp_node", "tanh_node"], "wrong:0")
    assert first["relative"] == pytest.approx(0.48, rel=1e-4)
    assert [v["value"] for v in facts["runs"][1]["values"]] == ["abs", "tanh", "neg", "sin"]


def test_compare_bisects_where_the_fault_goes_away_with_more_outputs(cli: Cli, tmp_path: Path) -> None:
    with mocks(wrong=WrongWhole):
        said = cli("compare", fused(tmp_path, "Sin", "Neg"), "-d", "cpu,wrong", status=1).out
    assert "all values that the device stores are right" in said
    assert "the first wrong value is 'sin', of 'sin_node' (Sin) on wrong:0" in said.splitlines()[-1]


class OffByOne(CpuBackend):
    """Makes every number of an ArgMax, and of a cast to integers, one larger."""

    def onCreate(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], op: Op) -> Execution | None:
        return Larger(op) if op.type in ("ArgMax", "Cast") else super().onCreate(inputs, outputs, op)


class Larger(ReferenceExecution):
    def onExecute(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        super().onExecute(inputs, outputs)
        outputs[0].memory[...] += 1


@pytest.mark.parametrize(("op", "attributes", "kind"), [
    ("ArgMax", {"axis": 1, "keepdims": 0}, TensorProto.INT64),
    ("Cast", {"to": TensorProto.INT32}, TensorProto.INT32),
    ("Cast", {"to": TensorProto.INT64}, TensorProto.INT64),
])
def test_the_integer_beside_the_right_one_is_wrong(
    cli: Cli, tmp_path: Path, op: str, attributes: dict[str, Any], kind: int
) -> None:
    """By 2e-4 of the range: the class or token beside the right one."""
    most = 2**62 if kind == TensorProto.INT64 else 5000
    np.save(tmp_path / "x.npy", np.linspace(0, most, 5001, dtype=np.float32)[None])
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 5001])
    graph = helper.make_graph([node], "chosen", [x], [helper.make_tensor_value_info("y", kind, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    with mocks(right=mock(), wrong=OffByOne):
        given = "compare", tmp_path / "m.onnx", "--input", f"x={tmp_path / 'x.npy'}", "-d"
        assert "PASS: right" in cli(*given, "cpu,right").out
        said = cli(*given, "cpu,wrong", "--threshold", 1, status=1).out
    assert "in 'y' by 1, and its integers must be the same" in said.splitlines()[-1]


def test_a_run_is_not_compared_with_itself(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = double(tmp_path / "m.onnx")
    said = cli("compare", model, "-d", "cpu,cpu:0", status=2).err
    assert "both runs would be on cpu at precision high" in said and "named twice" in said and "next: " in said
    assert "PASS: cpu at precision low" in cli("compare", model, "-d", "cpu,cpu", "--precision", "low").out
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
    for side in ("cpu", "opencl"):
        begin = f"{side} at precision high: numbers that are not finite begin in 'y', of 'root' (Sqrt), 'last' (Abs)"
        assert f"{begin} on opencl:0: 2 of 4" in said
    assert ", 2 not finite" in said and "PASS: " in said
    assert len(re.findall(r"\S+, 2 not finite", cli("bench", *given, "--iterations", 1).out)) == 2
    np.save(tmp_path / "nan.npy", np.full((1, 4), np.nan, np.float32))
    said = cli("compare", *given[:-1], f"x={tmp_path / 'nan.npy'}").out
    assert ", 4 not finite" in said and "PASS: " in said
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
    said = cli("compare", model, "-d", "cpu,opencl", "--threshold", 1, status=1).out
    assert "FAIL: opencl at precision high differs from cpu at precision high in 'y' (not finite: 1 differ)" in said
    assert "cpu at precision high: all stored numbers are finite" in said and "begin in 'y'" in said
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
