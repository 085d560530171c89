"""`weft conformance NAME --model FILE`: a backend on its author's network, layer by layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import weft_conformance
from examples.numpy_backend import AcmeCreator
from tests.helpers.cli import Cli
from tests.helpers.fakes import Maker, registered
from tests.helpers.faults.every_fault import FAULTS
from tests.helpers.onnx_models import make_model, node
from weft.core.graph.layout import Array
from weft_conformance import Verdict

RNG = np.random.default_rng(4)


def weights(*shape: int) -> Array:
    return RNG.uniform(-0.3, 0.3, shape).astype(np.float32)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A stem, a strided convolution of 70 channels with a Relu, and a head."""
    nodes = [
        node("Conv", "x w0 b0", "stem", name="stem", kernel_shape=[1, 1]),
        node("Conv", "stem w1 b1", "down", name="down", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", "down", "active", name="active"),
        node("GlobalAveragePool", "active", "pooled", name="pooled"),
        node("Sigmoid", "pooled", "y", name="head"),
    ]
    constants = {"w0": weights(70, 3, 1, 1), "b0": weights(70), "w1": weights(5, 70, 3, 3), "b1": weights(5) + 1}
    path = tmp_path / "own.onnx"
    onnx.save(make_model(nodes, {"x": (TensorProto.FLOAT, ("n", 3, 8, 8))}, constants=constants), path)
    return path


def test_a_right_backend_ends_with_status_0_and_counts_the_layers(cli: Cli, model: Path) -> None:
    done = cli("conformance", "cpu", "--model", model)
    assert "layers" in done.out and "network" in done.out
    assert "keeps the contract" in done.out


@pytest.mark.parametrize("precision", ["high", "low"])
def test_a_gpu_is_right_at_each_precision(cli: Cli, model: Path, precision: str) -> None:
    assert "keeps the contract" in cli("conformance", "opencl", "--model", model, "--precision", precision).out


def test_the_first_wrong_layer_is_named_and_ends_with_status_1(cli: Cli, model: Path) -> None:
    with registered(Maker(FAULTS["SumsOver64Channels"].made)):
        done = cli("conformance", "acme", "--model", model, "--shape", "x=2,3,8,8", status=1)
    first = done.err.index("layers: down (Conv): wrong: this is the first layer that is wrong")
    assert "stem" not in done.err[first:] and "active" not in done.err


def test_a_layer_that_is_wrong_only_when_it_is_fused_is_named(cli: Cli, model: Path) -> None:
    with registered(Maker(FAULTS["LosesTheBiasOfStridedConvolutions"].made)):
        done = cli("conformance", "acme", "--model", model, status=1)
    assert "layers:" not in done.err
    assert "network: active (Relu): wrong: the network up to this layer is wrong" in done.err


def test_a_layer_that_is_wrong_from_the_second_run_on_is_named(model: Path) -> None:
    x = RNG.uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)
    with registered(Maker(FAULTS["KeepsAResult"].made)):
        report = weft_conformance.run_model("acme", model, {"x": x})
    assert not report.ok
    assert report.wrong[0].subject == "stem (Conv)"
    assert "with other inputs" in report.wrong[0].message


def test_a_layer_that_the_backend_refuses_is_no_fault_and_has_its_reason(model: Path) -> None:
    with registered(AcmeCreator()):
        report = weft_conformance.run_model("acme", model, {"x": np.zeros((1, 3, 8, 8), np.float32)})
    assert report.ok, report
    refused = {f.subject: f.message for f in report.findings if f.verdict is Verdict.REFUSED}
    assert refused["head (Sigmoid)"] == "acme has no implementation of Sigmoid"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "Relu", "--model"), "--only names checks of the kit"),
        (("--shape", "x=1,3,8,8"), "are about a model"),
    ],
)
def test_what_makes_no_sense_ends_with_status_2(cli: Cli, model: Path, arguments: tuple[str, ...], said: str) -> None:
    given = (*arguments, model) if arguments[-1] == "--model" else arguments
    assert said in cli("conformance", "cpu", *given, status=2).err
