"""`weft tune`, and what `weft cache` knows of its tables."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.helpers.cli import Cli, double, write_model
from tests.helpers.timed_gpu import TimedDevice, timed_gpu
from tests.helpers.tuned_nets import TILES, three_tiles
from weft.backends.gpu.tuning.tuner import Tuned
from weft.backends.gpu.tuning_tables.tuning_table import DeviceKey, read_tables
from weft.cli.tune import _total
from weft.kernels.cost_model import excess


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((16, 16, 3, 3))
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])
    return write_model(tmp_path / "conv.onnx", [node], {"x": ("n", 16, 8, 8)}, ["y"], w=weights)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    three_tiles(monkeypatch)
    # No clock rises on a device without kernels: to wait until runs become no faster would take a second a command.
    monkeypatch.setattr("weft.backends.gpu.tuning.tuner.STEADY", 0.0)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_network_is_tuned_and_the_table_is_printed(cli: Cli, model: Path, cache: Path, tmp_path: Path) -> None:
    table = tmp_path / "null.json"
    with timed_gpu() as device:
        done = cli("tune", model, "-d", "null", "--shape", "x=2,16,8,8", "-o", table)
        far = excess("conv_gemm")
        assert far is not None
        gain = 100.0 * (1 - 1 / far)
        hope = f"open problems: 1, which take 100.0 us of a run; hope for about {gain:.1f} us ({gain:.0f}%)"
        assert done.out.startswith(f"null, high\n{hope}")
        row = next(text for text in done.out.splitlines() if text.startswith("conv_gemm("))
        assert "100.0" in row and "60.0" in row and "1.67" in row and "N=2" in row
        assert "in total: 100.0 us by default, 60.0 us tuned, 1.67 times faster" in done.out
        assert "candidates tried: 2\n" in done.out and f"table: {table}" in done.out
        assert str(cache) in done.out
        anew = cli("tune", model, "-d", "null", "--shape", "x=2,16,8,8").out
        assert "candidates tried: 0\n" in anew and "tuned problems: 1; none is open" in anew
        again = cli("tune", model, "-d", "null", "--shape", "x=2,16,8,8", "--again").out
        assert "candidates tried: 2\n" in again and "open problems: 1, which take 60.0 us" in again
        (entry,) = read_tables(table)[DeviceKey.of(device.info)].values()
    assert entry.choice == repr(TILES[1])


def test_each_precision_has_its_own_choices(cli: Cli, model: Path, cache: Path) -> None:
    with timed_gpu():
        done = cli("tune", model, "-d", "null,cpu", "--precision", "high,normal", "--budget", "30")
    assert [text for text in done.out.splitlines() if text.startswith(("null, ", "cpu, "))] == [
        "null, high", "null, normal", "cpu, high: there is nothing to tune on cpu: only GPUs choose",
        "cpu, normal: there is nothing to tune on cpu: only GPUs choose",
    ]
    assert "nothing was tuned" not in done.err


def test_where_nothing_is_tuned_it_says_which_devices_have_something(cli: Cli, model: Path, cache: Path) -> None:
    with timed_gpu():
        done = cli("tune", model, "-d", "cpu")
    assert "cpu, high: there is nothing to tune on cpu: only GPUs choose" in done.out
    said = next(text for text in done.err.splitlines() if text.startswith("nothing was tuned; --device "))
    assert "null:0" in said and "cpu" not in said


def test_failures_and_a_spent_budget_are_said(cli: Cli, model: Path, cache: Path) -> None:
    def tune(device: TimedDevice, *options: str) -> str:
        done = cli("tune", model, "-d", "null", *options)
        return done.out + done.err

    with timed_gpu() as device:
        device.does.broken = {4}
        said = tune(device, "--budget", "0")
        assert "candidates tried: 0; 2 not, for lack of time: --budget" in said
        assert re.search(r"^.*\b1 +- +- +- +default\s*$", said, re.M)
        assert "in total: none of the problems has times" in said and "table: " not in said
        out = re.escape(f"{TILES[2]!r} is out: 4 slices are refused")
        assert re.search(rf"^conv_gemm\(.*: {out}$", tune(device), re.M)


def test_the_sum_says_of_how_many_problems_it_is() -> None:
    def row(us: float | None) -> Tuned:
        return Tuned("null", "p", 2, "a", "b", us and 2 * us, us, 0, 0, {})

    assert _total([row(3.0)]) == "in total: 12.0 us by default, 6.0 us tuned, 2.00 times faster"
    assert _total([row(3.0), row(None), row(1.0)]).startswith("in total, of 2 of 3 problems: 16.0 us by default, ")


def test_an_interrupted_search_says_what_is_kept(
    cli: Cli, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with timed_gpu():
        with monkeypatch.context() as patch:
            patch.setattr("weft.backends.gpu.tuning.tuner.STEADY", 1.0)
            patch.setattr("weft.backends.gpu.tuning.candidate_timing.NodeBench.warm", interrupted)
            assert "interrupted before anything was tried" in cli("tune", model, "-d", "null", status=130).err
        monkeypatch.setattr("weft.backends.gpu.tuning.candidate_timing.difference", interrupted)
        said = cli("tune", model, "-d", "null", status=130).err
        (table,) = (cache / "tuning").glob("*.json")
        assert f"interrupted; what was tried so far is kept in {table}: run the same command to go on" in said
        said = cli("tune", model, "-d", "null", "--again", status=130).err
        assert "run the same command without --again to go on" in said
    monkeypatch.setenv("WEFT_CACHE", "0")
    with timed_gpu():
        said = cli("tune", model, "-d", "null", "-o", cache / "mine.json", status=130).err
    assert "interrupted; nothing is kept: WEFT_CACHE=0 is set" in said


def test_where_nothing_can_be_kept_nothing_is_tried(
    cli: Cli, model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.touch()
    with timed_gpu() as device:
        said = cli("tune", model, "-d", "null", status=1).err
        assert f"why: the folder {cache / 'tuning'} cannot be written" in said
        assert "--output FILE" in said and "WEFT_CACHE_DIR" in said
        monkeypatch.setenv("WEFT_CACHE", "0")
        said = cli("tune", model, "-d", "null", status=1).err
        assert "why: WEFT_CACHE=0 is set" in said and "--output FILE" in said
        assert device.ran == []
        done = cli("tune", model, "-d", "null", "-o", tmp_path / "mine.json")
    assert "nothing is kept for later loads: WEFT_CACHE=0 is set" in done.err and "mine.json" in done.out


def test_a_cache_that_cannot_be_written_any_more_is_a_failure(
    cli: Cli, model: Path, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("weft.backends.gpu.tuning_tables.tuning_table.write_tables", full)
    with timed_gpu(), caplog.at_level(logging.WARNING):
        done = cli("tune", model, "-d", "null", status=1)
    (warning,) = caplog.messages
    assert "make room on the disk, or name another in WEFT_CACHE_DIR" in warning
    assert "table: " not in done.out and "conv_gemm(" in done.out
    assert f"nothing is kept for later loads: {cache / 'tuning'} cannot be written" in done.err
    assert "error: what was found is lost" in done.err and "next: " in done.err
    with timed_gpu():
        said = cli("tune", model, "-d", "null", "-o", tmp_path / "mine.json", status=1).err
    assert f"error: {tmp_path / 'mine.json'} cannot be written\n  why: No space left on device" in said


def test_an_output_that_is_no_table_is_refused_before_the_work(
    cli: Cli, model: Path, cache: Path, tmp_path: Path
) -> None:
    wrong, folder = tmp_path / "notes.json", tmp_path / "folder"
    wrong.write_text("[1, 2]")
    folder.mkdir()
    with timed_gpu() as device:
        for output, said in (
            (wrong, f"{wrong} is no table of `weft tune`"),
            (folder, f"{folder} cannot be read"),
            (folder / "none" / "t.json", f"there is no folder {folder / 'none'}"),
            (wrong / "t.json", f"there is no folder {wrong}"),
            ("/proc/t.json", "/proc/t.json cannot be written"),
        ):
            done = cli("tune", model, "-d", "null", "-o", output, status=2)
            assert said in done.err and "name another" in done.err and "remove" not in done.err
        assert device.ran == []
    assert json.loads(wrong.read_text()) == [1, 2] and list(folder.iterdir()) == []


def test_without_a_cache_it_says_so(cli: Cli, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    monkeypatch.setenv("WEFT_CACHE", "0")
    monkeypatch.setenv("WEFT_TUNING", "0")
    with timed_gpu():
        said = cli("tune", model, "-d", "null", "-o", cache / "mine.json").err
    assert "nothing is kept for later loads" in said and "WEFT_TUNING=0" in said


def test_a_network_without_choices_is_said_to_have_none(cli: Cli, cache: Path, tmp_path: Path) -> None:
    with timed_gpu():
        out = cli("tune", double(tmp_path / "double.onnx"), "-d", "null").out
    assert "null, high: there is nothing to choose from" in out


def test_the_cache_shows_and_clears_tables(
    cli: Cli, model: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with timed_gpu(), caplog.at_level(logging.WARNING):
        cli("tune", model, "-d", "null")
    (table,) = (cache / "tuning").glob("*.json")
    (cache / "tuning" / "mine.json").write_text("kept")
    assert re.search(r"^tuning\s+1\s", cli("cache", "info").out, re.M)
    cli("cache", "clear", "--keep-tuning")
    assert table.exists()
    cli("cache", "clear")
    assert not table.exists() and (cache / "tuning" / "mine.json").exists()
    assert caplog.records == []
