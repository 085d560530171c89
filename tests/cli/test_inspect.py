"""`weft inspect`: the life of a node or value (`--why`), of a model and of a saved network; what it says of a model."""

from __future__ import annotations

import re
from pathlib import Path

import onnx

from tests.helpers.cli import Cli, write_model
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
    assert "the network has no node or value 'stem'" in cli("inspect", saved, "--why", "stem", status=2).err


def test_inspect_refuses_what_it_would_not_print_beside_the_life_of_a_node(cli: Cli) -> None:
    done = cli("inspect", path("shapes"), "--why", "image", "--fusion", "--nodes", status=2)
    assert "--why prints nothing else, so it takes no --nodes and no --fusion" in done.err


def test_inspect_says_what_is_wrong_with_a_model_before_it_counts(cli: Cli, tmp_path: Path) -> None:
    node = onnx.helper.make_node("Frob", ["x"], ["y"], name="first")
    done = cli("inspect", write_model(tmp_path / "m.onnx", [node], {"x": (2,)}, ["y"]), status=1)
    assert "1 of the 1 nodes" in done.err and re.search(r"Frob\s+1", done.out)


def test_inspect_says_which_casts_have_no_effect(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["h"], name="narrow", to=onnx.TensorProto.BFLOAT16),
        onnx.helper.make_node("Relu", ["h"], ["r"], name="relu"),
        onnx.helper.make_node("Cast", ["r"], ["y"], name="widen", to=onnx.TensorProto.FLOAT),
    ]
    model = write_model(tmp_path / "m.onnx", nodes, {"x": (2,)}, ["y"])
    for precision in ("low", "high"):
        done = cli("inspect", model, "-d", "cpu", "--precision", precision)
        told = "1 cast(s) to bfloat16 keep float16 at precision LOW: narrow" in done.out + done.err
        assert told == (precision == "low")
