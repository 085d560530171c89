"""The command lines of the measurements: what they take, what they refuse, and what they record of themselves."""

from __future__ import annotations

import shlex

import pytest

from benchmarks import facts, gpu, own, startup, transfers
from benchmarks.measure import Counts, build


@pytest.mark.parametrize(
    "wrong",
    [
        ["--batch", "0"], ["--iterations", "0"], ["--threads", "x"], ["--threads", "0"], ["--devices", "nope"],
        ["--devices", ","], ["--image", "-1"], ["--piece", "1,2"], ["--chunk", "0"], ["--stream", "maybe"],
    ],
    ids=" ".join,
)
def test_transfers_refuse_wrong_options_before_they_measure(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        transfers.main(wrong)
    assert wrong[0] in capsys.readouterr().err


def test_transfers_take_what_their_description_shows() -> None:
    given = transfers.parse(["--devices", "opencl:1,cpu", "--threads", "1,3", "--stream", "off,on"])
    assert (given.devices, given.threads, given.stream) == (["opencl:1", "cpu"], [1, 3], "off,on")
    with pytest.raises(SystemExit):
        gpu.parse(["--iterations", "0"])


def test_the_recorded_command_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["gpu.py", "--peers", "", "--ncnn", "a folder/with 'quotes'"]
    monkeypatch.setattr("sys.argv", given)
    assert shlex.split(facts.command("benchmarks.gpu")) == ["python", "-m", "benchmarks.gpu", *given[1:]]
    assert gpu._facts()["command"] == facts.command("benchmarks.gpu")
    assert startup._facts()["command"] == facts.command("benchmarks.startup")


def test_a_row_says_where_normal_was_computed_as_high() -> None:
    case, counts = build("squeezenet1_1", 1, 32), Counts(1, 1, 1.0, 0.0)
    notes = [own.row(case, "opencl", precision, counts).note for precision in ("high", "normal")]
    assert notes[0] == "" and notes[1].startswith("precision NORMAL was computed as HIGH")
