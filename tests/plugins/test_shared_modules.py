"""Contract row A17: Python backends in one folder share the modules beside them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.helpers.nets import chain
from tests.helpers.plugins import COUNT, new_registry
from weft.core.registry.backend_registry import BackendRegistry

BACKEND = """
from weft.backends.cpu.backend import CpuBackend
from {module} import TABLE{more}

class Acme(CpuBackend):
    table = TABLE

def GetBackendId(): return "{id}"
def GetVersion(): return (1, 0)
def BackendFactory(): return Acme
"""
HELPER = COUNT + "\nTABLE = {'lanes': 1}\n"


def put(folder: Path, id: str, module: str = ".acme_common", more: str = "") -> Path:
    file = folder / f"acme_{id}_backend.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(BACKEND.format(id=id, module=module, more=more))
    return file


def table(registry: BackendRegistry, id: str) -> object:
    return registry.find(id).made.table  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", [".acme_common", ".acme_parts.tables"])
def test_A17_two_backends_share_one_module_beside_them(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    new_registry().rescan([tmp_path])  # what the search itself imports
    path, modules = list(sys.path), set(sys.modules)
    one, two = put(tmp_path, "one", module), put(tmp_path, "two", module)
    helper = tmp_path.joinpath(*module.strip(".").split(".")).with_suffix(".py")
    helper.parent.mkdir(exist_ok=True)
    helper.write_text(HELPER)
    if helper.parent != tmp_path:
        (helper.parent / "__init__.py").write_text("")
    registry = new_registry()
    registry.rescan([tmp_path])
    assert registry.failures == {} and registry.ids() == ["cpu", "one", "two"]
    assert table(registry, "one") is table(registry, "two")
    assert (helper.parent / "count").read_text() == "x", "executed once"
    assert sys.path == path and "acme_common" not in sys.modules
    assert all(name.startswith("_weft_backends_") for name in set(sys.modules) - modules)
    assert not list(tmp_path.rglob("__pycache__"))
    assert {one, two} == {p for p in tmp_path.iterdir() if p.name.endswith("_backend.py")}


def test_A17_folders_do_not_share_modules_of_one_name(tmp_path: Path) -> None:
    for k in (1, 2):
        put(tmp_path / str(k), f"acme{k}")
        (tmp_path / str(k) / "acme_common.py").write_text(f"TABLE = {k}\n")
    registry = new_registry()
    registry.rescan([tmp_path / "1", tmp_path / "2"])
    assert (table(registry, "acme1"), table(registry, "acme2")) == (1, 2)


def test_A17_a_change_of_the_module_is_a_change_of_the_backends(tmp_path: Path) -> None:
    put(tmp_path, "one")
    put(tmp_path, "two", ".acme_between")
    (tmp_path / "acme_between.py").write_text("from .acme_common import TABLE\n")
    (tmp_path / "acme_common.py").write_text("TABLE = 1\n")
    registry = new_registry()
    registry.rescan([tmp_path])
    before = [registry.find(id).found_version for id in ("one", "two")]
    registry.rescan([tmp_path])
    assert [registry.find(id).found_version for id in ("one", "two")] == before
    (tmp_path / "acme_common.py").write_text("TABLE = 2\n")
    registry.rescan([tmp_path])
    assert table(registry, "one") == table(registry, "two") == 2
    after = [registry.find(id).found_version for id in ("one", "two")]
    assert all(a != b for a, b in zip(after, before, strict=True))


def test_A17_a_backend_may_import_another(tmp_path: Path) -> None:
    put(tmp_path, "two", ".acme_one_backend")
    put(tmp_path, "one")
    (tmp_path / "acme_common.py").write_text(HELPER)
    registry = new_registry()
    registry.rescan([tmp_path])
    assert table(registry, "one") is table(registry, "two")
    assert (tmp_path / "count").read_text() == "x"


def test_A17_a_scan_reads_in_proportion_to_the_backends_and_parses_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = {"read": 0, "parsed": 0}

    def counted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def count(*args: object, **more: object) -> object:
            done[name] += 1
            return call(*args, **more)

        return count

    monkeypatch.setattr(Path, "read_bytes", counted("read", Path.read_bytes))
    registry = new_registry()

    def scan(*names: str) -> dict[str, int]:
        for name in names:
            put(tmp_path, name)
        registry.rescan([tmp_path])
        done.update(dict.fromkeys(done, 0))
        with monkeypatch.context() as patch:
            patch.setattr(ast, "parse", counted("parsed", ast.parse))
            registry.rescan([tmp_path])
        return dict(done)

    (tmp_path / "acme_common.py").write_text("TABLE = 1\n")
    few, many = scan("a", "b", "c"), scan(*"defghijkl")
    assert registry.ids() == ["cpu", *"abcdefghijkl"] and few["parsed"] == many["parsed"] == 0
    assert few["read"] < many["read"] <= 4 * few["read"]


@pytest.mark.parametrize(
    ("helper", "why"),
    [
        (None, "ModuleNotFoundError"),
        ("raise RuntimeError('no card')", "RuntimeError: no card"),
        ("def (", "SyntaxError"),
        (f"TABLE = {'-' * 20_000}1", "Error"),
        ("TABLES = 1", "ImportError"),
    ],
)
def test_A21_a_module_that_cannot_be_imported_is_the_reason(helper: str | None, why: str, tmp_path: Path) -> None:
    put(tmp_path, "one")
    put(tmp_path, "two")
    if helper is not None:
        (tmp_path / "acme_common.py").write_text(helper)
    registry = new_registry()
    registry.rescan([tmp_path])
    assert registry.ids() == ["cpu"] and len(registry.failures) == 2
    assert all(why in said for said in registry.failures.values()), registry.failures
    (tmp_path / "acme_common.py").write_text("TABLE = 3\n")
    registry.rescan([tmp_path])
    assert registry.ids() == ["cpu", "one", "two"]


def test_A21_nothing_outside_of_the_folder_is_reached(tmp_path: Path) -> None:
    put(tmp_path / "in", "one", "..acme_common")
    (tmp_path / "acme_common.py").write_text("TABLE = 1\n")
    registry = new_registry()
    registry.rescan([tmp_path / "in"])
    (why,) = registry.failures.values()
    assert "ImportError" in why and "beyond top-level package" in why


def test_A17_a_link_finds_the_modules_beside_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "links").mkdir()
    (tmp_path / "real" / "acme_common.py").write_text("TABLE = 4\n")
    put(tmp_path / "real", "one").rename(tmp_path / "real" / "acme.v1.2.txt")
    (tmp_path / "links" / "acme_one_backend.py").symlink_to(tmp_path / "real" / "acme.v1.2.txt")
    with weft.Runtime(dynamic_backend_paths=[tmp_path / "links"]) as runtime:
        assert table(runtime.registry, "one") == 4
        with weft.load(chain("Relu"), "one", runtime=runtime) as session:
            np.testing.assert_array_equal(session.run(np.ones((2, 3), np.float32))[0], 1)


def test_A17_a_link_to_a_file_of_another_name_is_executed_once_until_it_changes(tmp_path: Path) -> None:
    real = put(tmp_path / "real", "one").rename(tmp_path / "real" / "acme.v1.2.txt")
    real.write_text(COUNT + real.read_text())
    (real.parent / "acme_common.py").write_text("TABLE = 4\n")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "acme_one_backend.py").symlink_to(real)
    for scans, (edit, executed) in enumerate([("", "x"), ("", "x"), ("\n# changed\n", "xx"), ("", "xx")]):
        real.write_text(real.read_text() + edit)
        registry = new_registry()
        registry.rescan([tmp_path / "links"])
        assert registry.failures == {} and table(registry, "one") == 4
        assert (real.parent / "count").read_text() == executed, f"after {scans + 1} scans"
