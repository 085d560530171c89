"""Contract row A15: an installed package announces a backend by an entry point, and Weft finds it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.plugins import (
    COUNT,
    PY_CLASS,
    in_new_process,
    new_registry,
    package,
    py_source,
)
from weft.core.registry.backend_registry import BackendRegistry

CREATOR = (
    PY_CLASS
    + """
from weft.core.contract.backend import BackendCreator

class AcmeCreator(BackendCreator):
    id = "acme"
    version = "7"
    def onCreate(self, info):
        return Acme(info)

instance = AcmeCreator()
"""
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that Python finds packages in, for the time of a test."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def found() -> BackendRegistry:
    """Return a registry that has looked at the packages."""
    made = new_registry()
    made.ids()
    return made


@pytest.mark.parametrize(
    ("module", "source", "value"),
    [
        ("a15_class", CREATOR, "a15_class:AcmeCreator"),
        ("a15_instance", CREATOR, "a15_instance:instance"),
        ("a15_backend", PY_CLASS, "a15_backend:Acme"),
        ("a15_module", py_source(), "a15_module"),
    ],
)
def test_A15_what_an_entry_point_may_be(site: Path, module: str, source: str, value: str) -> None:
    package(site, module, source, f"acme = {value}")
    made = found()
    assert made.ids() == ["cpu", "acme"] and made.failures == {}
    assert made.origins()["acme"] == f"entry point acme (package {module.replace('_', '-')} 1.2)"
    assert [d.id for d in made.devices()] == ["cpu", "acme"]


def test_A15_a_creator_without_an_id_has_the_name_of_its_entry_point(site: Path) -> None:
    package(site, "a15_named", CREATOR.replace('id = "acme"', "pass"), "npu = a15_named:AcmeCreator")
    assert found().ids() == ["cpu", "npu"]


def test_A15_one_package_may_have_several_and_they_come_by_name(site: Path) -> None:
    package(site, "a15_many", py_source() + CREATOR, "zeta = a15_many:Acme\nalpha = a15_many\nbeta = a15_many:Acme")
    assert found().ids() == ["cpu", "acme", "beta", "zeta"]


def test_A15_it_is_there_after_the_install_and_gone_after_the_uninstall(tmp_path: Path) -> None:
    info = package(tmp_path, "acme_npu", COUNT + py_source(), "acme = acme_npu")
    code = """
import numpy, weft
from weft import models
print("acme" in [d.id for d in weft.devices()])
if weft.registry.is_registered("acme"):
    with weft.load(models.path("shapes"), device="acme") as session:
        session.run(numpy.zeros((1, 3, 128, 128), "float32"))
        print(*session.report.nodes_by_device)
"""
    assert in_new_process(code, path=tmp_path).split() == ["True", "acme"]
    assert (tmp_path / "count").read_text() == "x"
    shutil.rmtree(info)
    (tmp_path / "acme_npu.py").unlink()
    assert in_new_process(code, path=tmp_path).split() == ["False"]


def test_A15_importing_weft_imports_no_package(tmp_path: Path) -> None:
    package(tmp_path, "acme_npu", COUNT + py_source(), "acme = acme_npu")
    assert in_new_process("import weft, sys; print('acme_npu' in sys.modules)", path=tmp_path).strip() == "False"


MALFORMED = {
    "import_error": ("import no_module_of_this_name", "", "cannot be imported: ModuleNotFoundError"),
    "raises": ("1 / 0", "", "cannot be imported: ZeroDivisionError: division by zero"),
    "exits": ("import sys; sys.exit(3)", "", "cannot be imported: SystemExit: 3"),
    "syntax": ("def", "", "cannot be imported: SyntaxError: invalid syntax"),
    "attribute": (CREATOR, ":Missing", "has no attribute 'Missing'"),
    "number": (CREATOR + "x = 3", ":x", "is 3, which is neither a backend nor a module with GetBackendId"),
    "other_class": (CREATOR + "class X: pass", ":X", "neither a backend nor"),
    "abstract": (CREATOR + "class X(BackendCreator): pass", ":X", "of which no object can be made: TypeError"),
    "needs": (
        CREATOR + "class X(AcmeCreator):\n def __init__(self, port): pass",
        ":X",
        "of which no object can be made: TypeError",
    ),
    "version": (CREATOR + "AcmeCreator.api_version = (2, 0)", ":AcmeCreator", "version 2.0"),
    "version_type": (CREATOR + "AcmeCreator.api_version = '1.0'", ":AcmeCreator", "api_version is '1.0'"),
    "id_type": (CREATOR + "AcmeCreator.id = 7", ":AcmeCreator", "its id is 7"),
    "id_taken": (CREATOR + "AcmeCreator.id = 'CPU'", ":AcmeCreator", "the id 'CPU' is taken (held by 'cpu'"),
    "nonsense": (PY_CLASS, ":???", "names no module and nothing in one; write package.module:name"),
    "incomplete": ("def GetBackendId(): return 'x'", "", "has no function GetVersion and no BackendFactory"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_A15_a_malformed_one_is_reported_and_stops_nobody(
    site: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, where, reason = MALFORMED[case]
    module = f"a15_bad_{case}"
    package(site, module, source, f"bad = {module}{where}")
    package(site, f"a15_good_{case}", py_source("good"), f"good = a15_good_{case}")
    made = found()
    assert made.ids() == ["cpu", "good"]
    ((origin, why),) = made.failures.items()
    assert origin == f"entry point bad (package {module.replace('_', '-')} 1.2)" and reason in why
    (record,) = [r for r in caplog.records if r.name == "weft.plugins"]
    assert record.levelname == "WARNING" and origin in record.message and reason in record.message


def test_A15_an_interrupt_is_nobodys_failure(site: Path) -> None:
    package(site, "a15_interrupt", "raise KeyboardInterrupt", "bad = a15_interrupt")
    with pytest.raises(KeyboardInterrupt):
        new_registry().ids()


def test_A15_packages_that_cannot_be_read_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> object:
        raise OSError("the disk is gone")

    monkeypatch.setattr("weft.plugins.packages.entry_points", broken)
    made = found()
    assert made.ids() == ["cpu"] and "the disk is gone" in made.failures["entry points"]


def test_A15_packages_come_before_folders(site: Path, tmp_path: Path) -> None:
    package(site, "a15_first", py_source(), "acme = a15_first")
    (tmp_path / "acme_npu_backend.py").write_text(py_source())
    made = new_registry()
    made.rescan([tmp_path])
    assert made.origins()["acme"].startswith("entry point acme")
    (why,) = made.failures.values()
    assert "the id 'acme' is taken" in why and "from entry point acme (package a15-first 1.2)" in why


def test_A15_a_derived_registry_shares_the_packages_and_imports_nothing_again(site: Path) -> None:
    package(site, "a15_shared", COUNT + py_source(), "acme = a15_shared")
    made = new_registry()
    one, two = made.derive([]), made.derive([])
    assert one.find("acme") is two.find("acme") is made.find("acme")
    assert (site / "count").read_text() == "x"
    one.close()
    assert two.ids() == ["cpu", "acme"]
