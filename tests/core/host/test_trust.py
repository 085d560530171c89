"""Which folders and files others could have written: caches do not use those, and code from there is warned of."""

from __future__ import annotations

import logging
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import weft
from scripts.fuzz.targets.caches import bind_socket
from tests.helpers.cli import Cli
from weft.core.host import disk_cache, trust
from weft.core.host.disk_cache import DiskCache, seal, unseal
from weft.core.host.trust import NotTrusted, file_problem, folder_problem, read_file
from weft.kernels.template import render


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a cache that is empty."""
    (kept := tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(kept))
    monkeypatch.setattr(disk_cache, "_refused", {})
    return kept


def belongs_to_another(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Let a path be another user's: by giving it away where we may, else by being someone else."""
    if os.geteuid() == 0:
        os.chown(path, 54321, 54321)
    else:
        mine = os.geteuid()
        patch.setattr(os, "geteuid", lambda: mine + 1)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    (path.parents[2] / "elsewhere").write_bytes(b"elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


def writable(path: Path) -> None:
    path.write_bytes(b"anything")
    path.chmod(0o666)


def huge(path: Path) -> None:
    path.touch(mode=0o600)
    os.truncate(path, 2 << 30)


ODD: dict[Callable[[Path], None], str] = {
    pipe: "it is a pipe, not a file",
    link: "it is a symbolic link, not a file",
    bind_socket: "it is a socket, not a file",
    Path.mkdir: "it is a folder, not a file",
    writable: "every user may write to it (mode 0666)",
    huge: "more than the 1,073,741,824 that are read",
}


@pytest.mark.parametrize("plant", ODD, ids=lambda plant: plant.__name__)
def test_what_is_no_file_of_ours_is_not_read_and_is_replaced(
    plant: Callable[[Path], None], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = DiskCache("kind")
    held.put("other", b"other")
    path = held.path("key")
    assert path is not None
    plant(path)
    with caplog.at_level(logging.WARNING):
        assert held.get("key") is None and held.get("key") is None
    (warning,) = caplog.messages
    assert warning.startswith(f"{path} is not used: ") and ODD[plant] in warning
    assert disk_cache.remarks() == [warning]
    held.put("key", b"content")
    assert DiskCache("kind").get("key") == b"content", "the next start is clean"


def test_files_of_other_users_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = DiskCache("kind")
    held.put("key", b"content")
    path = held.path("key")
    assert path is not None and file_problem(path) is None
    belongs_to_another(path, monkeypatch)
    assert "belongs to another user (" in str(file_problem(path))
    with pytest.raises(NotTrusted, match="belongs to another user"):
        read_file(path, 1000)


def test_which_folders_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plain := tmp_path / "plain").mkdir(mode=0o700)
    (open_ := tmp_path / "open").mkdir()
    open_.chmod(0o777)
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o1777)
    (tmp_path / "link").symlink_to(plain)
    (tmp_path / "file").touch(mode=0o600)
    assert folder_problem(plain) is None and folder_problem(tmp_path / "none") is None
    assert folder_problem(open_) == "every user may write to it (mode 0777)"
    assert folder_problem(shared) == "every user may write to it (mode 1777)"
    assert folder_problem(shared, sticky=True) is None, "as /tmp: what is inside has a check of its own"
    assert folder_problem(open_, sticky=True) is not None
    assert folder_problem(tmp_path / "link") is None
    assert folder_problem(tmp_path / "link", inside=True) == "it is a symbolic link, not a folder"
    assert folder_problem(tmp_path / "file") == "it is a file, not a folder"
    belongs_to_another(plain, monkeypatch)
    assert "belongs to another user (" in str(folder_problem(plain))


@pytest.fixture
def anew() -> Iterator[None]:
    """Let nothing be known of users and groups, before and after."""
    trust._verdict.cache_clear()
    yield
    trust._verdict.cache_clear()


@pytest.mark.usefixtures("anew")
def test_a_group_counts_unless_it_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grp, pwd = pytest.importorskip("grp"), pytest.importorskip("pwd")
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o770)
    user = pwd.getpwuid(os.geteuid())
    gid = shared.stat().st_gid

    def group(name: str, *members: str) -> None:
        made = grp.struct_group((name, "x", gid, list(members)))
        monkeypatch.setattr(grp, "getgrgid", lambda _: made)
        monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd((user.pw_name, "x", 0, gid, "", "", "")))
        trust._verdict.cache_clear()

    group(user.pw_name, user.pw_name)
    assert folder_problem(shared) is None
    group(user.pw_name, user.pw_name, "guest")
    assert folder_problem(shared) == "other users of its group may write to it (mode 0770)"
    group("staff")
    assert folder_problem(shared) == "other users of its group may write to it (mode 0770)"


@pytest.mark.usefixtures("anew")
def test_reads_of_a_cache_ask_for_the_users_group_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grp = pytest.importorskip("grp")
    asked, ask = list[int](), grp.getgrgid

    def counted(gid: int) -> object:
        asked.append(gid)
        return ask(gid)

    monkeypatch.setattr(grp, "getgrgid", counted)
    held = DiskCache("kind")
    held.put("key", b"content")
    folder.chmod(0o775)
    found = [held.get("key") for _ in range(10)]
    assert len(set(found)) == 1 and len(asked) == 1
    folder.chmod(0o777)
    assert held.get("key") is None, "who may write to it is looked at each time"


def test_a_small_file_takes_little_memory_to_read(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_bytes(b"content")
    tracemalloc.start()
    try:
        assert read_file(file, 1 << 30) == b"content"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# -- blobs and their keys ------------------------------------------------------------------------------------


def test_a_blob_is_bound_to_its_key() -> None:
    sealed = seal("key", b"content")
    assert unseal("key", sealed) == b"content"
    for key, blob in (("other", sealed), ("ke", seal("key", b"content")), ("key", sealed[:-1]), ("key", b"")):
        assert unseal(key, blob) is None
    for at in range(len(sealed)):
        assert unseal("key", sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]) is None


def test_files_that_changed_places_are_not_used(folder: Path) -> None:
    one, other = DiskCache("one"), DiskCache("other")
    for held in (one, other):
        for key in "ab":
            held.put(key, f"{held.folder} {key}".encode())
    a, b, c = (Path(str(held.path(key))) for held, key in ((one, "a"), (one, "b"), (other, "a")))
    contents = [path.read_bytes() for path in (a, b, c)]
    for path, content in zip((a, b, c), contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    assert one.get("a") is one.get("b") is other.get("a") is None
    assert other.get("b") is not None
    one.put("a", b"anew")
    assert one.get("a") == b"anew"


# -- what users see ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["cache", "folder", "link", "file"])
def test_the_report_and_the_command_say_what_is_not_used(what: str, folder: Path, cli: Cli) -> None:
    (elsewhere := folder.parent / "elsewhere").mkdir()
    named = folder
    if what == "cache":
        folder.chmod(0o777)
    elif what == "folder":
        (named := folder / "sources").mkdir()
        named.chmod(0o777)
    elif what == "link":
        (named := folder / "sources").symlink_to(elsewhere)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    net = weft.Network("relu")
    net.add_output("y", net.add_layer("Relu", net.add_input("x", (2, 3))))
    render.cache_clear()
    if what == "file":
        weft.load(net, "opencl").close()
        for named in (folder / "sources").iterdir():
            named.chmod(0o666)
        render.cache_clear()
    with weft.load(net, "opencl") as session:
        np.testing.assert_array_equal(session.run(x)[0], np.maximum(x, 0))
        said = [note for note in session.report.notes if f"{named} is not used: " in note]
    assert len(said) == 1 and "WEFT_CACHE_DIR" in said[0], session.report.notes
    assert not list(elsewhere.iterdir())
    if what == "file":
        return  # it was replaced
    assert f"not used: {named}: " in cli("cache", "info").out
    assert not [path for path in folder.rglob("*") if path.is_file() and path.is_relative_to(named)]


def test_folders_of_backends_that_others_may_write_are_warned_of_and_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder := tmp_path / "backends").mkdir()
    (file := folder / "Acme_Some_backend.py").write_text("def GetBackendId(): return ''\n")
    for path in (folder, file):
        path.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        weft.Runtime(dynamic_backend_paths=[folder]).close()
    where = [m for m in caplog.messages if m.startswith("code is loaded from")]
    assert len(where) == 2 and f"the folder {folder}, though every user may write" in where[0]
    assert str(file) in where[1] and "chmod go-w" in where[1]
