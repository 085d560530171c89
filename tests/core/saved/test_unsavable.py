"""Contract row F8: one error names all nodes that cannot be saved, and an older file stays as it was."""

from __future__ import annotations

import re
import subprocess
import sys
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.helpers.nets import Net, chain, op
from tests.helpers.saved_networks import SHAPES, Holder, of_ops, unsavable
from weft.core.host.file_locks import open_locked
from weft.core.saved.network_file import load_saved, save
from weft.errors import ModelError


class Other(Enum):
    """An enum that no op names."""

    ONE = 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([1], "a builtins.list"),
        ({"a": 1}, "a builtins.dict"),
        (len, "a builtins.builtin_function_or_method"),
        (Other.ONE, "not of an enum that the attribute's type names"),
        (np.zeros(1, "datetime64[s]"), "datetime64"),
        (np.str_("a"), "<U1"),
        ((1, (object(),)), "a builtins.object"),
        (1 << 1024, "a builtins.int"),
    ],
    ids=["list", "dict", "function", "enum", "date", "numpy-text", "nested", "huge"],
)
def test_F8_attributes_that_no_file_can_hold(value: object, why: str, holder: None, tmp_path: Path) -> None:
    said = unsavable(of_ops(Holder(value)), tmp_path)
    assert "node 'n0' (Holder): attribute 'value'" in said
    assert why in said


def test_F8_all_nodes_that_cannot_be_saved_are_named(holder: None, tmp_path: Path) -> None:
    said = unsavable(of_ops(Holder([1]), Holder(1), Holder({})), tmp_path)
    assert "'n0'" in said
    assert "'n1'" not in said
    assert "'n2'" in said


def test_F8_an_op_that_is_not_registered_cannot_be_saved(tmp_path: Path) -> None:
    assert "saved_networks.Holder is not the op registered as" in unsavable(of_ops(Holder(1)), tmp_path)


def test_F8_an_attribute_of_another_type_than_the_op_says_cannot_be_saved(tmp_path: Path) -> None:
    said = unsavable(of_ops(op("LeakyRelu", alpha="steep"), op("Softmax", axis=1.5)), tmp_path)
    assert "node 'n0' (LeakyRelu): attribute 'alpha': 'steep' is not a float" in said
    assert "node 'n1' (Softmax): attribute 'axis': 1.5 is not a int" in said


def test_F8_debug_nodes_cannot_be_saved(tmp_path: Path) -> None:
    network = weft.optimize(SHAPES, "cpu", shapes={"image": (1, 3, 128, 128)}, debug=print)
    said = unsavable(network, tmp_path)
    assert "attribute 'sink'" in said
    assert "must be optimised without them" in said


def test_F8_a_network_without_its_constants_cannot_be_saved(tmp_path: Path) -> None:
    net = Net()
    graph = net.finish(net.add("Add", net.input("x", 2), np.ones(2, np.float32)))
    said = unsavable(weft.optimize(graph, "cpu").without_constants(), tmp_path)
    assert "nothing makes" in said
    assert "save what weft.optimize returns" in said


@pytest.mark.parametrize("path", ["", "a\0b", ".", "/"])
def test_F8_a_path_that_names_no_file(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for act in (lambda: save(of_ops(), path), lambda: load_saved(path)):
        with pytest.raises(ModelError, match="is not the path of a file"):
            act()


KILLED = """
import os, sys
from pathlib import Path
from weft.core.saved.archive import write_archive

def members():
    yield "network.json", bytes(1000)
    os._exit(9)

write_archive(Path(sys.argv[1]), members())
"""


def test_F8_what_a_killed_save_left_goes_with_the_next_one_to_the_same_place(tmp_path: Path) -> None:
    path = tmp_path / "net.weft"
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    assert re.fullmatch(r"net\.weft\.[0-9a-f]{8}\.part", left.name)
    others = [tmp_path / name for name in ("net.weft.part", "other.weft.01234567.part", "net.weft.0123456g.part")]
    for other in others:
        other.write_bytes(b"somebody's")
    with open_locked(tmp_path / "net.weft.89abcdef.part") as written:  # as if another process were at it
        weft.optimize(chain("Relu"), "cpu").save(path)
        assert {*tmp_path.iterdir()} == {path, Path(written.name), *others}
    weft.optimize(chain("Relu"), "cpu").save(path)
    assert {*tmp_path.iterdir()} == {path, *others}


def test_F8_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "no" / "a.weft", tmp_path / "file" / "a.weft"):
        with pytest.raises(ModelError, match="cannot be saved"):
            of_ops().save(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelError, match="cannot be saved"):
        of_ops().save(tmp_path / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
