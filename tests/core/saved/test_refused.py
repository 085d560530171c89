"""Contract row F8: a file fits the backends and ops that it was made for and no others, and the format of this Weft."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import weft
from tests.helpers.fakes import Creator, registered
from tests.helpers.nets import op
from tests.helpers.saved_networks import SHAPES, Holder, compiled, content, of_ops, refusal, rewritten
from weft.core.graph.op import op_types, register_op
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.saved.network_file import load_saved
from weft.errors import BackendError, ModelError, UnsupportedOps


def test_F8_another_version_of_a_backend_is_refused_naming_both(tmp_path: Path) -> None:
    creator = Creator()
    creator.version = "2.0"
    network = replace(compiled(b""), versions={"acme": "1.9"})
    with registered(creator):
        said = refusal(content(network, tmp_path), tmp_path, BackendError)
    assert "backend 'acme' is version 2.0 here, and the network was made with 1.9" in said
    assert "optimise the model again" in said


def test_F8_a_backend_without_a_version_changes_with_weft(tmp_path: Path) -> None:
    saved = content(of_ops(op("Relu")), tmp_path)
    saved = rewritten(saved, lambda m: m.update(weft="0.0.1"))
    said = refusal(saved, tmp_path, BackendError)
    assert f"backend 'cpu' is version Weft {weft.__version__} here, and the network was made with Weft 0.0.1" in said


def test_F8_backends_that_are_not_registered_are_named_all_at_once(tmp_path: Path) -> None:
    network = replace(compiled(b""), versions={"acme": "1", "emca": "2"})
    said = refusal(content(network, tmp_path), tmp_path, BackendError)
    assert "backend 'acme' is not registered" in said
    assert "backend 'emca' is not registered" in said


def test_F8_backends_of_another_registry(tmp_path: Path) -> None:
    from weft.core.registry.backend_registry import BackendRegistry

    content(compiled(b"add"), tmp_path)
    own = BackendRegistry()
    own.insert("acme", Creator())
    assert OptimizedNetwork.load(tmp_path / "content.weft", backends=own).devices == ("acme:0",)


def test_F8_ops_that_are_not_registered_are_named_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("weft.core.graph.op._OPS", op_types())
        register_op(Holder)
        saved = content(of_ops(Holder(1), op("Relu"), Holder(2)), tmp_path)
    said = refusal(saved, tmp_path, UnsupportedOps)
    assert "2 node(s)" in said
    assert "'n0', 'n2': op type 'Holder' is not registered" in said


def test_F8_attributes_that_the_op_does_not_have(tmp_path: Path) -> None:
    saved = content(of_ops(op("Relu"), op("LeakyRelu", alpha=0.5)), tmp_path)
    saved = rewritten(saved, lambda m: m["nodes"][1]["op"]["fields"].update(beta=1))
    said = refusal(saved, tmp_path, UnsupportedOps)
    assert "'n1' (LeakyRelu): its attributes do not fit" in said
    assert "'beta'" in said


def test_F8_attributes_that_a_file_lacks_have_their_defaults(tmp_path: Path) -> None:
    saved = content(of_ops(op("LeakyRelu", alpha=0.5)), tmp_path)
    (tmp_path / "older.weft").write_bytes(rewritten(saved, lambda m: m["nodes"][0]["op"]["fields"].pop("alpha")))
    network = OptimizedNetwork.load(tmp_path / "older.weft")
    assert [n.op for n in network.graph.nodes] == [op("LeakyRelu")]


@pytest.mark.parametrize("found", [1, 3, 6, 8, 0, "7", None, True])
def test_F8_another_format_is_refused_naming_both(found: object, tmp_path: Path) -> None:
    saved = rewritten(content(of_ops(), tmp_path), lambda m: m.update(format=found, weft="9.9"))
    said = refusal(saved, tmp_path)
    assert f"the file has format {found!r}, saved by Weft 9.9" in said
    assert "reads format 7" in said


def test_F8_files_that_are_none(tmp_path: Path) -> None:
    for saved in (b"", b"no zip", b"PK\3\4" + bytes(100), SHAPES.read_bytes()):
        assert "is not a saved network" in refusal(saved, tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        load_saved(tmp_path / "missing.weft")
    with pytest.raises(ModelError, match="cannot be read"):
        load_saved(tmp_path / "refused.weft" / "a")
    with pytest.raises(ModelError, match=r"cannot be read|not a regular file"):
        load_saved(tmp_path)
