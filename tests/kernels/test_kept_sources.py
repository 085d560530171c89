"""Rendered kernels are kept on disk: found again without Mako, and never after a change of what wrote them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.backends.opencl.dialect import OpenCLDialect
from weft.core.graph.dtypes import DType
from weft.core.host.disk_cache import DiskCache
from weft.kernels import template
from weft.kernels.source import Arg, KernelCode
from weft.kernels.template import KernelRequest, render

REQUEST = KernelRequest("mine", (), (Arg("y", DType.FLOAT32, "linear", True),), ("TOTAL",))
BODY = "${k.for_each('i', 'TOTAL')} { ${y.store('i', '1.0')} }\n"


@pytest.fixture
def shaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(template, "_folders", [*template._folders, tmp_path])
    (tmp_path / "mine.mako").write_text(BODY)
    forget()
    yield tmp_path
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Forget what this process knows, as a new one would."""
    for cached in (template._lookup, template.writers_hash, template.render):
        cached.cache_clear()


def test_a_source_is_found_again_without_rendering(shaders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = render(REQUEST, OpenCLDialect())
    forget()
    monkeypatch.setattr(template, "_written", lambda *_: pytest.fail("it is rendered again"))
    assert render(REQUEST, OpenCLDialect()) == first


def test_a_changed_template_is_rendered_anew(shaders: Path) -> None:
    first = render(REQUEST, OpenCLDialect())
    (shaders / "mine.mako").write_text(BODY.replace("1.0", "2.0"))
    forget()
    second = render(REQUEST, OpenCLDialect())
    assert second.digest != first.digest and "2.0" in second.text


def test_another_dialect_has_its_own_text(shaders: Path) -> None:
    from weft.backends.vulkan.dialect import GlslDialect

    assert render(REQUEST, OpenCLDialect()).text != render(REQUEST, GlslDialect()).text


def test_a_damaged_blob_is_rendered_anew(shaders: Path) -> None:
    first = render(REQUEST, OpenCLDialect())
    for blob in (shaders / "cache" / "sources").iterdir():
        blob.write_bytes(b"damaged")
    forget()
    assert render(REQUEST, OpenCLDialect()) == first


CODE = json.loads(json.dumps(KernelCode("").facts()))
GOOD: dict[str, Any] = {"code": CODE, "shared": [], "subgroup": 0, "warpgroup": False, "bounds": []}
CHANGED: list[dict[str, Any]] = [
    {"code": 7}, {"code": CODE[:-1]}, *({"code": [*CODE[:k], 7, *CODE[k + 1 :]]} for k in range(len(CODE) - 1)),
    {"code": [*CODE[:4], "text", *CODE[5:]]},
    {"shared": "ab"}, {"shared": ""}, {"shared": [["f32"]]}, {"shared": [["f33", "1"]]},
    {"shared": [["f32", "exit()"]]}, {"shared": [["f32", 7]]}, {"shared": [[[], "1"]]},
    {"subgroup": 16}, {"subgroup": False}, {"subgroup": []}, {"warpgroup": 1},
    {"bounds": 7}, {"bounds": "N"}, {"bounds": ["other"]}, {"bounds": [[]]},
]
ODD = [b"", b"[]", b"7", b"null", b"{", b"[" * 20000, b"\xff", *(json.dumps(GOOD | each).encode() for each in CHANGED)]
"""Entries that nothing has damaged, as their digests say, and that are not as `render` writes them."""


@pytest.mark.parametrize("content", ODD)
def test_an_entry_that_is_not_as_it_was_written_is_rendered_anew(
    content: bytes, shaders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = render(REQUEST, OpenCLDialect())
    assert "1.0" in first.text
    dialect = OpenCLDialect()
    DiskCache("sources").put(f"{template.writers_hash(dialect)} {REQUEST!r}", content)
    forget()
    assert render(REQUEST, dialect) == first
    forget()
    monkeypatch.setattr(template, "_written", lambda *_: pytest.fail("what was there is there still"))
    assert render(REQUEST, dialect) == first


LOAD = """
import sys, weft
net = weft.Network("one")
net.add_output("y", net.add_layer("Relu", net.add_input("x", (4,))))
weft.load(net, "opencl", fallback="error").close()
print("mako" in sys.modules)
"""


def test_a_second_process_does_not_import_mako(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-c", LOAD]
    said = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert said == ["True\n", "False\n"]
