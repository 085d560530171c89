"""Commands take the files of any front end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.helpers.cli import Cli
from weft.extend import FrontEnd, ReadOptions, front_ends, register_front_end


def read(file: Path, options: ReadOptions) -> weft.Network:
    """Read a network of one word a layer."""
    net = weft.Network(file.stem)
    value = net.add_input("x", (1, 3)).outputs[0]
    for kind in file.read_text().split():
        value = net.add_layer(kind, value).outputs[0]
    net.add_output("y", value)
    return net


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    register_front_end(FrontEnd("words", read, (".words",)))
    path = tmp_path / "m.words"
    path.write_text("Relu Neg")
    yield path
    front_ends.remove("words")


def test_commands_read_the_files_of_any_front_end(cli: Cli, model: Path) -> None:
    assert "m: 2 nodes" in cli("inspect", model, "-d", "cpu").out
    assert "y: float32[1x3]" in cli("run", model, "-d", "cpu,opencl").out
    saved = model.with_suffix(".weft")
    cli("optimize", model, "-d", "cpu", "-o", saved)
    assert "y: float32[1x3]" in cli("run", saved).out
    assert "PASS: opencl" in cli("compare", model, "-d", "cpu,opencl").out


def test_a_file_that_no_front_end_reads_is_an_error(cli: Cli, model: Path) -> None:
    for command in ("run", "inspect", "optimize", "bench"):
        said = cli(command, model.with_suffix(".xyz"), "-d", "cpu", status=2).err
        assert "no front end reads .xyz" in said and ".words (words, from register_front_end)" in said
