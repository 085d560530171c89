"""Tables of tuning on disk: what is written, shared, damaged, and what cannot be kept."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.helpers.waits import ended
from weft.backends.gpu.tuning_tables.choice import Choice
from weft.backends.gpu.tuning_tables.tuning_table import (
    FORGOTTEN,
    DeviceKey,
    Entry,
    Proposal,
    TableSource,
    Trial,
    TuningTable,
    read_tables,
    write_tables,
)
from weft.core.contract.backend import DeviceInfo
from weft.errors import ConfigError

INFO = DeviceInfo("vulkan", 0, "A GPU", "7.0")
KEY = DeviceKey.of(INFO)
ENTRY = Entry("b", {"a": Trial("00", us=2.0), "b": Trial("01", us=1.0), "c": Trial("02", failed="wrong")})


def holding(problem: str) -> str:
    """Return a table with one problem."""
    device = f'{{"api": "vulkan", "name": "A GPU", "driver": "7.0", "problems": {{"p": {problem}}}}}'
    return f'{{"schema": 1, "devices": [{device}]}}'


def timed(us: str) -> str:
    """Return a table with one candidate, which took so many microseconds."""
    return holding(f'{{"choice": "a", "trials": {{"a": {{"digest": "00", "us": {us}}}}}}}')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is no JSON, from line 1 on"), ('{"schema":\n1,', "it is no JSON, from line 2 on"),
        ("[" * 100000, "it is no JSON"), ("[]", "it has no 'schema' that is a number"),
        ("null", "it has no 'schema' that is a number"), ('{"schema": 3, "devices": []}', "its schema is 3, not 2"),
        ('{"schema": 2, "devices": []}', "it has no 'digest' that is a text"),
        ('{"schema": 2, "digest": "00", "devices": []}', "its digest does not fit its content"),
        ('{"schema": 1, "digest": "00", "devices": []}', "it has members that such a table does not have"),
        ('{"schema": 1}', "it has no 'devices' that is a list"),
        ('{"schema": 1, "devices": [{}]}', "a device has no 'api' that is a text"),
        ('{"schema": 1, "devices": [null]}', "a device has no 'api' that is a text"),
        (holding("1"), "a problem has no 'trials' that is an object"),
        (holding('{"choice": "a", "trials": 7}'), "a problem has no 'trials' that is an object"),
        (holding('{"choice": 3, "trials": {}}'), "a problem has no 'choice' that is a text or null"),
        (holding('{"trials": {}}'), "a problem has no 'choice' that is a text or null"),
        (holding('{"choice": null, "trials": {"a": {}}}'), "a candidate has no 'digest' that is a text"),
        (holding('{"choice": null, "trials": {"a": {"digest": "", "ms": 1}}}'), "a candidate has members besides"),
        (holding('{"choice": null, "trials": {"a": {"digest": "", "failed": 1}}}'), "a candidate has members besides"),
        *((timed(us), "a time 'us' that is no number from 0 on") for us in
          ("NaN", "-1", "Infinity", "1" + 400 * "0", "true", '"1"', "[]")),
    ],
)
def test_a_damaged_table_is_a_warning_and_is_replaced(
    text: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = TuningTable(INFO, tmp_path)
    assert table.path is not None
    table.path.write_text(text, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert table.entries() == {}
    (warning,) = caplog.messages
    assert warning.startswith(f"{table.path} is no table of `weft tune` and is ignored: ") and why in warning
    assert warning.endswith("; remove it, or run `weft tune` to write it anew")
    with pytest.raises(ConfigError, match="is no table of `weft tune`"):
        read_tables(table.path)
    table.note("p", ENTRY)
    table.save()
    assert read_tables(table.path) == {KEY: {"p": ENTRY}}


def test_a_table_in_which_one_character_changed_is_not_used(tmp_path: Path) -> None:
    write_tables(path := tmp_path / "t.json", {KEY: {"p": ENTRY}})
    text = path.read_text()
    places = [at for at, c in enumerate(text) if c.isalnum()]
    for at in places:
        path.write_text(f"{text[:at]}{'1' if text[at] == '2' else '2'}{text[at + 1:]}")
        with pytest.raises(ConfigError, match="is no table of `weft tune`"):
            read_tables(path)


def test_a_time_of_0_or_more_is_one(tmp_path: Path) -> None:
    for us in (0.0, 7.0, 1e300):
        (tmp_path / "t.json").write_text(timed(repr(us)), encoding="utf-8")
        assert read_tables(tmp_path / "t.json")[KEY]["p"].trials == {"a": Trial("00", us=us)}


def test_what_is_forgotten_is_taken_from_the_file(tmp_path: Path) -> None:
    table, other = TuningTable(INFO, tmp_path), TuningTable(INFO, tmp_path)
    table.note("p", ENTRY)
    table.save()
    for text in ("a", "z"):
        table.note("p", Entry(None, {text: FORGOTTEN}))
    table.save()
    assert other.entries()["p"] == Entry("b", {k: t for k, t in ENTRY.trials.items() if k != "a"})
    table.note("p", ENTRY)
    table.save()
    assert TuningTable(INFO, tmp_path).entries() == {"p": ENTRY}


def test_where_nothing_can_be_kept_one_warning_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (cache := tmp_path / "cache").touch()
    table = TuningTable(INFO, cache / "tuning")
    with caplog.at_level(logging.WARNING):
        for problem in ("p", "q"):
            table.note(problem, ENTRY)
            table.save()
    (warning,) = caplog.messages
    assert f"nothing can be kept in {cache}: " in warning and "name another in WEFT_CACHE_DIR" in warning
    assert table.file is None and "cannot be written" in table.why_not_kept
    cache.unlink()
    table.note("r", ENTRY)
    table.save()
    assert table.file == table.path and TuningTable(INFO, cache / "tuning").entries().keys() == {"p", "q", "r"}


def test_a_write_that_is_cut_off_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tables(tmp_path / "t.json", {KEY: {"p": ENTRY}})

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.replace", interrupted)
        write_tables(tmp_path / "t.json", {KEY: {"q": ENTRY}})
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    assert read_tables(tmp_path / "t.json") == {KEY: {"p": ENTRY}}


def test_a_table_of_the_users_own_changes_nothing_else_in_its_folder(tmp_path: Path) -> None:
    """`weft tune --output` writes it, into /tmp perhaps, where every program keeps files that are half written."""
    others = {"tmpab_12xyz", "tmpab_12xyz.part", "weft-ab_12xyz.part"}
    for name in others:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / "empty.json").mkdir()
    write_tables(tmp_path / "mine.json", {KEY: {"p": ENTRY}})
    with pytest.raises(OSError):
        write_tables(tmp_path / "empty.json", {KEY: {"p": ENTRY}})
    assert others | {"mine.json", "empty.json"} == {path.name for path in tmp_path.iterdir()} - {".lock"}


def test_tables_of_several_devices_share_a_file(tmp_path: Path) -> None:
    other = DeviceKey("opencl", "A GPU", "7.0")
    write_tables(tmp_path / "a-gpu.json", {KEY: {"p": ENTRY, "q": ENTRY}})
    write_tables(tmp_path / "a-gpu.json", {other: {"p": Entry("x")}})
    assert [d["api"] for d in json.loads((tmp_path / "a-gpu.json").read_text())["devices"]] == ["opencl", "vulkan"]
    assert read_tables(tmp_path / "a-gpu.json")[KEY] == {"p": ENTRY, "q": ENTRY}


def test_a_choice_is_the_noted_one_or_the_fastest_of_those_on_offer(tmp_path: Path) -> None:
    table = TuningTable(INFO, tmp_path)
    table.note("q", ENTRY)
    table.note("p", ENTRY)
    table.note("p", Entry("a", {"d": Trial("03", us=5.0)}))
    table.save()
    again = TuningTable(INFO, tmp_path)
    source = TableSource(again)
    assert source.choose("p", ["a", "b"]) == "a" and source.choose("q", ["a", "b"]) == "b"
    assert source.choose("p", ["b"]) == "b", "the fastest of those on offer"
    assert source.choose("p", ["c"]) is None and source.choose("r", ["a"]) is None
    assert again.known("p", "d", "03") == Trial("03", us=5.0) and again.known("p", "d", "04") is None
    assert again.entry("r") == Entry()


def test_what_joins_a_file_was_timed_by_another_clock(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    write_tables(path, {KEY: {"p": ENTRY}})
    slow = Entry("d", {"b": Trial("01", us=5.0), "d": Trial("03", us=4.0)})
    write_tables(path, {KEY: {"p": slow}})
    trials = {"a": Trial("00", us=10.0), "b": Trial("01", us=5.0), "c": ENTRY.trials["c"], "d": Trial("03", us=4.0)}
    assert read_tables(path) == {KEY: {"p": Entry("d", trials)}}
    other = Entry("e", {"b": Trial("another kernel", us=50.0)})
    write_tables(path, {KEY: {"p": other}})
    assert read_tables(path)[KEY]["p"].trials["a"] == Trial("00", us=10.0), "nothing tells how the clocks differ"


OLD = Entry("b", {"a": Trial("old a", us=9.0), "b": Trial("old b", us=5.0), "c": Trial("02", failed="wrong")})


def test_a_forgotten_trial_is_not_proposed(tmp_path: Path) -> None:
    table = TuningTable(INFO, tmp_path)
    table.note("p", OLD)
    assert table.proposal("p", "abc") == Proposal("b", "old b")
    table.note("p", Entry("a", {"a": FORGOTTEN}))
    assert table.proposal("p", "abc") == Proposal("b", "old b"), "the choice has no time any more"
    assert table.proposal("p", "c") is None, "it has failed"


@pytest.mark.parametrize("digest", ["old b", "of another source"])
def test_a_choice_whose_kernels_have_changed_gives_way_to_the_default(tmp_path: Path, digest: str) -> None:
    table = TuningTable(INFO, tmp_path)
    table.note("p", OLD)
    source = TableSource(table)
    stands = digest == "old b"
    assert source.choose("p", "abc") == "b"
    assert source.stand([cast("Choice", SimpleNamespace(key="p", chosen="b", digest=digest, made=True))]) == stands
    assert source.choose("p", "abc") == ("b" if stands else None)


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    tables = [TuningTable(INFO, tmp_path) for _ in range(8)]

    def write(number: int) -> None:
        for k in range(10):
            tables[number].note(f"p{number}.{k}", ENTRY)
            tables[number].save()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(len(tables))]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert len(TuningTable(INFO, tmp_path).entries()) == 80
