"""The fuzzer itself: it survives what it looks for, says which case it was, and makes the same cases again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import weft
from scripts.fuzz import supervisor
from scripts.fuzz.__main__ import main
from scripts.fuzz.target import case_stream, find_targets
from scripts.fuzz.worker import settled
from weft.backends.gpu.device.built_kernels import KERNELS_KEPT

BAD = "tests.helpers.failing_targets"


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the report of a run on cases of seed 5."""
    path = folder / "report.json"
    status = main(["--module", BAD, "--seed", "5", "--nice", "0", "--report", str(path), *arguments])
    return status, json.loads(path.read_text())


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("bad-crash", "crash", "SIGSEGV"),
        ("bad-busy", "hang", "0.3 seconds of processor time"),
        ("bad-stuck", "hang", "by the clock"),
        ("bad-memory", "memory", "100 are allowed"),
        ("bad-raise", "exception", "KeyError: 'lost'"),
        ("bad-number", "wrong", "are five"),
    ],
)
def test_what_a_case_does_to_its_process_is_a_finding_and_the_rest_go_on(
    name: str, kind: str, said: str, tmp_path: Path
) -> None:
    status, report = run(tmp_path, "--target", name, "--cases", "6")
    assert status == 1
    (shift,) = report["shifts"]
    assert shift["words"] == {"right": 5, kind: 1}
    (finding,) = report["findings"]
    (case,) = finding["cases"]
    assert (case["kind"], case["target"], case["seed"], case["case"]) == (kind, name, 5, 3)
    assert said in case["text"]
    kept = Path(case["folder"]) / "case" / "case"
    assert kept.read_text() == str(case_stream(name, 5, 3).random())


@pytest.mark.parametrize(("name", "grows"), [("bad-growth", True), ("bad-start", False)])
def test_growth_counts_after_the_first_cases(
    name: str, grows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "GROWTH", 50)
    status, report = run(tmp_path, "--target", name, "--cases", "330")
    assert status == int(grows)
    assert [f["cases"][0]["kind"] for f in report["findings"]] == ["growth"] * grows
    assert (report["shifts"][0]["growth_megabytes"] > 50) == grows


@pytest.mark.parametrize("device", ["opencl", "vulkan"])
def test_kernels_that_nobody_uses_are_let_go_before_memory_is_looked_at(device: str) -> None:
    net = weft.Network("kernels")
    net.add_output("y", net.add_layer("Relu", net.add_input("x", (3,))))
    weft.load(net, device, fallback="error").close()
    opened = weft.registry.find(device).runtime(0).device  # type: ignore[attr-defined]
    try:
        before = opened.stats.live_kernels
        assert settled() > 0
        assert opened.stats.live_kernels < before
    finally:
        opened.hold_kernels(KERNELS_KEPT)


def test_what_a_child_gave_back_at_its_end_is_not_its_growth() -> None:
    child = supervisor.Child(None, Path())  # type: ignore[arg-type]
    child.held = [100.0 + done for done in range(1, 301)]
    assert child.grown() == 351 - 300 and child.given_back() == 0
    child.settled = 310.0
    assert child.grown() == 10 and child.given_back() == 41


def test_a_kept_case_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "--target", "bad-number", "--cases", "4")
    assert main(["--module", BAD, "--replay", str(tmp_path / "report.findings" / "1")]) == 1
    assert main(["--module", BAD, "--target", "bad-number", "--seed", "5", "--case", "3"]) == 1
    assert main(["--module", BAD, "--target", "bad-number", "--seed", "5", "--case", "2"]) == 0
    assert "seed 5, case 2: right" in capsys.readouterr().out


def test_a_target_that_does_not_work_ends_its_shift(tmp_path: Path) -> None:
    status, report = run(tmp_path, "--target", "bad-unready", "--cases", "6")
    assert status == 1
    (finding,) = report["findings"]
    assert finding["count"] == 3
    assert "no such thing" in finding["cases"][0]["text"]


def test_the_table_names_every_target_and_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "--target", "bad-number,bad-raise", "--cases", "1", "--jobs", "2")
    table = capsys.readouterr().out
    assert "| bad-number | cpu | 1 |" in table
    assert "| bad-raise | cpu | 1 |" in table
    assert "| all |  | 2 |" in table


def test_unknown_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--target", "nothing-such"])
    assert "nothing-such is not known; there are " in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler: apt install gcc libc6-dev")
def test_backends_in_c_that_break_every_rule(tmp_path: Path) -> None:
    arguments = ["--target", "c-backends", "--cases", "150", "--seed", "1", "--nice", "0"]
    assert main([*arguments, "--report", str(tmp_path / "report.json")]) == 0
    (shift,) = json.loads((tmp_path / "report.json").read_text())["shifts"]
    words = shift["words"]
    assert sum(words.values()) == 150
    assert {"right, on the library", "skipped at load, with a reason", "an error: DeviceError"} <= words.keys()


def test_changed_caches(tmp_path: Path) -> None:
    """In a child, since the target opens the device anew with caches elsewhere."""
    arguments = ["--target", "caches", "--device", "vulkan", "--cases", "3", "--seed", "1", "--nice", "0"]
    assert main([*arguments, "--report", str(tmp_path / "report.json")]) == 0
    (shift,) = json.loads((tmp_path / "report.json").read_text())["shifts"]
    assert shift["cases"] == 3 and all(word.startswith("right after ") for word in shift["words"])


def test_every_target_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list"])
    assert set(capsys.readouterr().out.split()) >= find_targets().keys()
