"""What commands show of other people's backends, and hints on the command line."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
from onnx import helper

from tests.helpers.cli import Cli, double, try_only_others, write_model
from tests.helpers.fakes import Creator, registered
from tests.helpers.plugins import c_source, needs_compiler, py_source, write
from weft.backends.gpu.tuning import probe
from weft.cli import doctor
from weft.cli.console import PlainFormatter, plain
from weft.core.contract.backend import Backend, DeviceInfo, Execution
from weft.core.registry.backend_registry import registry
from weft.extend import HostBackend

EVIL = "\x1b[31mred\nnext\x00\u202e line"
"""It would colour the text, begin a line and turn the rest of it round."""
SEEN = "\ufffd[31mred next\ufffd\ufffd line"


def test_a_text_of_others_is_nothing_but_text() -> None:
    assert plain(EVIL) == SEEN
    assert plain("a\r\nb\tc", lines=True) == "a \nb c"
    assert plain("\x9b1m\udcff\u2028é東") == "\ufffd1m\ufffd\ufffdé東"


def test_what_is_logged_is_nothing_but_text() -> None:
    record = logging.LogRecord("weft", logging.WARNING, "", 0, "%s", (EVIL,), None)
    assert PlainFormatter("weft: %(message)s").format(record) == "weft: \ufffd[31mred\nnext\ufffd\ufffd line"


def test_names_and_reasons_of_backends_are_shown_as_text(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    try_only_others(monkeypatch)
    here, absent = Creator(id="acme"), Creator(id="gone", absent=f"no card: {EVIL}")
    monkeypatch.setattr(here, "devices", lambda: [DeviceInfo("acme", 0, EVIL, EVIL)])
    with registered(here, "acme"), registered(absent, "gone"):
        done = cli("devices")
        assert f"gone is absent: no card: {SEEN}" in done.out
        assert done.out.count(SEEN) == 3 and "\x1b" not in done.out
        assert json.loads(cli("devices", "--json").out)["absent"]["gone"] == f"no card: {EVIL}"
        # The program that tries each device by itself does not know this one.
        done = cli("doctor", status=1)
        assert SEEN in done.out and "\x1b" not in done.out and "\u202e" not in done.out


class Refusing(HostBackend):
    """Takes Neg, and refuses the rest at length."""

    def why_not(self, inputs: object, outputs: object, op: object) -> str | None:
        return EVIL + "x" * 9999


@Refusing.creator("Neg")
class Neg(Execution):
    """Never runs."""

    def onExecute(self, inputs: object, outputs: object) -> None:
        """Do nothing."""


def test_a_long_reason_is_cut_in_the_table_of_refusals(cli: Cli, tmp_path: Path) -> None:
    model = chain(tmp_path)
    with registered(Creator(Refusing, id="acme"), "acme"):
        done = cli("inspect", model, "--device", "acme+cpu")
    assert "\x1b" not in done.out
    for each in ("Abs", "Softmax"):
        assert f"{each} " in done.out
    shown = "".join(done.out.split())
    assert shown.count("morecharacters)") == 2 and shown.count("x" * 400) == 2 and "x" * 600 not in shown


def test_a_creator_that_does_not_answer_is_listed_as_absent(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    try_only_others(monkeypatch)
    creator = Creator(id="acme")
    monkeypatch.setattr(creator, "devices", lambda: sys.exit("no card"))
    with registered(creator, "acme"):
        assert "acme is absent: asking whether it is there failed: Creator.devices raised" in cli("devices").out
        assert "Creator.devices raised" in cli("doctor").out


@pytest.mark.parametrize("command", ["devices", "doctor"])
def test_what_is_skipped_is_told_once(
    command: str, cli: Cli, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_only_others(monkeypatch)
    file = tmp_path / "acme_bad_backend.py"
    file.write_text("")
    try:
        done = cli(command, "--backend-path", tmp_path, status=1 if command == "doctor" else 0)
        assert "it has no function GetBackendId" in done.out and not caplog.records
        cli("inspect", chain(tmp_path), "--device", "cpu", "--backend-path", tmp_path)
        assert "is skipped: it has no function GetBackendId" in caplog.text, "who lists nothing is warned"
    finally:
        registry.rescan()


# -- hints ---------------------------------------------------------------------------------------------------


class Twin(Creator):
    """A second CPU."""

    def __init__(self) -> None:
        from weft.backends.cpu.backend import CpuBackend

        made: type[Backend] = type("Twin", (CpuBackend,), {})
        super().__init__(made, id="twin")


def chain(folder: Path) -> Path:
    """Write y = softmax(abs(x)), of the nodes body/abs and head/softmax."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="body/abs"),
        helper.make_node("Softmax", ["a"], ["y"], name="head/softmax"),
    ]
    return write_model(folder / "chain.onnx", nodes, {"x": (2, 4)}, ["y"])


def test_a_division_by_hints_is_previewed_and_run(cli: Cli, tmp_path: Path) -> None:
    model, saved = chain(tmp_path), tmp_path / "chain.weft"
    with registered(Twin(), "twin"):
        assert "1 subgraph(s)" in cli("inspect", model, "--device", "cpu+twin").out
        hints = ("--hint", "head/*=twin", "--hint", "body/abs=cpu")
        done = cli("inspect", model, "--device", "cpu+twin", *hints)
        assert "2 subgraph(s)" in done.out and "cpu:0 (1) -> twin:0 (1)" in done.out
        assert "nodes: cpu 1, twin 1" in cli("run", model, "--device", "cpu+twin", *hints).out
        done = cli("optimize", model, "-o", saved, "--device", "cpu+twin", *hints)
        assert "2 subgraph(s): cpu:0 (1) -> twin:0 (1)" in done.out
        assert "leave these options out" in cli("run", saved, *hints, status=2).err


@pytest.mark.parametrize("command", ["inspect", "run", "optimize"])
def test_hints_that_cannot_be_followed_are_told_together(command: str, cli: Cli, tmp_path: Path) -> None:
    done = cli(command, chain(tmp_path), "--device", "cpu", "--hint", "haed=cpu", "--hint", "head/*=npu", status=2)
    assert "no node is called 'haed'" in done.err and "'npu', for 'head/*', is not in the order" in done.err
    done = cli(command, chain(tmp_path), "--device", "cpu", "--hint", "cpu", status=2)
    assert "--hint 'cpu' is not NAME=VALUE" in done.err and "--hint head/*=cpu" in done.err


def test_a_backend_is_held_against_the_contract_by_its_file(cli: Cli, tmp_path: Path) -> None:
    good = write(tmp_path / "acme_good_backend.py", py_source("good"))
    bad = write(tmp_path / "acme_bad_backend.py", py_source("bad", version=(9, 0)))
    try:
        assert "good:0, precision high: keeps the contract" in cli("conformance", good, "--only", "creator").out
        assert "version 9.0" in cli("conformance", bad, status=2).err
        missing = cli("conformance", tmp_path / "acme_none_backend.so", status=2)
        assert "there is no such file" in missing.err
        other = write(tmp_path / "good.py", py_source("other"))
        assert "it is not named <vendor>_<name>_backend" in cli("conformance", other, status=2).err
    finally:
        registry.rescan()


@needs_compiler
def test_what_is_wrong_with_a_table_is_said_by_its_file(cli: Cli, tmp_path: Path) -> None:
    source = c_source().replace("sizeof table", "sizeof(size_t)")
    try:
        done = cli("conformance", write(tmp_path / "acme_short_backend.so", source), status=2)
        assert "a table whose struct_size is 8, where" in done.err
    finally:
        registry.rescan()


class Unfinished(HostBackend):
    """Has no ops."""


def test_a_class_of_which_no_backend_can_be_made_is_absent_and_says_why(cli: Cli, tmp_path: Path) -> None:
    why = "acme is absent: no backend can be made of Unfinished: it does not implement onCreate"
    with registered(Unfinished):
        assert why in cli("devices").out
        assert "acme" not in [device["use_as"] for device in json.loads(cli("devices", "--json").out)["devices"]]
        assert "it does not implement onCreate" in cli("run", double(tmp_path / "x.onnx"), "-d", "acme", status=2).err


def test_a_part_of_the_kit_says_what_was_left_out(cli: Cli) -> None:
    left = "only rows of the op table were looked at; ops are also run by the checks networks, convolutions, outputs"
    assert left in " ".join(cli("conformance", "cpu", "--only", "Relu").err.split())
    assert "only rows" not in cli("conformance", "cpu", "--only", "creator").err


def test_devices_tell_what_their_units_compute(cli: Cli) -> None:
    found = json.loads(cli("devices", "--json").out)["devices"]
    told = [each["details"] for each in found if each["use_as"].split(":")[0] in ("opencl", "vulkan")]
    assert all({"subgroup sizes", "dot products of 8 bits", "matrices"} <= each.keys() for each in told)
    assert all(isinstance(each["matrices"], list) for each in told)


def test_probe_prints_and_keeps_what_a_device_does(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    found = registry.devices()
    gpu = next((d for d in found if d.id in ("opencl", "vulkan")), None)
    if gpu is None:
        pytest.skip("no GPU")
    for name, value in {"ENOUGH": 2e-5, "LARGE_OF_CPU": 1 << 20, "LAUNCHES": 3, "TIMES": 2}.items():
        monkeypatch.setattr(probe, name, value)
    (measured,) = json.loads(cli("probe", "-d", gpu.id, "--json").out)["measured"]
    listed = json.loads(cli("devices", "--json").out)["devices"]
    assert [d["measured"] for d in listed if d["use_as"] == gpu.id] == [measured["rates"]]
    assert "products in fp32" in cli("probe", "-d", gpu.id).out
    checks = {each["name"]: each for each in json.loads(cli("doctor", "--json").out)["checks"]}
    told = checks[f"{gpu.id}:{gpu.index} rates"]
    assert (told["status"], told["found"]) == ("absent", "not used: WEFT_MEASURE says so")
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    (told,) = doctor._rates(gpu)
    assert told.status == "PASS" and "products in fp32: " in told.found and "G/s" in told.found
    assert "cpu is no GPU" in cli("probe", "-d", "cpu", status=2).err
