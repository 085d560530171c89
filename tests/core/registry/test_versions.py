"""Contract row A20: equal majors, and a minor that is not above ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.plugins import c_source, needs_compiler, new_registry, package, py_source, write
from weft.core.contract.backend import API_VERSION, is_compatible
from weft.plugins import include_dir

KINDS = [pytest.param("so", marks=needs_compiler), "py"]
TABLE = [
    ((2, 4), (2, 4), True),
    ((2, 1), (2, 4), True),
    ((2, 5), (2, 4), False),
    ((2, 0), (1, 0), False),
    ((2, 0), (3, 0), False),
    ((1, 9), (2, 4), False),
    ((0, 0), (0, 0), True),
]


@pytest.mark.parametrize(("theirs", "ours", "fits"), TABLE)
def test_A20_the_rule(theirs: tuple[int, int], ours: tuple[int, int], fits: bool) -> None:
    assert is_compatible(theirs, ours) is fits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("theirs", "ours", "fits"), TABLE)
def test_A20_the_rule_for_files(
    kind: str,
    theirs: tuple[int, int],
    ours: tuple[int, int],
    fits: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("weft.core.registry.entries.API_VERSION", ours)
    made = c_source if kind == "so" else py_source
    file = write(tmp_path / f"acme_npu_backend.{kind}", made(version=theirs))
    registry = new_registry()
    registry.rescan([tmp_path])
    if fits:
        assert registry.find("acme").api_version == theirs and registry.failures == {}
        return
    assert registry.ids() == ["cpu"]
    (record,) = caplog.records
    assert record.levelname == "WARNING" and str(file) in record.message
    assert f"version {theirs[0]}.{theirs[1]} of the backend interface" in record.message
    assert f"this is {ours[0]}.{ours[1]}" in record.message


def test_A20_the_factory_of_another_version_is_not_called(tmp_path: Path) -> None:
    source = py_source(version=(9, 0)) + "\ndef BackendFactory(): raise AssertionError\n"
    write(tmp_path / "acme_npu_backend.py", source)
    registry = new_registry()
    registry.rescan([tmp_path])
    (why,) = registry.failures.values()
    assert "9.0" in why and "AssertionError" not in why


def test_A20_a_version_may_be_a_list(tmp_path: Path) -> None:
    write(tmp_path / "acme_npu_backend.py", py_source(version=[1, 0]))
    registry = new_registry()
    registry.rescan([tmp_path])
    assert registry.find("acme").api_version == (1, 0) and registry.failures == {}


def test_A20_the_rule_for_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = "from weft.backends.cpu.backend import CpuCreator\nclass Acme(CpuCreator):\n"
    source += "    id, forward_type, api_version = 'acme', None, {}\n"
    package(tmp_path, "a20_good", source.format("(1, 0)"), "good = a20_good:Acme")
    newer = (API_VERSION[0], API_VERSION[1] + 1)
    package(tmp_path, "a20_new", source.format(newer), "new = a20_new:Acme")
    registry = new_registry()
    assert registry.ids() == ["cpu", "acme"]
    (why,) = registry.failures.values()
    assert f"version {newer[0]}.{newer[1]} of the backend interface" in why
    assert f"this is {API_VERSION[0]}.{API_VERSION[1]}" in why


def test_A20_the_header_has_our_version() -> None:
    text = (include_dir() / "weft_backend.h").read_text()
    assert f"#define WEFT_API_MAJOR {API_VERSION[0]}u" in text
    assert f"#define WEFT_API_MINOR {API_VERSION[1]}u" in text
