"""The command `weft conformance` and the pytest plugin, on a correct backend and on a broken one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import weft
from tests.helpers.cli import Cli
from tests.helpers.fakes import Maker, registered
from tests.helpers.faults.every_fault import FAULTS
from tests.helpers.warm_python import SEARCHED, WarmPython
from weft.backends.cpu.backend import CpuBackend
from weft_conformance import CHECKS

Pytest = Callable[..., subprocess.CompletedProcess[str]]

BACKEND = """
from weft.backends.cpu.backend import CpuBackend
from weft.core.contract.backend import BackendCreator, StorageType

class Broken(CpuBackend):
    def onClearBuffer(self):
        for tensor, slot in self._slots.items():
            if slot.storage is StorageType.STATIC:
                tensor.memory[...] = 0
        return super().onClearBuffer()

class Creator(BackendCreator):
    def onCreate(self, info):
        return Broken(info)

def GetBackendId():
    return "broken"

def GetVersion():
    return (1, 0)

def BackendFactory():
    return Creator()
"""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Acme_Broken_backend.py").write_text(BACKEND)
    return tmp_path


# -- the command ---------------------------------------------------------------------------------------------


def test_a_right_backend_ends_with_status_0(cli: Cli) -> None:
    done = cli("conformance", "cpu", "--only", "storage", "--only", "Relu")
    assert "cpu:0, precision high: keeps the contract" in done.out
    assert "storage" in done.out and "table" in done.out and "copies" not in done.out


def test_words_may_be_joined_by_commas(cli: Cli) -> None:
    out = cli("conformance", "cpu", "--only", "storage,creator, Erf").out
    assert all(check in out for check in ("storage", "creator", "table"))
    assert "copies" not in out


def test_a_part_of_a_row_may_have_commas(cli: Cli) -> None:
    assert "table" in cli("conformance", "cpu", "--only", "=3,1,4-axis=1").out


def test_what_is_said_of_many_rows_is_said_once(cli: Cli) -> None:
    with registered(Maker(FAULTS["GivesNoReason"].made)):
        done = cli("conformance", "acme", "--only", "Softmax", status=1)
    assert done.err.count("the reason is ''") == 1
    assert "and so for" in done.err


@pytest.mark.parametrize("name", ["WrongPaddingLanes", "GivesNoReason"])
def test_a_broken_backend_ends_with_status_1_and_says_why(cli: Cli, name: str) -> None:
    only = "Softmax" if FAULTS[name].check == "table" else FAULTS[name].check
    with registered(Maker(FAULTS[name].made)):
        done = cli("conformance", "acme", "--only", only, status=1)
    assert FAULTS[name].piece in done.err
    assert "does not keep the contract" in done.out


def test_the_report_can_be_had_as_json(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    with registered(Maker(FAULTS["WrongPaddingLanes"].made)):
        cli("conformance", "acme", "--only", "copies", "--only", "storage", "--json", target, status=1)
    report = json.loads(target.read_text())
    assert report["device"] == "acme:0" and report["ok"] is False
    assert report["counts"]["wrong"] == sum(f["verdict"] == "wrong" for f in report["findings"]) > 0
    assert {f["check"] for f in report["findings"] if f["verdict"] == "wrong"} == {"copies"}


def test_the_precision_can_be_chosen(cli: Cli) -> None:
    assert "precision low" in cli("conformance", "cpu", "--only", "resize", "--precision", "low").out


def test_the_checks_are_listed(cli: Cli) -> None:
    out = cli("conformance", "--list").out
    assert all(check.name in out and check.description in out for check in CHECKS.values())


def test_a_backend_in_a_folder_is_examined(cli: Cli, folder: Path) -> None:
    try:
        done = cli("conformance", "broken", "--only", "storage", "--backend-path", folder, status=1)
    finally:
        weft.registry.rescan([])
    assert "STATIC outlives a clear" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nosuch",), "no backend is registered"),
        (("cpu", "--only", "nosuch"), "nothing is called 'nosuch'"),
        ((), "no device was named"),
        (("cpu", "--only", "storage,nosuch"), "nothing is called 'nosuch'"),
    ],
)
def test_what_makes_no_sense_ends_with_status_2(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    assert said in cli("conformance", *arguments, status=2).err


# -- the plugin ----------------------------------------------------------------------------------------------


@pytest.fixture
def pytest_with_plugin(warm_python: WarmPython, tmp_path: Path) -> Pytest:
    """Give what runs pytest with some arguments."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["-m", "pytest", "-p", "no:cacheprovider", "-v", "-rs", *arguments]
        if "weft" not in _installed():
            command += ["-p", "weft_pytest"]
        return warm_python.run(*command, cwd=tmp_path, env=_environment())

    return run


def _installed() -> set[str]:
    return {e.name for e in entry_points(group="pytest11")}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SEARCHED}


def test_each_check_and_each_row_is_a_test(pytest_with_plugin: Pytest) -> None:
    done = pytest_with_plugin(
        "--pyargs", "weft_conformance", "--weft-backend", "cpu",
        "--weft-only", "storage", "--weft-only", "Relu",
    )
    assert done.returncode == 0, done.stdout
    assert "test_conformance[storage] PASSED" in done.stdout
    assert "test_conformance[Relu-f32[1]] PASSED" in done.stdout
    assert "copies" not in done.stdout


def test_a_broken_backend_fails_in_the_plugin(pytest_with_plugin: Pytest, folder: Path) -> None:
    done = pytest_with_plugin(
        "--pyargs", "weft_conformance", "--weft-backend", "broken", "--weft-backend-path", str(folder),
        "--weft-only", "storage", "--weft-only", "copies",
    )
    assert done.returncode == 1, done.stdout
    assert "test_conformance[storage] FAILED" in done.stdout
    assert "test_conformance[copies] PASSED" in done.stdout
    assert "STATIC outlives a clear: wrong" in done.stdout


def test_what_is_refused_with_a_reason_is_skipped_with_it(pytest_with_plugin: Pytest) -> None:
    done = pytest_with_plugin(
        "--pyargs", "weft_conformance", "--weft-backend", "opencl", "--weft-only", "precision=float16"
    )
    assert done.returncode == 0, done.stdout
    assert "divide in float32" in done.stdout, done.stdout


def test_without_a_backend_the_kit_says_what_is_missing(pytest_with_plugin: Pytest) -> None:
    done = pytest_with_plugin("--pyargs", "weft_conformance")
    assert done.returncode != 0
    assert "--weft-backend NAME" in done.stdout + done.stderr


def test_a_device_that_is_not_there_is_one_usage_error(pytest_with_plugin: Pytest) -> None:
    done = pytest_with_plugin("--pyargs", "weft_conformance", "--weft-backend", "nosuch")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    said = done.stdout + done.stderr
    assert said.count("no backend is registered for 'nosuch'") == 1 and "Traceback" not in said


def test_loading_the_plugin_imports_nothing_of_weft() -> None:
    code = "import sys, weft_pytest; print([m for m in sys.modules if m == 'weft' or m.startswith('weft.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment(), check=True)
    assert done.stdout.strip() == "[]"


def test_a_right_backend_that_was_registered_is_named_with_its_device(cli: Cli) -> None:
    with registered(Maker(CpuBackend)):
        assert "acme:0" in cli("conformance", "acme:0", "--only", "creator").out
