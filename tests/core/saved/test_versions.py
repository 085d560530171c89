"""Contract row F8: the version of a backend that has none of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.helpers.native_sources import loaded
from tests.helpers.nets import Net
from tests.helpers.plugins import c_source, needs_compiler, new_registry, package, py_source, write
from weft.core.contract.backend import BackendConfig
from weft.core.graph.graph import Graph
from weft.core.registry.backend_registry import BackendRegistry
from weft.core.registry.entries import version_of
from weft.errors import BackendError

FILE = re.compile("file [0-9a-f]{16}")


def relu() -> Graph:
    net = Net()
    return net.finish(net.add("Relu", net.input("x", 2), name="y"))


def version(backends: BackendRegistry, id: str = "acme") -> str:
    return version_of(backends.find(id))


def test_F8_a_network_fits_the_file_that_it_was_made_with(tmp_path: Path) -> None:
    file, saved = tmp_path / "acme_one_backend.py", tmp_path / "a.weft"
    write(file, py_source())
    with weft.Runtime(dynamic_backend_paths=[tmp_path]) as runtime:
        network = weft.optimize(relu(), "acme", runtime=runtime)
        old = network.versions["acme"]
        assert FILE.fullmatch(old)
        network.save(saved)
        with weft.load(saved, runtime=runtime) as session:
            assert session.run(np.ones(2, np.float32))[0].tolist() == [1, 1]
    with weft.Runtime(dynamic_backend_paths=[tmp_path]) as runtime, weft.load(saved, runtime=runtime):
        assert version(runtime.registry) == old
    write(file, py_source(more="# it computes something else\n"))
    with weft.Runtime(dynamic_backend_paths=[tmp_path]) as runtime:
        new = version(runtime.registry)
        with pytest.raises(BackendError) as caught:
            weft.load(saved, runtime=runtime)
        runtime.registry.rescan([tmp_path])
        assert version(runtime.registry) == new
    assert FILE.fullmatch(new) and new != old
    assert f"backend 'acme' is version {new} here, and the network was made with {old}" in caught.value.why
    assert "optimise the model again" in caught.value.fix


def test_F8_a_version_of_its_own_goes_before_the_file(tmp_path: Path) -> None:
    write(tmp_path / "acme_one_backend.py", py_source(more='Acme.version = "2.5"\n'))
    own = new_registry().derive([tmp_path])
    assert version(own) == "2.5"
    assert own.choose("acme")[0].open(BackendConfig()).info.version == "2.5"


@needs_compiler
def test_F8_a_library_without_a_version_has_that_of_its_file(tmp_path: Path) -> None:
    old = version(loaded(tmp_path / "a", c_source()))
    assert FILE.fullmatch(old)
    assert version(loaded(tmp_path / "b", c_source())) == old
    assert version(loaded(tmp_path / "c", c_source(more="int more;\n"))) not in ("", old)


@needs_compiler
def test_F8_a_library_that_was_replaced_runs_on_and_so_does_its_version(tmp_path: Path) -> None:
    old = version(loaded(tmp_path, c_source()))
    other = write(tmp_path / "other.so", c_source(more="int more;\n"))
    os.replace(other, tmp_path / "acme_test_backend.so")
    assert version(new_registry().derive([tmp_path])) == old


def test_F8_a_package_gives_its_name_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package(tmp_path, "acme_weft", py_source(), "acme = acme_weft", version="1.2")
    made = new_registry()
    assert version(made) == "acme-weft 1.2" and version(made, "cpu") == ""
    assert made.choose("acme")[0].open(BackendConfig()).info.version == "acme-weft 1.2"
    assert version(made.derive([])) == "acme-weft 1.2"
