"""`--json`: one form for all commands, with the fields and exit statuses that docs/guides/command-line.md lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.helpers.cli import Cli, double, write_model
from tests.helpers.timed_gpu import timed_gpu
from tests.helpers.tuned_nets import three_tiles
from weft.backends.gpu.selftest import verdict_store
from weft.cli.added_commands import SEPARATE
from weft.cli.app import COMMANDS
from weft.kernels.special import kernel_families

PAGE = Path(__file__).parents[2].joinpath("docs", "guides", "command-line.md").read_text(encoding="utf-8")
SECTION = PAGE.split("### JSON and exit statuses")[1].split("\n### ")[0]
COMMAND_LINES = {
    "run": (["run", "M", "-d", "cpu,opencl", "--top", "1"], 0),
    "devices": (["devices"], 0),
    "bench": (["bench", "M", "-d", "cpu", "--iterations", "1", "--warmup", "0"], 0),
    "compare": (["compare", "M", "-d", "cpu,opencl", "--values"], 0),
    "inspect": (["inspect", "M", "-d", "opencl+cpu"], 0),
    "inspect --why": (["inspect", "M", "-d", "cpu", "--why", "twice"], 0),
    "inspect --passes": (["inspect", "--passes"], 0),
    "inspect unknown": (["inspect", "U", "-d", "cpu"], 1),
    "optimize": (["optimize", "M", "-d", "cpu", "--shape", "x=2,4", "-o", "m.weft"], 0),
    "conformance": (["conformance", "cpu", "--only", "creator"], 0),
    "conformance --list": (["conformance", "--list"], 0),
    "cache info": (["cache", "info"], 0),
    "cache clear": (["cache", "clear"], 0),
}
ASKED_FOR = {"events", "untimed", "verdict", "saved_by_arrays_us", "reason"}
"""Fields that only options bring, or a node that a device refuses."""


def documented(command: str) -> set[str]:
    """Return the names in the row of docs/guides/command-line.md on a command's fields."""
    marks = {"inspect unknown": "`inspect` of a model with unknown ops", "inspect --passes": "`inspect --passes` "}
    row = next(text for text in SECTION.splitlines() if text.startswith(f"| {marks.get(command, f'`{command}` |')}"))
    names = set(re.findall(r"`([a-z_0-9]+)`", row.split("|", 2)[2]))
    return names - {"null"}


def keys(value: Any, depth: int = 99) -> set[str]:
    """Return the keys in a document, down to a depth of lists and objects."""
    if isinstance(value, dict):
        return set(value) | {key for each in value.values() if depth for key in keys(each, depth - 1)}
    return {key for each in value if depth for key in keys(each, depth - 1)} if isinstance(value, list) else set()


def agrees(command: str, document: dict[str, Any]) -> None:
    """Check that the page names each field of a command, and no other."""
    assert document.pop("weft")
    assert set(document) <= documented(command)
    assert documented(command) - ASKED_FOR <= keys(document)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.chdir(tmp_path)
    unknown = helper.make_node("Nonsense", ["x"], ["h"])
    known = helper.make_node("Relu", ["h"], ["y"])
    models = {"M": double(tmp_path / "m.onnx", (2, 4))}
    return {**models, "U": write_model(tmp_path / "u.onnx", [unknown, known], {"x": (1, 4)}, ["y"])}


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_each_command_prints_one_document_with_the_fields_of_the_page(
    command: str, cli: Cli, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command.startswith("cache"):
        monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
        (tmp_path / "cache" / "spirv").mkdir(parents=True)
        (tmp_path / "cache" / "spirv" / f"{0:040x}").write_bytes(b"12")
    line, status = COMMAND_LINES[command]
    document = json.loads(cli(*(models.get(each, each) for each in line), "--json", status=status).out)
    agrees(command, document)


def test_doctor(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cli.doctor.trial_run", lambda device: 0.0)
    agrees("doctor", json.loads(cli("doctor", "--json").out))


def test_selftest(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SELFTEST", "process")
    few = [family for family in kernel_families() if family.name == "lrn"]
    monkeypatch.setattr(verdict_store, "kernel_families", lambda: few)
    agrees("selftest", json.loads(cli("selftest", "-d", "opencl:0", "--json").out))


def test_tune_says_what_it_kept_and_what_it_did_not(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_tiles(monkeypatch)
    monkeypatch.setattr("weft.backends.gpu.tuning.tuner.STEADY", 0.0)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])
    model = write_model(
        tmp_path / "conv.onnx", [node], {"x": (2, 16, 8, 8)}, ["y"], w=np.ones((16, 16, 3, 3), np.float32)
    )
    with timed_gpu():
        done = json.loads(cli("tune", model, "-d", "null,cpu", "--json").out)
        agrees("tune", dict(done))
        null, cpu = done["runs"]
        assert null["problems"][0]["gain"] == pytest.approx(100 / 60) and Path(null["tables"][0]).is_file()
        assert cpu["why_not"] == "there is nothing to tune on cpu: only GPUs choose" and done["why_not_kept"] == []
    monkeypatch.setenv("WEFT_CACHE", "0")
    with timed_gpu():
        assert cli("tune", model, "-d", "null", "--json", status=1).out == ""
        lost = json.loads(cli("tune", model, "-d", "null", "-o", tmp_path / "t.json", "--json").out)
    assert lost["why_not_kept"] == ["WEFT_CACHE=0 is set"]


def test_a_file_gets_the_document_and_the_terminal_the_text(
    cli: Cli, models: dict[str, Path], tmp_path: Path
) -> None:
    plain = cli("inspect", models["M"], "-d", "cpu").out
    beside = cli("inspect", models["M"], "-d", "cpu", "--json", "found.json").out
    assert beside == plain
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["divisions"][0]["taken"] == {"cpu:0": 1}
    # The model may follow the flag, as only names in .json are files; with `=` any name is one.
    assert json.loads(cli("inspect", "--json", models["M"], "-d", "cpu").out) == document
    cli("inspect", models["M"], "-d", "cpu", "--json=found.txt")
    assert json.loads((tmp_path / "found.txt").read_text()) == document


@pytest.mark.parametrize(
    ("file", "said"),
    [("/proc/nope/x.json", "there is no folder /proc/nope"), ("/proc/x.json", "cannot be written"),
     ("folder.json", "folder.json is a folder")],
)
def test_a_file_that_cannot_be_written_is_told_before_the_work(
    file: str, said: str, cli: Cli, models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "folder.json").mkdir()
    done = cli("run", models["M"], "-d", "cpu", "--json", file, status=2)
    assert said in done.err and f"where: --json {file}" in done.err and "next: " in done.err and done.out == ""


def test_numbers_that_are_not_finite_are_null(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Log", ["x"], ["y"])]
    model = write_model(tmp_path / "log.onnx", nodes, {"x": (2,)}, ["y"])
    np.save(tmp_path / "x.npy", np.array([0.0, -1.0], np.float32))
    (run,) = json.loads(cli("run", model, "-d", "cpu", "-i", f"x={tmp_path / 'x.npy'}", "--json").out)["runs"]
    assert run["outputs"][0] | {"dtype": 0, "shape": 0} == {
        "name": "y", "dtype": 0, "shape": 0, "min": None, "max": None, "not_finite": 2, "best": None, "file": None
    }


def test_an_error_leaves_standard_output_empty(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", tmp_path / "none.onnx", "--json", status=2).out == ""


def test_the_page_has_a_row_on_the_exit_status_of_each_command() -> None:
    table = SECTION[SECTION.index("| command | status 0 |"):]
    cells = re.findall(r"^\| (.*?) \|", table, re.M)
    assert {name.split()[0] for cell in cells for name in re.findall("`(.+?)`", cell)} == {*COMMANDS, *SEPARATE}
