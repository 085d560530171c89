"""The zoo's own arithmetic and bookkeeping: what is right, what a row says, what a second call leaves out."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.zoo.__main__ import FAILED, Row, exported, main, measure, parse, read, summary, table
from benchmarks.zoo.compare import CEILING, FLOOR, allowed, difference
from benchmarks.zoo.networks import NETWORKS
from benchmarks.zoo.run_once import run_once


def test_a_difference_is_of_the_worst_output_and_of_what_compares() -> None:
    right = np.array([3.0, 4.0], np.float32)
    assert difference([right, right * 1.1], [right, right]) == pytest.approx(0.1, rel=1e-5)
    assert difference([right], [right[:1]]) == difference([right], [right.astype(np.float64)]) == math.inf
    assert difference([np.array([1, 2])], [np.array([1, 3])]) == difference([], [right]) == math.inf
    holes = np.array([np.inf, np.nan, 1.0], np.float32)
    assert difference([holes], [holes]) == 0.0
    assert difference([np.array([1.0, np.nan, 1.0], np.float32)], [holes]) == math.inf
    assert difference([right * np.float32(np.nan)], [right]) == math.inf


def test_what_is_right_follows_what_two_others_are_apart_within_bounds() -> None:
    assert allowed(None) == allowed(1e-7) == FLOOR
    assert allowed(5e-4) == pytest.approx(5e-3) and allowed(math.inf) == CEILING


def test_a_run_says_what_is_on_the_device_and_how_far_off_it_is(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx")
    x = np.array([-1, 2, 3], np.float32)
    np.savez(tmp_path / "inputs.npz", x=x)
    np.savez(tmp_path / "outputs.npz", x.clip(0) * 2)
    found = run_once(tmp_path, "cpu")
    assert found["whole"] and found["nodes"] == {"cpu": 1} and found["error"] == pytest.approx(0.5)
    row = Row("n", "dynamo", "cpu", allowed=allowed(0.0), **found)
    assert not row.right and "| n | dynamo | cpu | yes | whole | NO | 5.0e-01 |" in table([row])


def test_rows_are_kept_and_a_second_call_leaves_them_out(tmp_path: Path) -> None:
    name = next(iter(NETWORKS))
    options = parse(["--out", str(tmp_path), "--devices", "cpu", "--only", name])
    broken = Row(name, "script", "cpu", failed="crashed")
    good = Row(name, "script", "cpu", whole=True, nodes={"cpu": 2})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(asdict(row)) + "\n" for row in (broken, good)))
    rows = read(tmp_path / "rows.jsonl")
    assert rows == {good.key: good} and list(measure(name, "script", options, rows)) == []
    folder = tmp_path / "dynamo" / name
    folder.mkdir(parents=True)
    (folder / FAILED).write_text("no")
    assert not exported(name, "dynamo", folder, 1) and list(measure(name, "dynamo", options, rows)) == []
    assert "| cpu | script | 1 | 1 | 1 | 1 |" in summary([good], tmp_path)
    assert "did not export 1" in summary([good], tmp_path)


def test_names_are_chosen_by_patterns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--out", str(tmp_path / "none"), "--only", "*/bert, torchvision/vgg*", "--list"])
    assert capsys.readouterr().out.split() == ["torchvision/vgg11_bn", "transformers/bert"]
    main(["--out", str(tmp_path / "none"), "--only", "nothing"])
    assert "--list" in capsys.readouterr().out and not (tmp_path / "none").exists()
    with pytest.raises(SystemExit):
        parse(["--out", str(tmp_path), "--exporters", "caffe"])


def test_nodes_elsewhere_lower_the_share() -> None:
    assert Row("n", "dynamo", "opencl", nodes={"opencl": 3, "cpu": 1}).share == 0.75
