"""The environment variables: words for on and off, and what makes no sense is said."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

import weft
from tests.helpers.plugins import in_new_process
from weft import config
from weft.errors import ConfigError
from weft.models import path

SWITCHES = {
    "WEFT_CACHE": config.cache_enabled,
    "WEFT_TUNING": config.tuning_enabled,
    "WEFT_NO_COMPILER": config.glsl_compiler_disabled,
    "WEFT_VULKAN_VALIDATION": config.vulkan_validation,
    "WEFT_CHECK_PASSES": config.check_passes,
}
LIBC = ctypes.CDLL(None)
LIBC.getenv.restype = ctypes.c_char_p
DEFAULTS = {name: name in ("WEFT_CACHE", "WEFT_TUNING") for name in SWITCHES}


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_take_the_usual_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {True: ("1", "true", "Yes", "ON", " 1 "), False: ("0", "false", "no", "Off")}
    for wanted, given in words.items():
        for word in given:
            monkeypatch.setenv(name, word)
            assert SWITCHES[name]() is wanted, word
    monkeypatch.setenv(name, "")
    assert SWITCHES[name]() is DEFAULTS[name]
    monkeypatch.delenv(name)
    assert SWITCHES[name]() is DEFAULTS[name]


OTHERS = {
    "WEFT_BUILD_PROCESSES": config.build_processes,
    "WEFT_CACHE_MIB": config.cache_limit,
    "WEFT_SELFTEST": config.selftest,
}


@pytest.mark.parametrize("name", [*SWITCHES, *OTHERS])
@pytest.mark.parametrize("value", ["foo", "-3", "100000", "9" * 6000, "2.5"])
def test_nonsense_is_refused_where_it_is_read_and_by_every_load(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"(?s){name}={value[:20]}.*next: "):
        {**SWITCHES, **OTHERS}[name]()
    with pytest.raises(ConfigError, match=name):
        weft.load(path("shapes"), "cpu")
    with pytest.raises(ConfigError, match=name):
        weft.optimize(path("shapes"), "cpu", shapes={"image": (1, 3, 128, 128)})


def test_processes_are_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in (("0", 0), ("64", 64), ("", None)):
        monkeypatch.setenv("WEFT_BUILD_PROCESSES", value)
        assert config.build_processes() == wanted


def test_the_size_of_the_cache_is_in_MiB(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in (("1", 1 << 20), ("65536", 1 << 36), ("", 1 << 30)):
        monkeypatch.setenv("WEFT_CACHE_MIB", value)
        assert config.cache_limit() == wanted
    monkeypatch.setenv("WEFT_CACHE_MIB", "0")
    with pytest.raises(ConfigError, match="WEFT_CACHE=0 to keep nothing"):
        config.cache_limit()


def in_c(name: str) -> bytes | None:
    """Return a variable as C code finds it."""
    found = LIBC.getenv(name.encode())
    return found if found is None or isinstance(found, bytes) else bytes(found)


def test_C_code_finds_another_value_for_a_while_and_the_table_does_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TEST_OLD", "old")
    table, python = ctypes.c_void_p.in_dll(LIBC, "environ"), dict(os.environ)
    before = table.value
    with config.replaced("WEFT_TEST_OLD", "longer than the old one"):
        assert in_c("WEFT_TEST_OLD") == b"longer than the old one" and table.value == before
        monkeypatch.setenv("WEFT_TEST_OTHER", "other")
    assert in_c("WEFT_TEST_OLD") == b"old" and in_c("WEFT_TEST_OTHER") == b"other"
    assert dict(os.environ) == {**python, "WEFT_TEST_OTHER": "other"}


def test_a_selftest_that_is_not_chosen_is_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, wanted in (("", "auto"), ("auto", "auto"), (" Child", "child"), ("process", "process"), ("OFF", "off")):
        monkeypatch.setenv("WEFT_SELFTEST", given)
        assert config.selftest() == wanted
    monkeypatch.delenv("WEFT_SELFTEST")
    assert config.selftest() == "auto"


def test_a_cache_that_is_false_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_CACHE", "false")
    in_new_process("import weft; from weft.models import path; weft.load(path('shapes'), 'opencl').close()")
    assert not (tmp_path / "cache").exists()
