"""`weft inspect --why NODE`: the life of a node or value, of a model and of a saved network."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.cli import Cli
from weft.models import path


def test_inspect_tells_why(cli: Cli, tmp_path: Path) -> None:
    options = ("--why", "stem.norm/batchnormalization", "--why", "last/conv", "-d", "cpu")
    done = cli("inspect", path("shapes"), *options)
    assert "fold_batch_norm" in done.out and "'last/conv' runs on cpu:0" in done.out
    assert "subgraph(s)" not in done.out and "numbers of weights" not in done.out
    saved = tmp_path / "m.weft"
    cli("optimize", path("shapes"), "-o", saved, "--shape", "image=1,3,128,128", "-d", "cpu")
    again = cli("inspect", saved, *options)
    assert "fold_batch_norm" in again.out and "'last/conv' runs on cpu:0" in again.out
    assert "there is no node or value 'stem'" in cli("inspect", saved, "--why", "stem", status=2).err
