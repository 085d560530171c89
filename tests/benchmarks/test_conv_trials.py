"""Convolutions of a table of trials, timed anew."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import conv_trials
from benchmarks.cards import TRIALS
from benchmarks.conv_trials import Convolutions
from benchmarks.tile_times import runtime_of
from tests.helpers.cards import OPENCL
from tests.helpers.null_gpu import null_gpu
from weft.backends.gpu.runtime import GpuRuntime
from weft.backends.gpu.tuning.node_bench import NodeBench
from weft.backends.gpu.tuning_tables.tuning_table import DeviceKey, Entry, Trial, read_tables, write_tables
from weft.backends.opencl.dialect import OpenCLDialect

H100 = next(iter(read_tables(TRIALS / "nvidia-h100.json").values()))
SMALL = (
    "conv_gemm(C4=2, COUNT=2, DD=1, DH=1, DW=1, ID=1, IH=4, IW=4, KD=1, KH=1, KW=1, N=1, OD=1, OH=4, OW=4, PD=0, "
    "PH=0, PW=0, SD=1, SH=1, SW=1, bias=True) of float32, float32, float32"
)


def test_nodes_have_the_keys_of_their_problems() -> None:
    convolutions = Convolutions(H100)
    assert len(convolutions.problems) == len(H100)
    with null_gpu() as device:
        device.dialect, device.caps = OpenCLDialect(), OPENCL
        runtime = GpuRuntime(device)
        runtime.trust()
        for sizes in convolutions.problems[::8]:
            with NodeBench(runtime, *convolutions.node(sizes)) as bench:
                assert [choice.key for choice in bench.choices()] == [convolutions.keys[sizes[0]]]


def test_what_was_slow_is_not_timed_again_but_what_is_new_is() -> None:
    trials = {"fast": Trial("", us=1.0), "slow": Trial("", us=2.0), "refused": Trial("", failed="no")}
    offered = Convolutions({SMALL: Entry("fast", trials)}).offered((0,), ["fast", "slow", "refused", "new"])
    assert offered == ["fast", "refused", "new"]
    assert Convolutions({SMALL: Entry()}).offered((0,), ["new"]) == ["new"]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a table of the OpenCL device here, which the command finds."""
    monkeypatch.setattr(conv_trials, "TRIALS", tmp_path)
    path = tmp_path / "here.json"
    key = DeviceKey.of(runtime_of("opencl").device.info)
    other = replace(key, name="another card")
    write_tables(path, {key: {SMALL: Entry("gone", {"gone": Trial("", us=1.0)})}, other: {SMALL: Entry()}})
    return path


def test_a_table_gets_the_times_of_one_run(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["conv_trials", table.name])
    conv_trials.main()
    here, other = sorted(read_tables(table).items(), key=lambda item: item[0].name == "another card")
    trials = here[1][SMALL].trials
    assert here[1][SMALL].choice in trials and "gone" not in trials
    assert all(trial.us and trial.digest for trial in trials.values())
    assert other[1] == {SMALL: Entry()}
    assert [path.name for path in table.parent.iterdir() if path.suffix == ".new"] == []


def test_another_device_than_the_tables_is_refused(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["conv_trials", table.name, "--device", "vulkan"])
    with pytest.raises(SystemExit, match=r"has no times of vulkan .*; its cards: .*another card"):
        conv_trials.main()
