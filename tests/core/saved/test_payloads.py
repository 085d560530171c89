"""Contract row F8: a backend saves and loads what it compiled itself as it likes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.fakes import Creator, registered
from tests.helpers.saved_networks import again, compiled, content, refusal, unsavable
from weft.core.saved.network_file import load_saved
from weft.errors import UnsupportedOps


@dataclass(frozen=True)
class Program:
    """An object of a backend."""

    text: str

    def to_bytes(self) -> bytes:
        if not self.text:
            raise OSError("no program")
        return self.text.encode()


class Loading(Creator):
    """A creator that makes programs of bytes."""

    def load_payload(self, content: bytes) -> object:
        return Program(content.decode("ascii"))


def test_F8_a_payload_of_bytes_stays_bytes(tmp_path: Path) -> None:
    with registered(Loading()):
        loaded = again(compiled(b"\0\xff"), tmp_path)
    assert vars(loaded.graph.nodes[0].op)["payload"] == b"\0\xff"


def test_F8_a_backend_saves_and_loads_its_own_objects(tmp_path: Path) -> None:
    with registered(Loading()):
        loaded = again(compiled(Program("add")), tmp_path)
    assert vars(loaded.graph.nodes[0].op)["payload"] == Program("add")
    assert loaded.parts[0].graph.nodes[0].op is loaded.graph.nodes[0].op


def test_F8_without_load_payload_the_op_holds_the_bytes(tmp_path: Path) -> None:
    compiled(Program("add")).save(tmp_path / "a.weft")
    with registered(Creator()):
        loaded = load_saved(tmp_path / "a.weft")
    assert vars(loaded.graph.nodes[0].op)["payload"] == b"add"


@dataclass(frozen=True)
class Wrong:
    """An object whose bytes are text."""

    def to_bytes(self) -> str:
        return "text"


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (object(), "a object, is not bytes and has no method to_bytes"),
        (Program(""), "failed in to_bytes: OSError: no program"),
        (Wrong(), "a Wrong, returned a str from to_bytes"),
    ],
)
def test_F8_a_payload_that_cannot_be_saved_names_its_backend(
    payload: object, why: str, tmp_path: Path
) -> None:
    said = unsavable(compiled(payload), tmp_path)
    assert "node 'n0' (PreCompiled): the payload of backend 'acme'" in said
    assert why in said


def test_F8_a_backend_that_fails_to_load_its_object_is_named(tmp_path: Path) -> None:
    saved = content(compiled(Program("\xe9")), tmp_path)
    with registered(Loading()):
        said = refusal(saved, tmp_path, UnsupportedOps)
    assert "'n0' (PreCompiled): backend 'acme' failed in load_payload: UnicodeDecodeError" in said
